"""Error policies: what happens to a record that could not be written, decided for each record and never for a batch.

The policies are stream-reactor's (`connect.<x>.error.policy`); `errors.tolerance` and dead letters are Kafka Connect's.
An outage is not a record's fault, so a transient failure is retried under every policy. Only RETRY counts attempts
(`max.retries`) and gives up. See docs/adr/0040.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNLIMITED_RETRIES = -1


class Policy(Enum):
    """Values of `error.policy`."""

    THROW = "THROW"
    NOOP = "NOOP"
    RETRY = "RETRY"


class Failure(Enum):
    """Kinds of failed writes."""

    PERMANENT = "permanent"
    """The record can never be written."""
    TRANSIENT = "transient"
    """The same write may succeed later, after an overload, a time-out or a server's restart."""


class Action(Enum):
    """What happens to a record whose write failed."""

    STOP = "stop"
    """The task fails. It commits everything before this record, so the record is the first one after a restart."""
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"
    RETRY = "retry"


@dataclass(frozen=True)
class ErrorPolicy:
    """The error keys of one connector."""

    policy: Policy = Policy.THROW
    max_retries: int = 20
    retry_interval_ms: int = 60_000
    """The longest wait between two attempts; waits grow exponentially up to it and have jitter."""
    tolerate_all: bool = False
    """`errors.tolerance=all`."""
    dead_letters: bool = False

    def decide(self, failure: Failure, attempts: int) -> Action:
        """The action after attempt number `attempts` (from 1) failed."""
        if failure is Failure.TRANSIENT:
            limited = self.policy is Policy.RETRY and self.max_retries != UNLIMITED_RETRIES
            return Action.STOP if limited and attempts > self.max_retries else Action.RETRY
        if self.policy is Policy.THROW and not self.tolerate_all:
            return Action.STOP
        if self.dead_letters:
            return Action.DEAD_LETTER
        if self.policy is Policy.RETRY and not self.tolerate_all:
            return Action.STOP
        return Action.SKIP

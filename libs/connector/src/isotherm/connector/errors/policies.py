"""What to do about a record that could not be written: a table, decided per record and never per batch.

The policies are stream-reactor's (`connect.<x>.error.policy`), `errors.tolerance` and dead letters are Kafka Connect's.
An outage is not a record's fault: a transient failure is retried under every policy, and only RETRY, which counts
attempts (`max.retries`), ever gives up on one. See docs/adr/0040.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNLIMITED_RETRIES = -1


class Policy(Enum):
    """`error.policy`."""

    THROW = "THROW"
    NOOP = "NOOP"
    RETRY = "RETRY"


class Failure(Enum):
    """How a write failed."""

    PERMANENT = "permanent"
    """The record can never be written as it is."""
    TRANSIENT = "transient"
    """The same write may succeed later: overload, a time-out, a server that restarts."""


class Action(Enum):
    """What happens to the record."""

    STOP = "stop"
    """The task fails with this record's offset as its position: everything before it is committed."""
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"
    RETRY = "retry"


@dataclass(frozen=True)
class ErrorPolicy:
    """The error keys of one connector."""

    policy: Policy = Policy.THROW
    max_retries: int = 20
    retry_interval_ms: int = 60_000
    """The longest wait between two attempts; waits grow exponentially up to it, with jitter."""
    tolerate_all: bool = False
    """`errors.tolerance=all`."""
    dead_letters: bool = False

    def decide(self, failure: Failure, attempts: int) -> Action:
        """What to do after attempt number `attempts` (from 1) of a record failed."""
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

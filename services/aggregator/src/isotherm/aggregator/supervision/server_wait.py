"""Waits for Kafka, the registry, the checkpoint or the right to write it until the service is to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from isotherm.aggregator.checkpoint.objects import CheckpointUnavailableError
from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.startup import wait_until_up

T = TypeVar("T")

_RETRIABLE = (CheckpointUnavailableError, BrokerError, RegistryUnavailableError, SchemaNotRegisteredError)

_POLL_S = 0.1
_ASK_S = 3.0
"""How often Kafka is asked who writes. Within this time after a start it is nothing to talk about."""

_log = logs.logger(__name__)


class StopRequestedError(Exception):
    """The service was asked to stop while it waited."""


class ServerWait:
    """Waits on behalf of the main loop. The service stays live while it waits here."""

    def __init__(self, stop: Stop, health: Health) -> None:
        self._stop = stop
        self._health = health

    def request_stop(self) -> None:
        """Let the service stop, as a signal does."""
        self._stop.set()

    def pause(self, seconds: float) -> None:
        """Wait. Raises StopRequestedError as soon as the service is to stop."""
        self._health.beat()
        if self._stop.wait(seconds):
            raise StopRequestedError
        self._health.beat()

    def until(self, part: str, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until the server that it needs answers; `part` is not ready meanwhile.

        Raises StopRequestedError, and every exception that does not mean that a server is unavailable.
        """
        # Well below the 30 s after which the liveness check counts a process as dead.
        backoff = Backoff(base_ms=500, cap_ms=10_000)
        result = wait_until_up(part, attempt, _RETRIABLE, health=self._health, stop=self._stop, backoff=backoff)
        if self._stop.is_set():
            raise StopRequestedError
        return cast(T, result)  # None stands for a stop only

    def for_lease(self, is_given: Callable[[], bool], reason: Callable[[], str]) -> None:
        """Wait until `is_given`; the checkpoint is not ready meanwhile, for the `reason`. Raises StopRequestedError."""
        self._health.not_ready("checkpoint", "Kafka has not yet decided who writes the checkpoint")
        turns, said = 0, ""
        while not is_given():
            self.pause(_POLL_S)
            turns += 1
            if turns % round(_ASK_S / _POLL_S) == 0 and (words := reason()) != said:
                said = words
                self._health.not_ready("checkpoint", words)
                _log.warning("this process does not write the checkpoint", reason=words)
        self._health.ready("checkpoint")

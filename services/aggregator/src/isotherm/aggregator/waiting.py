"""Waiting for servers: with back-off, honest in `/ready`, and given up only when the service is to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from isotherm.aggregator.checkpoint.folder import CheckpointHeldError
from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

T = TypeVar("T")

_PASSING = (CheckpointHeldError, BrokerError, RegistryUnavailableError, SchemaNotRegisteredError)


class StopRequested(Exception):
    """The service is to stop while it waits."""


class Waiting:
    """Waits on behalf of the main loop, which is live as long as it waits here."""

    def __init__(self, stop: Stop, health: Health) -> None:
        self._stop = stop
        self._health = health

    def pause(self, seconds: float) -> None:
        """Wait. Raises StopRequested as soon as the service is to stop."""
        self._health.beat()
        if self._stop.wait(seconds):
            raise StopRequested
        self._health.beat()

    def until(self, part: str, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until the server that it needs is there; `part` is not ready meanwhile.

        Raises StopRequested, and whatever does not pass by itself.
        """
        backoff = Backoff(base_ms=500, cap_ms=10_000)
        while True:
            try:
                result = attempt()
            except _PASSING as error:
                self._health.not_ready(part, str(error))
                _log.warning("waiting", part=part, reason=str(error))
            else:
                self._health.ready(part)
                return result
            self.pause(backoff.next_ms() / 1000)

"""Writes steps of commands to Kafka: once for what is about to be sent, again and again for what has happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from isotherm.connector.commands.records import STEPS, CommandStep
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 100.0, 10_000.0

Encode = Callable[[Mapping[str, Any]], bytes]
"""Encodes a CommandStep record for its topic."""


def now_ms() -> int:
    """Return the time in epoch milliseconds."""
    return int(time.time() * 1000)


class StepWriter:
    """Writes the steps of a service's process with `producer`, which is idempotent with acks=all, on the event loop."""

    def __init__(self, producer: LoopProducer, encode: Encode, *, service: str, worker: str) -> None:
        self._producer, self._encode = producer, encode
        self._service, self._worker = service, worker
        self._is_closed = False
        self._retries: set[asyncio.TimerHandle] = set()
        self._log_failed = SparseLog(_log, "steps of commands are not stored yet")

    @property
    def retries(self) -> int:
        """How many steps wait for their next attempt."""
        return len(self._retries)

    def step(self, device_id: str, command_id: str, step: str, qos: int, **more: Any) -> CommandStep:
        """Return a step of this process that is done now; `more` holds further fields of CommandStep."""
        return CommandStep(device_id, command_id, step, self._service, self._worker, now_ms(), qos, **more)

    def encoded(self, step: CommandStep) -> bytes:
        """Return the value of a step's record. Raises WireFormatError."""
        return self._encode(step.record())

    def write(self, step: CommandStep, on_decided: Callable[[bool], None]) -> None:
        """Write a step once, and call `on_decided` with whether Kafka has it: never before this returns."""

        def decide(error: KafkaError | None) -> None:
            if error is not None:
                self._log_failed(step=step.step, reason=error.str())
            on_decided(error is None)

        try:
            self._producer.produce(STEPS, key=step.device_id, value=self.encoded(step), on_delivery=decide)
        except (QueueFullError, KafkaException) as failure:
            self._log_failed(step=step.step, reason=str(failure) or "the producer is full")
            asyncio.get_running_loop().call_soon(on_decided, False)

    def insist(self, step: CommandStep, is_needed: Callable[[], bool]) -> None:
        """Write a step, and write it again while Kafka does not store it and `is_needed`."""
        backoff = Backoff(base_ms=_FIRST_PAUSE_MS, cap_ms=_MAX_PAUSE_MS)

        def attempt() -> None:
            self.write(step, decided)

        def decided(is_stored: bool) -> None:
            if is_stored or self._is_closed or not is_needed():
                return
            timer: asyncio.TimerHandle = asyncio.get_running_loop().call_later(
                backoff.next_ms() / 1000, lambda: again(timer)
            )
            self._retries.add(timer)

        def again(timer: asyncio.TimerHandle) -> None:
            self._retries.discard(timer)
            if is_needed():
                attempt()

        attempt()

    def close(self) -> None:
        """Write no step again."""
        self._is_closed = True
        for timer in self._retries:
            timer.cancel()
        self._retries.clear()

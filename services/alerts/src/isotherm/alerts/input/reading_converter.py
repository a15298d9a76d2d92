"""From a record of the input to a reading, or to a dead letter."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from confluent_kafka import Producer

from isotherm.alerts.engine.reading import Reading, RefusedReadingError
from isotherm.alerts.input.dead_letters import Origin, dead_letter_record
from isotherm.alerts.input.decoding import NoValueError, ReadingDecoder
from isotherm.alerts.metrics import Metrics
from isotherm.connector.errors.dead_letters import DeadLetterQueue, Headers
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    RegistryUnavailableError,
    SchemaRegistry,
    UnknownSchemaError,
    WireFormatError,
)
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)


class Record(Protocol):
    """One record of the input, as it came."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Kafka's time of it, epoch seconds."""
    key: Any
    value: Any
    headers: Any


class ReadingConverter:
    """Decodes readings. What is none goes to the dead-letter topic; a registry that is away is waited for."""

    def __init__(
        self, registry: SchemaRegistry, producer: Producer, topic: str, name: str, metrics: Metrics, health: Health
    ) -> None:
        self._decode = ReadingDecoder(registry)
        self._dead_letters = DeadLetterQueue(producer, topic)
        self._name, self._metrics, self._health = name, metrics, health

    async def reading(self, record: Record) -> Reading | None:
        """The reading in a record; None when it is a dead letter, which Kafka then has.

        Raises DeadLettersUnavailableError when Kafka does not take it.
        """
        self._metrics.read.inc()
        try:
            return await self._read(record.value, round(record.timestamp * 1000))
        except WireFormatError as error:
            await self.bury(record, error)
            return None

    async def _read(self, value: bytes | None, recorded_ms: int) -> Reading:
        if value is None or self._decode.knows(value):
            return self._decode(value, recorded_ms)
        # The registry is asked for a new id: not on the event loop.
        backoff = Backoff()
        while True:
            try:
                read = await asyncio.to_thread(self._decode, value, recorded_ms)
            except RegistryUnavailableError as error:
                self._health.not_ready("registry", str(error))
                _log.warning("waiting for the registry", reason=str(error))
                await asyncio.sleep(backoff.next_ms() / 1000)
            else:
                self._health.ready("registry")
                return read

    async def bury(self, record: Record, error: WireFormatError | RefusedReadingError) -> None:
        """Make a record a dead letter; when this returns, Kafka has it.

        Raises DeadLettersUnavailableError when Kafka does not take it.
        """
        headers = _headers(record.headers)
        origin = Origin(record.topic, record.partition, record.offset, record.key, record.value, headers)
        letter = dead_letter_record(origin, error, stage="VALUE_CONVERTER", name=self._name, class_name=f"{__name__}.ReadingConverter")
        await asyncio.to_thread(self._dead_letters.send, [letter])
        self._metrics.dead_lettered.labels(dead_letter_reason(error)).inc()
        _log.warning("dead letter", topic=record.topic, partition=record.partition, reason=str(error))


def dead_letter_reason(error: WireFormatError | RefusedReadingError) -> str:
    """Why a record is a dead letter, as it is counted."""
    if isinstance(error, RefusedReadingError):
        return error.reason
    if isinstance(error, NoValueError):
        return "no-value"
    return "unknown-schema" if isinstance(error, UnknownSchemaError) else "unreadable"


def _headers(headers: Any) -> Headers:
    """Headers as a list; Faust gives them as it got them, or as a mapping."""
    return list(headers.items()) if hasattr(headers, "items") else list(headers or [])

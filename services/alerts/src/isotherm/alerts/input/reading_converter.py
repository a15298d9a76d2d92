"""Converts records of the input to readings, or makes them dead-letter records."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from confluent_kafka import Producer

from isotherm.alerts.engine.reading import Reading, RejectedReadingError
from isotherm.alerts.input.dead_letters import SourceRecord, dead_letter_record
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
    """One record of the input as it was read."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def timestamp(self) -> float:
        """Kafka's timestamp, in epoch seconds."""

    @property
    def key(self) -> Any:
        """The key as it was read."""

    @property
    def value(self) -> Any:
        """The value as it was read."""

    @property
    def headers(self) -> Any:
        """The headers, as a list or a mapping."""


class ReadingConverter:
    """Decodes readings, sends undecodable records to the dead-letter topic, and waits while the registry is away."""

    def __init__(
        self, registry: SchemaRegistry, producer: Producer, topic: str, name: str, metrics: Metrics, health: Health
    ) -> None:
        self._decode = ReadingDecoder(registry)
        self._dead_letters = DeadLetterQueue(producer, topic)
        self._name, self._metrics, self._health = name, metrics, health

    @property
    def plain_schemas(self) -> set[int]:
        """The ids of the schemas met so far whose records the compiled code can read."""
        return self._decode.plain_schemas

    async def convert(self, record: Record) -> Reading | None:
        """Return the reading in a record; None when the record is a dead-letter record, which Kafka then has.

        Raises DeadLettersUnavailableError when Kafka does not accept the dead-letter record.
        """
        self._metrics.read.inc()
        try:
            return await self._read(record.value, round(record.timestamp * 1000))
        except WireFormatError as error:
            await self.dead_letter(record, error)
            return None

    async def _read(self, value: bytes | None, recorded_ms: int) -> Reading:
        if value is None or self._decode.knows(value):
            return self._decode(value, recorded_ms)
        # A new id needs a request to the registry, which must not block the event loop.
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

    async def dead_letter(self, record: Record, error: WireFormatError | RejectedReadingError) -> None:
        """Write a record to the dead-letter topic, and return when Kafka has it.

        Raises DeadLettersUnavailableError when Kafka does not accept it.
        """
        headers = _headers(record.headers)
        source = SourceRecord(record.topic, record.partition, record.offset, record.key, record.value, headers)
        class_name = f"{__name__}.{type(self).__name__}"
        dead = dead_letter_record(source, error, stage="VALUE_CONVERTER", name=self._name, class_name=class_name)
        await asyncio.to_thread(self._dead_letters.send, [dead])
        self._metrics.dead_lettered.labels(dead_letter_reason(error)).inc()
        _log.warning("dead-letter record", topic=record.topic, partition=record.partition, reason=str(error))


def dead_letter_reason(error: WireFormatError | RejectedReadingError) -> str:
    """Return the label under which a dead-letter record is counted."""
    if isinstance(error, RejectedReadingError):
        return error.reason
    if isinstance(error, NoValueError):
        return "no-value"
    return "unknown-schema" if isinstance(error, UnknownSchemaError) else "unreadable"


def _headers(headers: Any) -> Headers:
    """Return headers as a list; Faust gives them as a list or as a mapping."""
    return list(headers.items()) if hasattr(headers, "items") else list(headers or [])

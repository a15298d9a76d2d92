"""From a record of the input to a reading, or to a dead letter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from confluent_kafka import Producer

import isotherm_schemas
from alerts.metrics import Metrics
from alerts.reading import Reading, reading_of
from connector.dead_letters import DeadLetter, DeadLetters, dead_letter_headers
from servicekit import logs
from servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaRegistry,
    UnknownSchemaError,
    WireFormatError,
    split,
)
from servicekit.backoff import Backoff
from servicekit.health import Health

READER = isotherm_schemas.schema("SensorReading", 1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_log = logs.logger(__name__)


class Record(Protocol):
    """One record of the input, as it came."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: Any


class NoValueError(WireFormatError):
    """The record has no value: a topic of readings has nothing to delete."""


class Intake:
    """Decodes readings. What is none goes to the dead-letter topic; a registry that is away is waited for."""

    def __init__(
        self, registry: SchemaRegistry, producer: Producer, topic: str, name: str, metrics: Metrics, health: Health
    ) -> None:
        self._decode = Decoder(registry, READER)
        self._dead_letters = DeadLetters(producer, topic)
        self._name, self._metrics, self._health = name, metrics, health
        self._known_ids: set[int] = set()

    async def reading(self, record: Record) -> Reading | None:
        """The reading in a record; None when it is a dead letter, which Kafka then has.

        Raises DeadLettersUnavailableError when Kafka does not take it.
        """
        self._metrics.read.inc()
        try:
            return await self._read(record.value)
        except WireFormatError as error:
            await self._bury(record, error)
            return None

    async def _read(self, value: bytes | None) -> Reading:
        if value is None:
            raise NoValueError("the record has no value")
        schema_id = split(value)
        if schema_id in self._known_ids:
            return _reading(self._decode(value).record)
        # The registry is asked for a new id: not on the event loop.
        backoff = Backoff()
        while True:
            try:
                read = _reading((await asyncio.to_thread(self._decode, value)).record)
            except RegistryUnavailableError as error:
                self._health.not_ready("registry", str(error))
                _log.warning("waiting for the registry", reason=str(error))
                await asyncio.sleep(backoff.next_ms() / 1000)
            else:
                self._known_ids.add(schema_id)
                self._health.ready("registry")
                return read

    async def _bury(self, record: Record, error: WireFormatError) -> None:
        headers = dead_letter_headers(
            error,
            stage="VALUE_CONVERTER",
            connector=self._name,
            class_name=f"{__name__}.Intake",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            original=_headers(record.headers),
        )
        await asyncio.to_thread(self._dead_letters.send, [DeadLetter(record.key, record.value, headers)])
        self._metrics.dead_lettered.labels(_reason(error)).inc()
        _log.warning("dead letter", topic=record.topic, partition=record.partition, reason=str(error))


def _reason(error: WireFormatError) -> str:
    if isinstance(error, NoValueError):
        return "no-value"
    return "unknown-schema" if isinstance(error, UnknownSchemaError) else "unreadable"


def _headers(headers: Any) -> list[tuple[str, bytes | str | None]]:
    """Headers as a list; Faust gives them as it got them, or as a mapping."""
    return list(headers.items()) if hasattr(headers, "items") else list(headers or [])


def _reading(record: dict[str, Any]) -> Reading:
    times = {name: (record[name] - _EPOCH) // _MILLISECOND for name in ("event_time", "ingest_time")}
    return reading_of(record | times)

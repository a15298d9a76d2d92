"""A record that is no reading becomes a dead-letter record with its bytes and the reason, and is counted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.alerts.input.decoding import READER
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.metrics import Metrics
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.servicekit.avro import (
    UnknownSchemaError,
    WriterSchema,
    encoder,
    parse,
)
from isotherm.servicekit.health import Health

READING = {"device_id": "d", "metric": "m", "value": 1.0, "unit": "Cel", "event_time": 5, "ingest_time": 6}


class Registry:
    """A registry with one schema."""

    def schema(self, schema_id: int) -> WriterSchema:
        if schema_id != 7:
            raise UnknownSchemaError(schema_id)
        return WriterSchema(7, READER, parse(READER))


class Producer:
    """A Kafka that acknowledges everything at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes | None, bytes | None, dict[str, Any]]] = []

    def produce(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, Any]],
        on_delivery: Callable[[object, object], None],
        timestamp: int,
    ) -> None:
        self.sent.append((key, value, dict(headers)))
        on_delivery(None, None)

    def poll(self, timeout: float) -> None:
        """Everything is delivered."""


def converter_of(producer: Producer, metrics: Metrics) -> ReadingConverter:
    registry: Any = Registry()
    kafka: Any = producer
    return ReadingConverter(registry, kafka, "dead", "alerts", metrics, Health())


def record_of(value: bytes | None) -> Any:
    return SimpleNamespace(
        topic="in", partition=2, offset=3, timestamp=1.5, key=b"d", value=value, headers=[("from", b"a device")]
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no-value"),
        (b"", "unreadable"),
        (b"no frame", "unreadable"),
        (b"\x00\x00\x00\x00\x07rest", "unreadable"),
        (b"\x00\x00\x00\x0f\x12rest", "unknown-schema"),
    ],
)
async def test_poison_is_made_a_dead_letter(value: bytes | None, reason: str) -> None:
    producer, metrics = Producer(), Metrics()
    assert await converter_of(producer, metrics).convert(record_of(value)) is None
    ((key, sent, headers),) = producer.sent
    assert (key, sent, headers["from"]) == (b"d", value, b"a device")
    assert (headers[f"{PREFIX}topic"], headers[f"{PREFIX}offset"]) == (b"in", b"3")
    assert metrics.registry.get_sample_value("isotherm_alerts_dead_letters_total", {"reason": reason}) == 1


async def test_a_reading_is_read_whether_its_schema_is_known_or_not() -> None:
    producer, metrics = Producer(), Metrics()
    converter = converter_of(producer, metrics)
    value = encoder(READER, 7)({**READING, "sequence": 3, "attributes": {}})
    first, second = await converter.convert(record_of(value)), await converter.convert(record_of(value))
    assert first == second
    assert first is not None
    assert (first.event_time_ms, first.ingest_time_ms, first.sequence) == (5, 6, 3)
    assert producer.sent == []

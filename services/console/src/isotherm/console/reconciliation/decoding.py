"""Decodes readings and windows for reconciliation: millions of readings, of which few fields count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message

from isotherm.console.devices import windows as window_topic
from isotherm.console.reconciliation.readings import StoredReading, WindowRow
from isotherm.console.trace import model
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.flatavro.reading import FALLBACK_ERRORS, Read, flat_reader, times_as_numbers
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import Decoder, JsonSchema, SchemaRegistry, WireFormatError, split

_HEADER_BYTES = 5
_FIELDS = frozenset(("device_id", "metric", "value", "event_time", "ingest_time", "sequence"))


class RecordDecoder:
    """Decodes records of the followed topics; every method raises WireFormatError and RegistryUnavailableError."""

    def __init__(self, schemas: SchemaRegistry) -> None:
        self._schemas = schemas
        self._reading, self._window = Decoder(schemas, model.SCHEMA), Decoder(schemas, window_topic.SCHEMA)
        self._fast: dict[int, Read | None] = {}

    def reading(self, value: bytes) -> Mapping[str, Any]:
        """Decode a SensorReading record; its times are numbers or datetimes."""
        schema_id = split(value)
        if schema_id not in self._fast:
            self._fast[schema_id] = _fast_reader(self._schemas.schema(schema_id).json)
        read = self._fast[schema_id]
        if read is not None:
            try:
                return read(value)
            except FALLBACK_ERRORS:
                pass
        return self.complete_reading(value)

    def complete_reading(self, value: bytes) -> Mapping[str, Any]:
        """Decode all fields of a SensorReading record; its times are datetimes."""
        record: Mapping[str, Any] = self._reading(value).record
        return record

    def row(self, message: Message) -> WindowRow:
        """Decode a TemperatureAggregate record."""
        record = self._window(value_of(message)).record
        return WindowRow(
            (record["device_id"], record["metric"]),
            epoch_ms(record["window_start"]),
            epoch_ms(record["window_end"]),
            record["revision"],
            record["count"],
            record["sum"],
            record["mean"],
            record["min"],
            record["max"],
            place_of(message),
        )


def stored_reading(record: Mapping[str, Any], place: TopicPartitionOffset) -> StoredReading:
    """Return a decoded reading with its place."""
    return StoredReading(
        (record["device_id"], record["metric"]),
        epoch_ms(record["event_time"]),
        record["sequence"],
        record["value"],
        epoch_ms(record["ingest_time"]),
        place,
    )


def value_of(message: Message) -> bytes:
    """Return a message's value. Raises WireFormatError for a tombstone."""
    value = message.value()
    if not isinstance(value, bytes):
        raise WireFormatError("the record has no value")
    return value


def place_of(message: Message) -> TopicPartitionOffset:
    """Return where a message is in Kafka."""
    return TopicPartitionOffset(message.topic() or "", message.partition() or 0, message.offset() or 0)


def _fast_reader(schema: JsonSchema) -> Read | None:
    """Return a compiled reader for schemas that have all the fields under these names."""
    fields = {field["name"] for field in schema.get("fields", ())}
    return flat_reader(times_as_numbers(schema), _HEADER_BYTES) if fields >= _FIELDS else None

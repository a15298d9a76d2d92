"""Decodes records of the input, readings and aggregates, to readings."""

from __future__ import annotations

from typing import Any

import isotherm.schemas
from isotherm.alerts.engine.reading import Reading, reading_of, reading_of_window
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import (
    Decoder,
    SchemaRegistry,
    WireFormatError,
    split,
)

READER = isotherm.schemas.schema("SensorReading", 1)
WINDOW_READER = isotherm.schemas.schema("TemperatureAggregate", 1)


class NoValueError(WireFormatError):
    """The record has no value. A topic of readings has no tombstones."""


class ReadingDecoder:
    """Decodes SensorReading and TemperatureAggregate records, told apart by the name of their writer schema."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._readings, self._windows = Decoder(registry, READER), Decoder(registry, WINDOW_READER)
        self._is_window: dict[int, bool] = {}
        self.plain_schemas: set[int] = set()
        """The ids of the writer schemas met so far whose fields are exactly those of SensorReading."""

    def knows(self, value: bytes) -> bool:
        """Return whether `value` can be decoded without asking the registry. Raises WireFormatError."""
        return split(value) in self._is_window

    def __call__(self, value: bytes | None, recorded_ms: int) -> Reading:
        """Return the reading in a record. `recorded_ms` is the record's timestamp: the ingest time of an aggregate.

        Raises WireFormatError (NoValueError and UnknownSchemaError among them) and RegistryUnavailableError.
        """
        if value is None:
            raise NoValueError("the record has no value")
        schema_id = split(value)
        is_window = self._is_window.get(schema_id)
        if is_window is None:
            is_window = _name(self._registry.schema(schema_id).json) == _name(WINDOW_READER)
        if is_window:
            record = self._windows(value).record
            reading = reading_of_window(record | {"window_end": epoch_ms(record["window_end"])}, recorded_ms)
        else:
            record = self._readings(value).record
            reading = reading_of(record | {name: epoch_ms(record[name]) for name in ("event_time", "ingest_time")})
        if schema_id not in self._is_window:
            self._is_window[schema_id] = is_window
            if _fields(self._registry.schema(schema_id).json) == _fields(READER):
                self.plain_schemas.add(schema_id)
        return reading


def _fields(schema: Any) -> Any:
    """Return names and types of the fields of a record schema, which decide how its data are written."""
    return [(field["name"], field["type"]) for field in schema["fields"]]


def _name(schema: Any) -> str | None:
    """Return the full name of a record schema; None for any other schema."""
    if not isinstance(schema, dict) or "name" not in schema:
        return None
    name = str(schema["name"])
    return f"{schema['namespace']}.{name}" if "." not in name and schema.get("namespace") else name

"""Batches of flat records, projected with the compiled reader and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isotherm import kcql
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.hotpath import column_reader
from isotherm.persisters.records.decoding import AvroDecoder, key_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.servicekit.avro import SchemaRegistry, WriterSchema, encoder, parse
from isotherm.servicekit.settings import RegistrySettings

SCHEMA_ID = 7
FIXED = [
    {"name": "device", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
SELECT = "INSERT INTO lake SELECT * FROM t"


TYPES: Mapping[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "map": {"type": "map", "values": "string"},
    "time": {"type": "long", "logicalType": "timestamp-millis"},
    "maybe int": ["null", "int"],
    "maybe boolean": ["null", "boolean"],
    "maybe text": ["string", "null"],
    "maybe double": ["null", "double"],
}
"""Types of fields that have columns."""


class OneSchema(SchemaRegistry):
    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(RegistrySettings())
        self._one = WriterSchema(SCHEMA_ID, schema, parse(schema))

    def schema(self, schema_id: int) -> Any:
        assert schema_id == SCHEMA_ID
        return self._one


def schema_of(kinds: Sequence[str], **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": TYPES[kind]} for number, kind in enumerate(kinds)]
    declared = {"isotherm.identity": ["device", "at"], "isotherm.event_time": "at", **more}
    return {"type": "record", "name": "R", "fields": [*FIXED, *fields], **declared}


class Both:
    """A projection with the compiled reader, and one without it."""

    def __init__(self, schema: dict[str, Any], statement: str = SELECT) -> None:
        self.encode = encoder(schema, SCHEMA_ID)
        self._projectors = []
        for read in (column_reader(), None):
            registry = OneSchema(schema)
            decode = AvroDecoder(registry)
            key = key_decoder("auto", registry)
            self._projectors.append(Projector(kcql.parse(statement), decode, key, read_columns=read))

    def rows(self, values: Sequence[bytes | None]) -> tuple[Sequence[Row] | None, list[Row] | None]:
        """The rows of a batch; by the general path None if one of its records is bad."""
        records = [Record("t", 3, 2 * number, 1, None, value, ()) for number, value in enumerate(values)]
        compiled, general = self._projectors
        made = [general(record) for record in records]
        compiled(records[0])
        batch = compiled.try_project_batch(records)
        failed = any(one.failed is not None for one in made)
        return batch, None if failed else [row for one in made for row in one.rows]

"""Arrow types from Avro types, and how values of rows become values of these types. Pure.

Sources: Avro specification, "Logical Types"; pyarrow's `array`, which takes whole numbers for times of their unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from isotherm.persisters.records.documents import to_json

_MOST_DIGITS = 38
"""Of a decimal: what Arrow's decimal128 and Iceberg hold."""
_SIMPLE: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}

Convert = Callable[[Any], Any]


class ColumnType(NamedTuple):
    """The Arrow type of a column, and what has to be done with its values first."""

    arrow: pa.DataType
    convert: Convert | None = None
    """Converts a value that is not null; None if values are taken as they are."""
    stored: pa.DataType | None = None
    """The type in the archive, if it is another one."""

    def converted(self, value: Any) -> Any:
        """Return a value as Arrow takes it."""
        return value if value is None or self.convert is None else self.convert(value)


def column_type(avro: Any) -> ColumnType:
    """Return the Arrow type for values of an Avro type; a union of several types becomes JSON text."""
    if isinstance(avro, list):
        branches = [branch for branch in avro if branch != "null"]
        return column_type(branches[0]) if len(branches) == 1 else _JSON
    if isinstance(avro, str):
        known = _SIMPLE.get(avro)
        return _JSON if known is None else ColumnType(known)
    kind, logical = avro["type"], avro.get("logicalType", "")
    if logical == "decimal" and int(avro["precision"]) <= _MOST_DIGITS:
        return ColumnType(pa.decimal128(int(avro["precision"]), int(avro.get("scale", 0))))
    if logical in ("decimal", "uuid"):
        return ColumnType(pa.string(), str)
    if logical == "time-millis":
        # Iceberg and DuckDB know microseconds only.
        return ColumnType(pa.time64("us"), _micros_of_millis)
    if logical in _LOGICAL:
        return ColumnType(_LOGICAL[logical])
    if kind == "fixed":
        return ColumnType(pa.binary(int(avro["size"])))
    if kind == "array":
        return _list(column_type(avro["items"]))
    if kind == "map":
        return _map(column_type(avro["values"]))
    if kind in ("record", "error"):
        return _struct({field["name"]: column_type(field["type"]) for field in avro["fields"]})
    return column_type(kind)


def _json(value: Any) -> str:
    return to_json(value).decode()


_JSON = ColumnType(pa.string(), _json)


def _micros_of_millis(value: Any) -> Any:
    """Return a time of day that Avro gives as milliseconds as microseconds; another one as it is."""
    return value * 1_000 if isinstance(value, int) else value


def _list(items: ColumnType) -> ColumnType:
    of_items = items.convert
    convert = None if of_items is None else lambda value: [items.converted(one) for one in value]
    return ColumnType(pa.list_(items.arrow), convert)


def _map(values: ColumnType) -> ColumnType:
    of_values = values.convert
    convert = None if of_values is None else lambda value: {key: values.converted(one) for key, one in value.items()}
    return ColumnType(pa.map_(pa.string(), values.arrow), convert)


def _struct(fields: Mapping[str, ColumnType]) -> ColumnType:
    if not fields:
        # Parquet has no group without fields.
        return _JSON
    arrow = pa.struct([(name, field.arrow) for name, field in fields.items()])
    if all(field.convert is None for field in fields.values()):
        return ColumnType(arrow)
    return ColumnType(arrow, lambda value: {name: field.converted(value.get(name)) for name, field in fields.items()})

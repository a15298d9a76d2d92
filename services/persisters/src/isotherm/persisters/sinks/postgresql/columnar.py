"""Columns of flat records as binary COPY, without a look at any of their values. Pure. See docs/adr/0251."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.hotpath import TIMESTAMP_MS, BinaryRows, Kind
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.sql import Table

_BINARY: Mapping[tuple[Kind, str], int] = {
    (Kind.BOOLEAN, "boolean"): Kind.BOOLEAN,
    (Kind.INT, "integer"): Kind.INT,
    (Kind.LONG, "bigint"): Kind.LONG,
    (Kind.LONG, sql.TIMESTAMP): TIMESTAMP_MS,
    (Kind.FLOAT, "real"): Kind.FLOAT,
    (Kind.DOUBLE, "double precision"): Kind.DOUBLE,
    (Kind.STRING, "text"): Kind.STRING,
    (Kind.BYTES, "bytea"): Kind.BYTES,
    (Kind.TEXT_MAP, "jsonb"): Kind.TEXT_MAP,
}
"""How values of a kind are written for a column of a type: as the general way writes them for the same type."""
_TEXT_MAP = {"type": "map", "values": "string"}


def binary_copy(rows: ColumnarRows, table: Table, write: BinaryRows) -> bytes | None:
    """Return what COPY ... WITH (FORMAT binary) takes for the rows, in the order of their columns.

    None if the general way has to look at them: a column of another type, a table whose key is not in the record or
    whose partitions are made for each row, or a value that the type does not have.
    """
    is_simple = table.takes_copy and table.day_column is None and rows.columns.keys() >= set(table.key)
    if not is_simple:
        return None
    kinds = []
    for name in rows.columns:
        kind = _BINARY.get((rows.kinds[name], table.columns.get(name, "")))
        if kind is None or not _is_plain(rows.plan.columns.get(name)):
            return None
        kinds.append(kind)
    return write(kinds, list(rows.columns.values()), len(rows))


def _is_plain(avro: Any) -> bool:
    """Whether values of a type have no logical type but that of milliseconds."""
    if isinstance(avro, list):
        return all(map(_is_plain, avro))
    if isinstance(avro, str):
        return True
    return avro == _TEXT_MAP or (
        isinstance(avro, Mapping) and avro.get("logicalType", "timestamp-millis") == "timestamp-millis"
    )

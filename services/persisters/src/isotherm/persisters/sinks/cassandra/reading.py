"""Reads rows back, and compares them with what was bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cassandra.query import UNSET_VALUE, PreparedStatement

from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.sinks.cassandra import cells, cql
from isotherm.persisters.sinks.cassandra.binding import WRITE_TIME_FIELD, Binder, ttl_s
from isotherm.persisters.sinks.replacement import another_row, written_columns

_SOURCE = "read back"
"""No partition, so that what is remembered of the writes of partitions stays as it is."""
_PLAIN = (str, int, float, bool, type(None))


class RowReader:
    """Reads rows of one session; it prepares a statement for each table once."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._prepared: dict[str, PreparedStatement] = {}

    def read_back(self, binder: Binder, row: Row) -> StoredRow:
        """Look a row up in its table. Raises as `Binder.bind`, and the driver's errors."""
        bound, table = binder.bind(0, row, _SOURCE).statement.values, binder.table
        names = list(table.columns)
        # A deletion begins with its write time.
        key = bound[1:] if row.values is None else [bound[names.index(column)] for column in table.primary_key]
        found = self._session.execute(cells.Serialized(self._select(table), list(key))).one()
        if found is None:
            return StoredRow(Finding.SAME) if row.values is None else StoredRow(Finding.ABSENT, text=_expiry(row))
        if row.values is None:
            return StoredRow(Finding.DIFFERENT)
        stored = dict(zip(names, found, strict=True))
        if _is_same(binder, bound, stored, self._session.cluster.protocol_version):
            return StoredRow(Finding.SAME, _shown(written_columns(row, stored)))
        if (row.values or {}).get(WRITE_TIME_FIELD) is not None:
            text = f"{WRITE_TIME_FIELD} decides which row stays"
            return StoredRow(Finding.UNREADABLE, _shown(written_columns(row, stored)), text)
        another = another_row(row, stored)
        return another._replace(values=_shown(another.values))

    def _select(self, table: cql.Table) -> PreparedStatement:
        text = cql.select(table)
        if text not in self._prepared:
            self._prepared[text] = self._session.prepare(text)
        return self._prepared[text]


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, _PLAIN) else str(value) for name, value in values.items()}


def _is_same(binder: Binder, bound: Sequence[Any], stored: Mapping[str, Any], protocol_version: int) -> bool:
    """Compare the columns that the row writes, each as the driver reads it."""
    for value, type_, cell in zip(stored.values(), binder.column_types, bound, strict=False):
        if cell is UNSET_VALUE:
            continue
        written = None if cell is None else type_.from_binary(cell, protocol_version)
        # A number that is none does not equal itself, and CQL keeps a collection without elements as a null.
        is_equal = written == value or repr(written) == repr(value) or (_is_empty(written) and _is_empty(value))
        if not is_equal:
            return False
    return True


def _is_empty(value: Any) -> bool:
    return value is None or (not isinstance(value, _PLAIN) and hasattr(value, "__len__") and not len(value))


def _expiry(row: Row) -> str:
    lifetime_s = ttl_s(row)
    is_over = lifetime_s is not None and row.event_time_ms / 1000 + lifetime_s <= time.time()
    return f"its time to live of {lifetime_s} s is over" if is_over else ""

"""Rows of one table as bound statements: every value in its column, the write time, the time to live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement

from persisters.sink import Row
from persisters.sinks import cells, cql

TTL_FIELD, WRITE_TIME_FIELD = "message_internal_ttl", "message_internal_timestamp"
NO_COLUMNS = (TTL_FIELD, WRITE_TIME_FIELD)
"""Fields that are no columns: what is selected under these names is the row's TTL (s) and its write time (us)."""

_US_PER_MS = 1_000
_HEADER_BYTES = 100
"""About what a statement costs in a batch besides its values."""
_MOST_LAYOUTS = 1_000


class Write(NamedTuple):
    """One row, bound, and its place in the batch."""

    place: int
    statement: BoundStatement
    partition: tuple[Any, ...]
    """The statement and the cells of the partition key: what has the same may go together."""
    size_bytes: int


class Binder:
    """Binds the rows of one table."""

    def __init__(
        self,
        table: cql.Table,
        *,
        insert: PreparedStatement,
        insert_with_ttl: PreparedStatement,
        delete: PreparedStatement,
    ) -> None:
        """The statements as `cql.insert` and `cql.delete` word them."""
        self._table = table
        self._insert = insert
        self._insert_with_ttl = insert_with_ttl
        self._delete = delete
        names = list(table.columns)
        self._partition = [names.index(column) for column in table.partition_key]
        self._converters = {
            column: convert for column, type_ in table.columns.items() if (convert := cql.converter(type_)) is not None
        }
        self._layouts: dict[tuple[str, ...], cells.Layout | None] = {}
        """By the names of a row's fields; None where the driver binds."""

    def bind(self, place: int, row: Row) -> Write:
        """Bind a row.

        Raises cql.NotAColumnError and, for values of other types, ValueError, TypeError, OverflowError.
        """
        if row.values is None:
            # Behind the write time comes the primary key, which begins with the partition's.
            return _write(place, self._deletion(row), range(1, 1 + len(self._partition)))
        statement = self._serialized(row, row.values) or self._bound(row, row.values)
        return _write(place, statement, self._partition)

    def _deletion(self, row: Row) -> BoundStatement:
        key = self._table.primary_key
        if len(row.pk) != len(key):
            raise cql.NotAColumnError(f"PK has {len(row.pk)} parts, {self._table.qualified} has {key}")
        return self._delete.bind((row.event_time_ms * _US_PER_MS + _US_PER_MS - 1, *row.pk))

    def _serialized(self, row: Row, values: dict[str, Any]) -> BoundStatement | None:
        """The row with its values serialized here; None when the driver has to do that."""
        names = tuple(values)
        if names not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[names] = self._layout(names)
        layout = self._layouts[names]
        if layout is None:
            return None
        try:
            found = layout.cells(values, _absent(row))
            found.append(cells.pack_long(write_time_us(row)))
            left_s = _left_s(row)
            if left_s is None:
                return cells.Serialized(self._insert, found)
            found.append(cells.pack_int(left_s))
            return cells.Serialized(self._insert_with_ttl, found)
        except cells.UNUSUAL:
            return None

    def _layout(self, names: tuple[str, ...]) -> cells.Layout | None:
        try:
            fields = {cql.column_of(self._table, field): field for field in names}
        except cql.NotAColumnError:
            return None
        is_plain = len(fields) == len(names) and not set(NO_COLUMNS) & set(names)
        return cells.layout(self._table.columns, self._table.primary_key, fields) if is_plain else None

    def _bound(self, row: Row, values: dict[str, Any]) -> BoundStatement:
        absent = _absent(row)
        bound: dict[str, Any] = dict.fromkeys(self._table.columns, UNSET_VALUE)
        for field, value in values.items():
            if field in NO_COLUMNS:
                continue
            column = cql.column_of(self._table, field)
            convert = self._converters.get(column)
            bound[column] = absent if value is None else value if convert is None else convert(value)
        for column in self._table.primary_key:
            if bound[column] is None or bound[column] is UNSET_VALUE:
                raise cql.NotAColumnError(
                    f"no value for {column!r}, a part of the primary key of {self._table.qualified}"
                )
        left_s = _left_s(row)
        if left_s is None:
            return self._insert.bind((*bound.values(), write_time_us(row)))
        return self._insert_with_ttl.bind((*bound.values(), write_time_us(row), left_s))


def _write(place: int, statement: BoundStatement, partition: Sequence[int]) -> Write:
    values = statement.values
    size_bytes = _HEADER_BYTES + cells.size_bytes(values)
    return Write(
        place, statement, (statement.prepared_statement.query_id, *[values[each] for each in partition]), size_bytes
    )


def _absent(row: Row) -> Any:
    # A null of a revisioned record is data: it must hide what a lower revision wrote there.
    return UNSET_VALUE if row.revision is None else None


def write_time_us(row: Row) -> int:
    """CQL's write time: the field for it, else the revision, else the event time with the offset as its microseconds.

    Of two records of the same millisecond the later one in the topic wins, also when they are read again.

    Raises ValueError for a field that holds no whole number.
    """
    given = _number(row, WRITE_TIME_FIELD)
    if given is not None:
        return given
    if row.revision is not None:
        return row.revision * _US_PER_MS
    return row.event_time_ms * _US_PER_MS + row.offset % _US_PER_MS


def ttl_s(row: Row) -> int | None:
    """How long the row lives from its event time on: as its field says, else as TTL does; None for ever.

    Raises ValueError for a field that holds no whole number from 1 on.
    """
    given = _number(row, TTL_FIELD)
    if given is not None and given < 1:
        raise ValueError(f"{TTL_FIELD}: {given} is not allowed; expected seconds from 1 on")
    return row.plan.statement.ttl if given is None else given


def _left_s(row: Row) -> int | None:
    lifetime_s = ttl_s(row)
    return None if lifetime_s is None else max(1, row.event_time_ms // 1000 + lifetime_s - int(time.time()))


def _number(row: Row, field: str) -> int | None:
    value = (row.values or {}).get(field)
    if value is not None and type(value) is not int:
        raise ValueError(f"{field}: {value!r} is not allowed; expected a whole number")
    return value

"""Rows of one table as bound statements: every value in its column, the write time, the time to live."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement

from isotherm.kcql.model import Statement
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.api.statements import null_behaviour, pk_names
from isotherm.persisters.records.decoding import BAD_RECORD
from isotherm.persisters.sinks.cassandra import cells, cql
from isotherm.persisters.sinks.cassandra.write_times import WriteTimes

TTL_FIELD, WRITE_TIME_FIELD = "message_internal_ttl", "message_internal_timestamp"
NULL_TO_UNSET = "nullToUnset"
"""Statement property of stream-reactor's sink: whether a null leaves its column as it is."""
NO_COLUMNS = (TTL_FIELD, WRITE_TIME_FIELD)
"""Fields that are no columns: what is selected under these names is the row's TTL (s) and its write time (us)."""

_BY_RECORD = object()
"""Stands for the choice between null and unset that each record makes."""
_US_PER_MS = 1_000
_HEADER_BYTES = 100
"""About how many bytes a statement takes in a batch beside its values."""
_MOST_LAYOUTS = 1_000


class Write(NamedTuple):
    """One bound row and its index in the batch."""

    row_index: int
    statement: BoundStatement
    partition: tuple[Any, ...]
    """The statement and the cells of the partition key: rows with equal ones may go into one request."""
    size_bytes: int
    binder: Binder
    """What bound the row: it knows the row's table."""


class Binder:
    """Binds the rows of one table."""

    def __init__(
        self,
        table: cql.Table,
        *,
        insert: PreparedStatement,
        insert_with_ttl: PreparedStatement,
        delete: PreparedStatement,
        times: WriteTimes,
        nulls: str = "",
    ) -> None:
        """The statements are prepared from the texts of `cql.insert` and `cql.delete`.

        `nulls` is `NULL` or `UNSET`, what a null does unless the statement says it; empty lets the record decide.
        """
        self._nulls = nulls.upper()
        self._absents: dict[Plan, Any] = {}
        """What stands for a null in the rows of a plan."""
        self.table = table
        self._name = table.qualified
        self._insert = insert
        self._insert_with_ttl = insert_with_ttl
        self._delete = delete
        self._times = times
        names = list(table.columns)
        self._partition = [names.index(column) for column in table.partition_key]
        self._key_of = cells.all_of([names.index(column) for column in table.primary_key])
        self._time_place = len(names)
        self._converters = {
            column: convert for column, type_ in table.columns.items() if (convert := cql.converter(type_)) is not None
        }
        self._layouts: dict[tuple[str, ...], cells.Layout | None] = {}
        """By the names of a row's fields; None if the driver binds such rows."""
        self._key_orders: dict[Plan, Sequence[int]] = {}

    @property
    def column_types(self) -> Sequence[Any]:
        """The driver's types of the table's columns, in order."""
        return [column.type for column in self._insert.column_metadata[: len(self.table.columns)]]

    def check(self, statement: Statement) -> None:
        """Raise SinkConfigError if the statement's deletes cannot name a row of the table."""
        if statement.primary_key and null_behaviour(statement) == "DELETE":
            try:
                key_order(self.table, statement)
            except cql.NotAColumnError as error:
                raise SinkConfigError(f"{error} (in {statement.text!r})") from error

    def bind(self, row_index: int, row: Row, source: Hashable = None) -> Write:
        """Bind a row that comes from the partition `source`; `row_index` is its index in the batch.

        Raises cql.NotAColumnError and, for values of wrong types, ValueError, TypeError, OverflowError.
        """
        values, time_us = row.values, write_time_us(row)
        partition: Sequence[int]
        if values is None:
            statement = self._deletion(row, time_us)
            # The primary key, which begins with the partition key, follows the write time.
            time_place, partition = 0, range(1, 1 + len(self._partition))
        else:
            statement = self._serialized(row, values, time_us) or self._bound(row, values, time_us)
            time_place, partition = self._time_place, self._partition
        if row.revision is None and (values is None or values.get(WRITE_TIME_FIELD) is None):
            bound = statement.values
            key = (source, self._name, *(bound[1:] if values is None else self._key_of(bound)))
            settled_us = self._times.behind_earlier(key, row.event_time_ms, row.offset, time_us)
            if settled_us != time_us:
                bound[time_place] = cells.pack_long(settled_us)
        return self._write(row_index, statement, partition)

    def _write(self, row_index: int, statement: BoundStatement, partition: Sequence[int]) -> Write:
        values = statement.values
        size_bytes = _HEADER_BYTES + cells.size_bytes(values)
        together = (statement.prepared_statement.query_id, *[values[each] for each in partition])
        return Write(row_index, statement, together, size_bytes, self)

    def _deletion(self, row: Row, time_us: int) -> BoundStatement:
        order = self._key_orders.get(row.plan)
        if order is None:
            order = self._key_orders[row.plan] = key_order(self.table, row.plan.statement)
        key = zip(self.table.primary_key, order, strict=True)
        values = [self._converted(column, row.pk[place]) for column, place in key]
        return _by_driver(self._delete, [time_us, *values])

    def _converted(self, column: str, value: Any) -> Any:
        convert = self._converters.get(column)
        return value if value is None or convert is None else convert(value)

    def _serialized(self, row: Row, values: dict[str, Any], time_us: int) -> BoundStatement | None:
        """Return the row with its values serialized by `cells`; None if the driver has to do that."""
        names = tuple(values)
        if names not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[names] = self._layout(names)
        layout = self._layouts[names]
        if layout is None:
            return None
        try:
            found = layout.cells(values, self._absent(row))
            found.append(cells.pack_long(time_us))
            left_s = _left_s(row)
            if left_s is None:
                return cells.Serialized(self._insert, found)
            found.append(cells.pack_int(left_s))
            return cells.Serialized(self._insert_with_ttl, found)
        except cells.FALLBACK_ERRORS:
            return None

    def _absent(self, row: Row) -> Any:
        if row.plan not in self._absents:
            unset = _null_to_unset(row.plan.statement) or {"UNSET": "true", "NULL": "false"}.get(self._nulls)
            self._absents[row.plan] = {"true": UNSET_VALUE, "false": None}.get(unset or "", _BY_RECORD)
        absent = self._absents[row.plan]
        if absent is _BY_RECORD:
            # A null of a record with a revision is data: it must hide what a lower revision wrote there.
            return UNSET_VALUE if row.revision is None else None
        return absent

    def _layout(self, names: tuple[str, ...]) -> cells.Layout | None:
        try:
            fields = {cql.column_of(self.table, field): field for field in names}
        except cql.NotAColumnError:
            return None
        is_plain = len(fields) == len(names) and not set(NO_COLUMNS) & set(names)
        return cells.layout(self.table.columns, self.table.primary_key, fields) if is_plain else None

    def _bound(self, row: Row, values: dict[str, Any], time_us: int) -> BoundStatement:
        absent = self._absent(row)
        bound: dict[str, Any] = dict.fromkeys(self.table.columns, UNSET_VALUE)
        for field, value in values.items():
            if field in NO_COLUMNS:
                continue
            column = cql.column_of(self.table, field)
            bound[column] = absent if value is None else self._converted(column, value)
        for column in self.table.primary_key:
            if bound[column] is None or bound[column] is UNSET_VALUE:
                raise cql.NotAColumnError(
                    f"no value for {column!r}, a part of the primary key of {self.table.qualified}"
                )
        left_s = _left_s(row)
        if left_s is None:
            return _by_driver(self._insert, [*bound.values(), time_us])
        return _by_driver(self._insert_with_ttl, [*bound.values(), time_us, left_s])


def key_order(table: cql.Table, statement: Statement) -> Sequence[int]:
    """Return for each column of the primary key the index of the PK path that holds its value in a delete.

    It is the path with the column's name, in lower case if necessary; by position only if no path has the name of any
    key column.

    Raises cql.NotAColumnError if there are more or fewer paths than columns, or only some have a column's name.
    """
    names, key = pk_names(statement), table.primary_key
    if len(names) != len(key):
        raise cql.NotAColumnError(f"PK has {len(names)} parts, the primary key of {table.qualified} has {key}")
    places = {name if name in key else name.lower(): place for place, name in enumerate(names)}
    missing = [column for column in key if column not in places]
    if len(missing) == len(key):
        return range(len(key))
    if missing:
        raise cql.NotAColumnError(
            f"PK {', '.join(names)}: no part is named {' or '.join(missing)}, as the primary key of "
            f"{table.qualified} ({', '.join(key)}) is; select the path AS its column"
        )
    return [places[column] for column in key]


def _by_driver(prepared: PreparedStatement, values: Sequence[Any]) -> BoundStatement:
    try:
        return prepared.bind(values)
    except (ValueError, TypeError, OverflowError):
        raise
    except BAD_RECORD as error:
        # The driver does not check the types of some values.
        raise TypeError(f"a value does not fit its column: {error}") from error


def null_problems(statement: Statement) -> list[str]:
    """Return what is wrong with the statement's `nullToUnset`; nothing if it is an allowed value."""
    found = _null_to_unset(statement)
    return (
        [] if found in (None, "true", "false") else [f"{NULL_TO_UNSET}={found} is not allowed; expected true or false"]
    )


def _null_to_unset(statement: Statement) -> str | None:
    named = {name.lower(): value.lower() for name, value in statement.properties.items()}
    return named.get(NULL_TO_UNSET.lower())


def write_time_us(row: Row) -> int:
    """Return CQL's write time as far as the record alone decides it, for inserts and deletes alike, in microseconds.

    It is the field for it, else the revision, else the event time with the last three digits of the offset as
    microseconds. Raises ValueError if the field holds no whole number.
    """
    given = _number(row, WRITE_TIME_FIELD)
    if given is not None:
        return given
    if row.revision is not None:
        return row.revision * _US_PER_MS
    return row.event_time_ms * _US_PER_MS + row.offset % _US_PER_MS


def ttl_s(row: Row) -> int | None:
    """Return how long the row lives after its event time, in seconds: as its field says, else TTL; None for ever.

    Raises ValueError if the field holds no whole number from 1 on.
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

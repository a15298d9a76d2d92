"""Rows as an Arrow table: the columns of all plans, by name; which rows do not fit their columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import FailedRow, Row
from isotherm.persisters.api.sink import RowError
from isotherm.persisters.records.documents import NotADocumentError
from isotherm.persisters.sinks.arrow.calendar import in_calendar
from isotherm.persisters.sinks.arrow.types import ColumnType, column_type

TOPIC, PARTITION, OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"
"""Columns that say which record a row was made of. With them the last row of an id can be told from the others."""
COORDINATES = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())])

_BAD_VALUE = (pa.ArrowException, ValueError, TypeError, OverflowError, NotADocumentError, AttributeError)


class Placed(NamedTuple):
    """A row with its place in a batch and in Kafka."""

    place: int
    """Its index in the batch."""
    row: Row
    topic: str
    partition: int


class Columns:
    """The columns that a connector's plans have; safe for several threads."""

    def __init__(
        self, reserved: Iterable[str] = (), stored: Callable[[pa.DataType], pa.DataType] | None = None
    ) -> None:
        """Begin without any.

        Args:
            reserved: names that no field may have beside those of the coordinates.
            stored: the type that the archive has for values of a type; its times are those of the calendar.
        """
        self._reserved = {*COORDINATES.names, *reserved}
        self._stored = stored
        self._by_plan: dict[Plan, Mapping[str, ColumnType]] = {}

    def of(self, plan: Plan) -> Mapping[str, ColumnType]:
        """Return the columns of a plan. Raises RowError if its values have no schema, or a name that is reserved."""
        known = self._by_plan.get(plan)
        if known is not None:
            return known
        if not plan.columns:
            raise RowError("document", "an archive needs values with an Avro schema: its columns come from there")
        if taken := self._reserved.intersection(plan.columns):
            names = ", ".join(sorted(taken))
            raise RowError(
                "column", f"the archive has columns of its own called {names}: select the field AS another name"
            )
        columns = {name: column_type(avro) for name, avro in plan.columns.items()}
        if self._stored is not None:
            columns = {name: one._replace(stored=self._stored(one.arrow)) for name, one in columns.items()}
        self._by_plan[plan] = columns
        return columns

    def schema(self, plan: Plan) -> pa.Schema:
        """Return the Arrow schema of a plan's rows, coordinates included. Raises RowError as `of`."""
        return _schema(self.of(plan))

    def table(self, rows: Sequence[Placed], failed: list[FailedRow]) -> pa.Table:
        """Return rows of one partition as a table, in their order; those that do not fit are left out and added to
        `failed`.

        The plans of the rows must have columns that go together, see `united`.
        """
        by_plan: dict[Plan, list[Placed]] = {}
        for placed in rows:
            by_plan.setdefault(placed.row.plan, []).append(placed)
        parts = [self._part(plan, theirs, failed) for plan, theirs in by_plan.items()]
        tables = [table for table, _ in parts]
        if len(tables) == 1:
            return tables[0]
        whole = pa.concat_tables(tables, promote_options="permissive")
        places = [index for _, indices in parts for index in indices]
        return whole.take(sorted(range(len(places)), key=places.__getitem__))

    def _part(self, plan: Plan, rows: Sequence[Placed], failed: list[FailedRow]) -> tuple[pa.Table, list[int]]:
        columns = self.of(plan)
        try:
            return _table(columns, rows), [one.place for one in rows]
        except _BAD_VALUE:
            fitting = []
            for one in rows:
                try:
                    _table(columns, [one])
                except _BAD_VALUE as error:
                    failed.append(FailedRow(one.place, "type", error))
                else:
                    fitting.append(one)
            return _table(columns, fitting), [one.place for one in fitting]


def united(known: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return the schema for rows of both, with the wider of two types; None if two types have nothing in common."""
    if known.equals(other):
        return known
    try:
        return pa.unify_schemas([known, other], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None


_values_of = attrgetter("row.values")
_offset_of = attrgetter("row.offset")


def _table(columns: Mapping[str, ColumnType], rows: Sequence[Placed]) -> pa.Table:
    values: list[Mapping[str, Any]] = list(map(_values_of, rows))
    arrays = [_array(name, one, values) for name, one in columns.items()]
    coordinates = [
        pa.repeat(pa.scalar(rows[0].topic if rows else "", pa.string()), len(rows)),
        pa.repeat(pa.scalar(rows[0].partition if rows else 0, pa.int32()), len(rows)),
        pa.array(list(map(_offset_of, rows)), pa.int64()),
    ]
    return pa.Table.from_arrays([*arrays, *coordinates], schema=_schema(columns))


def _schema(columns: Mapping[str, ColumnType]) -> pa.Schema:
    fields = [pa.field(name, one.arrow if one.stored is None else one.stored) for name, one in columns.items()]
    return pa.schema([*fields, *COORDINATES])


def _array(name: str, column: ColumnType, values: Sequence[Mapping[str, Any]]) -> pa.Array:
    try:
        found = list(map(itemgetter(name), values))
    except KeyError:
        found = [value.get(name) for value in values]
    if column.convert is not None:
        convert = column.convert
        found = [None if value is None else convert(value) for value in found]
    array = pa.array(found, column.arrow)
    return array if column.stored is None else in_calendar(array.cast(column.stored))

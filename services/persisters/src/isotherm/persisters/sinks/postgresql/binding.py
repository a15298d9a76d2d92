"""Rows as their table takes them. What is the same for rows of one form is found out once in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import pk_names
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.batches import BoundRow
from isotherm.persisters.sinks.postgresql.sql import Table
from isotherm.persisters.sinks.postgresql.tables import Tables
from isotherm.persisters.sinks.postgresql.values import Convert, converter


class _Form(NamedTuple):
    """Rows of one target and plan with the same fields."""

    target: str
    plan: Plan
    fields: tuple[str, ...]
    table: Table
    columns: tuple[str, ...]
    """The fields, and the row's id where the table has a column for it."""
    converters: Sequence[Convert]
    """Of the columns, in order."""
    needs_id: bool
    key_places: Sequence[int]
    """Of the table's key among the columns."""
    revision_column: str | None


class RowBinder:
    """Binds the rows of one batch."""

    def __init__(self, tables: Tables, converters: dict[str, Convert], *, changes_tables: bool = True) -> None:
        """`converters` keeps those of all types of columns. With `changes_tables` columns and partitions are added."""
        self._tables = tables
        self._changes_tables = changes_tables
        self._converters = converters
        self._forms: dict[tuple[str, Plan, tuple[str, ...]], _Form] = {}
        self._last: _Form | None = None

    def bound(self, index: int, row: Row) -> BoundRow:
        """Return a row of the batch as its table takes it.

        Raises RowError, SinkConfigError, Unavailable, psycopg's errors; ValueError, TypeError or OverflowError for a
        value that its column does not take.
        """
        if row.values is None:
            table = self._table(row)
            return BoundRow(index, row.target, table, (), None, self._deleted_key(table, row), None, None)
        form = self._form(row)
        if row.revision is not None and form.revision_column is None:
            raise SinkConfigError(
                f"{row.plan.statement.text!r} does not select {row.plan.revision}, which the schema declares as the "
                "revision that decides which row wins"
            )
        given = [*row.values.values(), row.id] if form.needs_id else [*row.values.values()]
        table = form.table
        for place in form.key_places:
            if given[place] is None:
                raise _no_key(form.columns[place], table)
        if table.day_column is not None and self._changes_tables:
            self._tables.ensure_day(table, row)
        values = tuple(
            [None if value is None else convert(value) for convert, value in zip(form.converters, given, strict=True)]
        )
        key = tuple([values[place] for place in form.key_places])
        return BoundRow(index, row.target, table, form.columns, values, key, form.revision_column, row.revision)

    def _form(self, row: Row) -> _Form:
        assert row.values is not None
        fields, last = tuple(row.values), self._last
        if last is not None and fields == last.fields and row.plan is last.plan and row.target == last.target:
            return last
        name = (row.target, row.plan, fields)
        form = self._forms.get(name)
        if form is None:
            form = self._forms[name] = self._made(row, fields)
        self._last = form
        return form

    def _made(self, row: Row, fields: tuple[str, ...]) -> _Form:
        table = self._table(row)
        needs_id = sql.ROW_ID in table.key and sql.ROW_ID not in fields
        columns = (*fields, sql.ROW_ID) if needs_id else fields
        for column in table.key:
            if column not in columns:
                raise _no_key(column, table)
        converters = [self._converter(table.columns[column]) for column in columns]
        places = [columns.index(column) for column in table.key]
        return _Form(
            row.target, row.plan, fields, table, columns, converters, needs_id, places, row.plan.revision_column
        )

    def _table(self, row: Row) -> Table:
        if self._changes_tables:
            return self._tables.fitting(self._tables.find(row.target, row), row)
        table = self._tables.find(row.target, None)
        missing = [column for column in row.values or () if column not in table.columns]
        if missing:
            raise RowError("column", f"{table.qualified} has no column {missing[0]!r}")
        return table

    def _deleted_key(self, table: Table, row: Row) -> tuple[Any, ...]:
        given = dict(zip(pk_names(row.plan.statement), row.pk, strict=True))
        if set(given) != set(table.key):
            raise RowError("column", f"PK {', '.join(given)} is not the primary key of {table.qualified}")
        return tuple(
            None if given[column] is None else self._converter(table.columns[column])(given[column])
            for column in table.key
        )

    def _converter(self, column_type: str) -> Convert:
        known = self._converters.get(column_type)
        if known is None:
            known = self._converters[column_type] = converter(column_type)
        return known


def _no_key(column: str, table: Table) -> RowError:
    return RowError("column", f"no value for {column!r}, a part of the primary key of {table.qualified}")

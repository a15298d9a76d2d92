"""The tables that a connector writes to: what is known of each, and how missing parts of them are made."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import psycopg
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.connections import Connections
from isotherm.persisters.sinks.postgresql.connector_keys import DAY, PREFIX
from isotherm.persisters.sinks.postgresql.sql import NotATableError, Table

_LOOK_AGAIN_S = 1.0
"""Shortest time between two queries for a table whose rows fit no column, however many of them a topic holds."""

_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(array_position(i.indkey::int2[], a.attnum), -1),
        c.relhasrules OR coalesce(NOT i.indimmediate, false) OR a.attidentity = 'a'
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE c.oid = to_regclass(%s) ORDER BY a.attnum
"""
_DAY_COLUMN = """
    SELECT a.attname FROM pg_partitioned_table p
    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = to_regclass(%s) AND p.partstrat = 'r' AND p.partnatts = 1
        AND a.atttypid = 'timestamptz'::regtype
"""


class Tables:
    """The tables of a connector; safe to share between the writers' threads."""

    def __init__(self, config: Validated, connections: Connections) -> None:
        self._connections = connections
        self._schema = config.text(f"{PREFIX}.schema")
        self._is_by_day = config.text(f"{PREFIX}.partition.by").upper() == DAY
        self._most_partitions = config.integer(f"{PREFIX}.partition.limit")
        self._tables: dict[str, Table] = {}
        self._looked_s: dict[str, float] = {}
        self._days: dict[str, set[date]] = {}
        self._lock = threading.Lock()

    def find(self, target: str, row: Row | None) -> Table:
        """Return the table of a target's rows; the first call looks it up, or creates it as `row` says.

        Raises RowError if only the row names the table and it cannot be used, SinkConfigError if the statement does,
        Unavailable, and psycopg's errors.
        """
        known = self._tables.get(target)
        if known is not None:
            return known
        with self._lock:
            if target not in self._tables:
                self._tables[target] = self._asked(target, row)
            return self._tables[target]

    def forget(self, targets: Iterable[str]) -> None:
        """Look tables up again before their next rows: they have changed."""
        with self._lock:
            for target in targets:
                self._tables.pop(target, None)
                self._days.pop(target, None)

    def fitting(self, table: Table, row: Row) -> Table:
        """Return the table with all columns that a row has values for; AUTOEVOLVE adds those that are missing.

        Raises RowError for a column that is not there.
        """
        missing = [column for column in row.values or () if column not in table.columns]
        if not missing:
            return table
        with self._lock:
            current = self._tables.get(row.target, table)
            if any(column not in current.columns for column in missing):
                current = self._grown(current, row, missing)
                self._tables[row.target] = current
        for column in missing:
            if column not in current.columns:
                raise RowError("column", f"{table.qualified} has no column {column!r}; add it, or say AUTOEVOLVE")
        return current

    def ensure_day(self, table: Table, row: Row) -> None:
        """Create the partition for a row's day, if the task is told to and it is not there.

        Raises RowError if that would be one partition too many.
        """
        if table.day_column is None:
            return
        try:
            day = sql.day_of(row.event_time_ms)
        except (ValueError, OverflowError) as error:
            raise RowError("partition", f"event time {row.event_time_ms}: {error}") from error
        with self._lock:
            days = self._days.setdefault(row.target, set())
            if day in days:
                return
            if len(days) >= self._most_partitions:
                raise RowError("partition", f"{day} needs partition {len(days) + 1}; {PREFIX}.partition.limit is less")
            with self._connections.connection() as connection:
                _make(connection.inner, sql.create_partition(table, day))
            days.add(day)

    def _asked(self, target: str, row: Row | None) -> Table:
        try:
            schema, name = sql.split_target(target, self._schema)
            with self._connections.connection() as connection:
                found = self._look_up(connection.inner, schema, name)
                if found is None and row is not None and row.plan.statement.autocreate:
                    _make(connection.inner, self._creation(schema, name, row))
                    found = self._look_up(connection.inner, schema, name)
            if found is None:
                raise SinkConfigError(f"there is no table {schema}.{name}; create it, or say AUTOCREATE")
            if not found.key:
                raise SinkConfigError(f"{found.qualified} has no primary key, by which rows are known again")
            return found
        except (SinkConfigError, NotATableError) as error:
            if row is None or not has_target_per_record(row.plan.statement):
                raise SinkConfigError(str(error)) from error
            raise RowError("target", str(error)) from error

    def _grown(self, table: Table, row: Row, missing: list[str]) -> Table:
        schema, name = sql.split_target(row.target, self._schema)
        types = row.plan.columns
        with self._connections.connection() as connection:
            if row.plan.statement.autoevolve and all(column in types for column in missing):
                for column in missing:
                    _make(connection.inner, sql.add_column(table, column, types[column]))
            elif time.monotonic() - self._looked_s.get(row.target, -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
                return table
            self._looked_s[row.target] = time.monotonic()
            return self._look_up(connection.inner, schema, name) or table

    def _creation(self, schema: str, name: str, row: Row) -> str:
        plan = row.plan
        if not plan.columns:
            raise RowError("document", f"AUTOCREATE of {schema}.{name} needs a value with an Avro schema")
        day_column = None
        if self._is_by_day:
            day_column = plan.event_time_column
            if day_column is None:
                raise SinkConfigError(f"{PREFIX}.partition.by: DAY needs the field of the event time among the columns")
        return sql.create_table(schema, name, plan.columns, key_columns(plan), day_column)

    def _look_up(self, connection: psycopg.Connection[Any], schema: str, name: str) -> Table | None:
        with connection.transaction():
            qualified = f"{sql.quoted(schema)}.{sql.quoted(name)}"
            columns = connection.execute(_COLUMNS, (qualified,)).fetchall()
            if not columns:
                return None
            by_day = connection.execute(_DAY_COLUMN, (qualified,)).fetchone() if self._is_by_day else None
        return _table(schema, name, columns, None if by_day is None else by_day[0])


def is_unchanged(table: Table, connection: psycopg.Connection[Any]) -> bool:
    """Whether the columns that are known of a table, its key, and whether it takes COPY are still as they are known.

    In a transaction that has copied into the table, nobody can change them until its end.
    """
    columns = connection.execute(_COLUMNS, (table.qualified,)).fetchall()
    now = _table(table.schema, table.name, columns, table.day_column)
    are_typed_alike = all(now.columns.get(column) == type_ for column, type_ in table.columns.items())
    return are_typed_alike and (now.key, now.takes_copy) == (table.key, table.takes_copy)


def _table(schema: str, name: str, columns: Sequence[Sequence[Any]], day_column: str | None) -> Table:
    key = sorted((place, column) for column, _, place, _ in columns if place >= 0)
    return Table(
        schema,
        name,
        {column: type_ for column, type_, _, _ in columns},
        [column for _, column in key],
        day_column,
        not any(is_in_the_way for *_, is_in_the_way in columns),
    )


def key_columns(plan: Plan) -> list[str]:
    """Return the primary key of a table to be created: the columns of the identity, else the row's id."""
    return list(plan.identity_columns) or [sql.ROW_ID]


def _make(connection: psycopg.Connection[Any], statement: str) -> None:
    """Execute a CREATE or ALTER. Another task may do the same at the same time: then it is done."""
    try:
        with connection.transaction():
            connection.execute(statement.encode())
    except (DuplicateTable, DuplicateObject, UniqueViolation):
        return

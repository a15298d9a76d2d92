"""SQL from Avro types and descriptions of tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

MAX_NAME_BYTES = 63
"""Longer names are cut by the server (NAMEDATALEN), so that two could become one."""
ROW_ID = "isotherm_id"
"""Column of the row's id in tables whose rows have no other identity."""
TIMESTAMP = "timestamp with time zone"

_DAY_SUFFIX = "_p{:%Y%m%d}"
_TYPES: Mapping[str, str] = {
    "string": "text",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "bytes": "bytea",
    "enum": "text",
    "fixed": "bytea",
}
_LOGICAL: Mapping[str, str] = {
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": "timestamp without time zone",
    "local-timestamp-micros": "timestamp without time zone",
    "date": "date",
    "time-millis": "time without time zone",
    "time-micros": "time without time zone",
    "uuid": "uuid",
}


class NotATableError(ValueError):
    """A table cannot be made, or cannot take rows by their identity."""


@dataclass(frozen=True)
class Table:
    """What is known of a table: its columns with their types, its primary key, and the column that partitions it."""

    schema: str
    name: str
    columns: Mapping[str, str]
    key: Sequence[str]
    day_column: str | None = None
    """The only column of a partitioning by range, if it is a time; None for any other table."""
    takes_copy: bool = True
    """Whether COPY of new rows does what INSERT does, and finds keys that are there: no rule, no GENERATED ALWAYS AS
    IDENTITY and no DEFERRABLE key says otherwise.
    """

    @property
    def qualified(self) -> str:
        """`schema.table`, quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def quoted(name: str) -> str:
    """Return a name as an SQL identifier.

    Raises NotATableError for one that PostgreSQL does not take as it is.
    """
    if not name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise NotATableError(f"{name[:100]!r} is no name of a table or a column: they have 1 to {MAX_NAME_BYTES} bytes")
    return '"' + name.replace('"', '""') + '"'


def names(columns: Iterable[str], prefix: str = "") -> str:
    """Return a list of columns, each with `prefix`."""
    return ", ".join(f"{prefix}{quoted(column)}" for column in columns)


def sql_type(avro: Any) -> str:
    """Return the type of a column for values of this Avro type; what has a structure is `jsonb`."""
    if isinstance(avro, list):
        branches = [branch for branch in avro if branch != "null"]
        return sql_type(branches[0]) if len(branches) == 1 else "jsonb"
    if isinstance(avro, str):
        return _TYPES.get(avro, "jsonb")
    logical = avro.get("logicalType", "")
    if logical == "decimal":
        return f"numeric({int(avro['precision'])}, {int(avro.get('scale', 0))})"
    return _LOGICAL.get(logical) or sql_type(avro["type"])


def split_target(target: str, schema: str) -> tuple[str, str]:
    """Return schema and table of a statement's target: `schema.table`, else the table in the connector's schema."""
    before, dot, table = target.partition(".")
    return (before, table) if dot else (schema, target)


def create_table(schema: str, name: str, columns: Mapping[str, Any], key: Sequence[str], day_column: str | None) -> str:
    """Return CREATE TABLE IF NOT EXISTS for fields of these Avro types.

    Args:
        schema: the table's.
        name: the table's.
        columns: the Avro type of each column.
        key: the columns of the primary key; ROW_ID is added as a text.
        day_column: partitions the table by range; None for a table without partitions.

    Raises NotATableError if a column of the key is missing, or if the key does not hold the partitioning column.
    """
    types = {column: sql_type(avro) for column, avro in columns.items()}
    if ROW_ID in key:
        types[ROW_ID] = "text"
    for column in key:
        if column not in types:
            raise NotATableError(f"PK {column} is not among the selected fields ({', '.join(columns)})")
    if day_column is not None and (day_column not in key or types[day_column] != TIMESTAMP):
        raise NotATableError(
            f"partitions by day need the event time ({day_column}), a timestamp, in the primary key ({', '.join(key)})"
        )
    if day_column is not None:
        quoted(f"{name}{_DAY_SUFFIX.format(date.max)}")
    lines = [f"{quoted(column)} {type_}" for column, type_ in types.items()]
    lines.append(f"PRIMARY KEY ({names(key)})")
    partitioned = "" if day_column is None else f" PARTITION BY RANGE ({quoted(day_column)})"
    return f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.{quoted(name)} ({', '.join(lines)}){partitioned}"


def add_column(table: Table, column: str, avro: Any) -> str:
    """Return the ALTER TABLE that adds a column which may be null."""
    return f"ALTER TABLE {table.qualified} ADD COLUMN IF NOT EXISTS {quoted(column)} {sql_type(avro)}"


def partition_name(table: Table, day: date) -> str:
    """Return the name of a day's partition."""
    return f"{table.name}{_DAY_SUFFIX.format(day)}"


def create_partition(table: Table, day: date) -> str:
    """Return CREATE TABLE IF NOT EXISTS for the partition of a day in UTC."""
    name = quoted(partition_name(table, day))
    first, end = (f"'{one.isoformat()} 00:00:00+00'" for one in (day, day + timedelta(days=1)))
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(table.schema)}.{name} PARTITION OF {table.qualified} "
        f"FOR VALUES FROM ({first}) TO ({end})"
    )


def day_of(time_ms: int) -> date:
    """Return the day of an epoch time in UTC. Raises ValueError or OverflowError for one beyond the calendar."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).date()


def create_stage(table: Table, stage: str) -> str:
    """Return the statement that makes the staging table of a connection; it is empty after each transaction."""
    return f"CREATE TEMP TABLE {quoted(stage)} (LIKE {table.qualified}) ON COMMIT DELETE ROWS"


def copy_into(qualified: str, columns: Iterable[str], *, is_binary: bool = False) -> str:
    """Return the COPY of some columns into a table."""
    form = " WITH (FORMAT binary)" if is_binary else ""
    return f"COPY {qualified} ({names(columns)}) FROM STDIN{form}"


def merge(table: Table, stage: str, columns: Sequence[str], revision: str | None) -> str:
    """Return the INSERT of staged rows; a row whose key is there replaces its columns, unless its revision is lower.

    The rows are written in the order of their keys, so that two tasks do not wait for each other in turn.
    """
    key = names(table.key)
    changed = [column for column in columns if column not in table.key]
    action = "DO NOTHING"
    if changed:
        action = "DO UPDATE SET " + ", ".join(f"{quoted(column)} = excluded.{quoted(column)}" for column in changed)
    if changed and revision is not None:
        stored = f"stored.{quoted(revision)}"
        action += f" WHERE {stored} IS NULL OR excluded.{quoted(revision)} >= {stored}"
    return (
        f"INSERT INTO {table.qualified} AS stored ({names(columns)}) "  # noqa: S608 -- names are quoted
        f"SELECT {names(columns)} FROM {quoted(stage)} ORDER BY {key} ON CONFLICT ({key}) {action}"
    )


def delete(table: Table) -> str:
    """Return the DELETE of one row by its key, in the form that takes parameters."""
    where = " AND ".join(f"{quoted(column)} = %s" for column in (name.replace("%", "%%") for name in table.key))
    qualified = table.qualified.replace("%", "%%")
    return f"DELETE FROM {qualified} WHERE {where}"  # noqa: S608 -- names are quoted


def read_back(table: Table, columns: Sequence[str]) -> str:
    """Return the SELECT of one row by its key, in the form that takes parameters: the columns' values, then the key.

    It yields the row as JSON, and whether each column has its value as PostgreSQL itself compares them.
    """
    compared = " AND ".join(_is_equal(column, table.columns[column]) for column in columns)
    where = " AND ".join(f"{_parameterised(column)} = {_typed(table.columns[column])}" for column in table.key)
    qualified = table.qualified.replace("%", "%%")
    return f"SELECT to_jsonb(stored), {compared or 'TRUE'} FROM {qualified} AS stored WHERE {where}"  # noqa: S608 -- names are quoted


def _is_equal(column: str, type_: str) -> str:
    # PostgreSQL compares no `json`.
    if type_ == "json":
        return f"{_parameterised(column)}::jsonb IS NOT DISTINCT FROM %s::jsonb"
    return f"{_parameterised(column)} IS NOT DISTINCT FROM {_typed(type_)}"


def _typed(type_: str) -> str:
    # By way of a text, as COPY writes it: a double that becomes a number otherwise loses its last two digits.
    is_number = type_.startswith(("numeric", "real"))
    return f"%s::text::{type_}" if is_number else f"%s::{type_}"


def _parameterised(column: str) -> str:
    return f"stored.{quoted(column)}".replace("%", "%%")


def clear(stage: str) -> str:
    """Return the statement that empties a staging table within a transaction."""
    return f"DELETE FROM {quoted(stage)}"  # noqa: S608 -- the name is quoted

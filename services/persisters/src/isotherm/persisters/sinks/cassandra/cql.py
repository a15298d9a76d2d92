"""CQL from Avro types and table descriptions. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from isotherm.persisters.records.documents import to_json

_TYPES: Mapping[str, str] = {
    "string": "text",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "bytes": "blob",
    "enum": "text",
    "fixed": "blob",
    # A nested record is stored as JSON text: a user-defined type would tie the table to one schema version.
    "record": "text",
}
_LOGICAL: Mapping[str, str] = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "decimal": "decimal",
    "uuid": "uuid",
}
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TEXTS = ("text", "varchar", "ascii")


class NotAColumnError(ValueError):
    """A row does not fit its table."""


@dataclass(frozen=True)
class Table:
    """What is known of a table: its columns with their CQL types, and its primary key."""

    keyspace: str
    name: str
    columns: Mapping[str, str]
    partition_key: Sequence[str]
    clustering: Sequence[str]

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Partition and clustering columns, in order."""
        return (*self.partition_key, *self.clustering)

    @property
    def qualified(self) -> str:
        """`keyspace.table`, quoted where CQL needs it."""
        return f"{quoted(self.keyspace)}.{quoted(self.name)}"


def quoted(name: str) -> str:
    """Return a name in CQL, quoted unless it is plain lower case."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in _RESERVED else '"' + name.replace('"', '""') + '"'


def cql_type(avro: Any) -> str:
    """Return the CQL type of a column for values of this Avro type."""
    if isinstance(avro, list):
        branches = [branch for branch in avro if branch != "null"]
        return cql_type(branches[0]) if len(branches) == 1 else "text"
    if isinstance(avro, str):
        return _TYPES.get(avro, "text")
    logical = _LOGICAL.get(avro.get("logicalType", ""))
    if logical is not None:
        return logical
    kind = avro["type"]
    if kind == "array":
        return f"list<{_frozen(cql_type(avro['items']))}>"
    if kind == "map":
        return f"map<text, {_frozen(cql_type(avro['values']))}>"
    return cql_type(kind)


def _frozen(inner: str) -> str:
    return f"frozen<{inner}>" if "<" in inner else inner


def create_table(keyspace: str, table: str, columns: Mapping[str, Any], primary_key: Sequence[str]) -> str:
    """Return CREATE TABLE IF NOT EXISTS for fields of these Avro types; the first key column is the partition key.

    Raises NotAColumnError if a key column is not among the fields.
    """
    for name in primary_key:
        if name not in columns:
            raise NotAColumnError(f"PK {name} is not among the selected fields ({', '.join(columns)})")
    lines = [f"{quoted(name)} {cql_type(avro)}" for name, avro in columns.items()]
    lines.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in primary_key)})")
    return f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{quoted(table)} ({', '.join(lines)})"


def add_columns(table: Table, columns: Mapping[str, Any]) -> str:
    """Return ALTER TABLE that adds columns for fields of these Avro types."""
    added = ", ".join(f"{quoted(name)} {cql_type(avro)}" for name, avro in columns.items())
    return f"ALTER TABLE {table.qualified} ADD {added}"


def missing_columns(table: Table, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that no column takes, with their types."""
    return {name: avro for name, avro in fields.items() if not {name, name.lower()} & table.columns.keys()}


def create_keyspace(keyspace: str, replication_factor: int) -> str:
    """Return CREATE KEYSPACE IF NOT EXISTS with so many replicas in every data centre."""
    replication = f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {replication_factor}}}"
    return f"CREATE KEYSPACE IF NOT EXISTS {quoted(keyspace)} WITH replication = {replication}"


def insert(table: Table, *, ttl: bool) -> str:
    """Return the INSERT of all columns with a write time, and with a TTL if `ttl`; values in the order of
    the columns.
    """
    names = ", ".join(quoted(name) for name in table.columns)
    marks = ", ".join("?" for _ in table.columns)
    using = "USING TIMESTAMP ? AND TTL ?" if ttl else "USING TIMESTAMP ?"
    return f"INSERT INTO {table.qualified} ({names}) VALUES ({marks}) {using}"  # noqa: S608 -- names are quoted


def delete(table: Table) -> str:
    """Return the DELETE of one row by its whole primary key; the write time is the first value."""
    where = " AND ".join(f"{quoted(name)} = ?" for name in table.primary_key)
    return f"DELETE FROM {table.qualified} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 -- names are quoted


def select(table: Table) -> str:
    """Return the SELECT of all columns of a row by its whole primary key."""
    names = ", ".join(quoted(name) for name in table.columns)
    where = " AND ".join(f"{quoted(name)} = ?" for name in table.primary_key)
    return f"SELECT {names} FROM {table.qualified} WHERE {where}"  # noqa: S608 -- names are quoted


def split_target(target: str, keyspace: str) -> tuple[str, str]:
    """Return keyspace and table of a statement's target: `ks.table`, else the table in the connector's keyspace."""
    before, dot, table = target.partition(".")
    return (before, table) if dot else (keyspace, target)


def column_of(table: Table, field: str) -> str:
    """Return the column that takes a field: of the same name, else of its name in lower case.

    Raises NotAColumnError naming the nearest column.
    """
    for name in (field, field.lower()):
        if name in table.columns:
            return name
    near = difflib.get_close_matches(field, list(table.columns), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(table.columns)}"
    raise NotAColumnError(f"table {table.qualified} has no column for field {field!r}{hint}")


def converter(type_: str) -> Callable[[Any], Any] | None:
    """Return how a value that is not null becomes one that the driver accepts; None if it is as it is.

    The function raises TypeError or ValueError for a value that is no collection, or cannot be written as text.
    """
    if type_ in _TEXTS:
        return _text
    if type_ in ("uuid", "timeuuid"):
        return lambda value: UUID(value) if isinstance(value, str) else value
    name, _, inner = type_.removesuffix(">").partition("<")
    if name == "frozen":
        return converter(inner)
    if name in ("list", "set"):
        return _each(converter(inner))
    if name == "map":
        return _each_value(converter(_after_comma(inner)))
    return None


def _text(value: Any) -> str:
    """Return a value of a union, or of a nested record, as text: as in JSON, a scalar without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    text = to_json(value).decode()
    return text[1:-1] if text.startswith('"') else text


def _each(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def converted(values: Any) -> Any:
        # The driver would take the characters of a text, and the keys of a map.
        if not isinstance(values, (list, tuple, set, frozenset)):
            raise TypeError(f"expected a list for a column of several values, not {type(values).__name__}")
        return values if convert is None else [None if value is None else convert(value) for value in values]

    return converted


def _each_value(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def converted(entries: Any) -> Any:
        if not isinstance(entries, Mapping):
            raise TypeError(f"expected a map for a column of one, not {type(entries).__name__}")
        if convert is None:
            return entries
        return {key: None if value is None else convert(value) for key, value in entries.items()}

    return converted


def _after_comma(types: str) -> str:
    """Return the second of two types; the first one may contain commas."""
    depth = 0
    for at, character in enumerate(types):
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            return types[at + 1 :].strip()
    return ""


_RESERVED = frozenset(
    """
    add allow alter and apply asc authorize batch begin by columnfamily create default delete desc describe drop
    entries execute from full grant if in index infinity insert into is keyspace limit materialized mbean mbeans
    modify nan norecursive not null of on or order primary rename replace revoke schema select set table to token
    truncate unlogged unset update use using view where with
    """.split()  # noqa: SIM905 -- as a list it would fill the screen
)

"""Rows WITHSTRUCTURE: nesting and arrays stay; the field list selects and renames inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.kcql.model import Field, Part, Path
from isotherm.kcql.projection.paths import (
    MISSING,
    Function,
    IgnoreTree,
    fetcher,
    pruned,
    through_scalar,
)
from isotherm.kcql.projection.record import Record
from isotherm.kcql.projection.rows import Names, Row, fields_of
from isotherm.kcql.syntax.names import write_path


class Item(NamedTuple):
    """A field of the list at one level of the record, with the rest of its path below this level."""

    field: Field
    rest: tuple[str, ...]


class Entry(NamedTuple):
    """One entry of a level: a leaf, a lower level, or (name None) all other fields."""

    name: str | None
    alias: str | None
    path: Path
    below: Level | None


class Level(NamedTuple):
    """One level of the row."""

    entries: tuple[Entry, ...]
    aliases: frozenset[str]
    named: Mapping[Part, frozenset[str]]
    """By part of the record: the fields that a wildcard of this level does not repeat."""


def structured_row(fields: Sequence[Field], functions: Mapping[str, Function], tree: IgnoreTree) -> Row:
    """The row of a statement WITHSTRUCTURE.

    Raises:
        ProjectionError: a function that `functions` does not have.
    """
    level = _level([Item(field, field.path.segments) for field in fields], ())
    fetches = {entry.path: fetcher(entry.path, functions) for entry in level.entries}

    def row(record: Record) -> dict[str, Any]:
        if tree:
            record = record._replace(value=pruned(record.value, tree))
        return _build(level, lambda entry: fetches[entry.path](record))

    return row


def _level(items: Sequence[Item], above: tuple[str, ...]) -> Level:
    groups: dict[tuple[Part, str], list[Item]] = {}
    wildcards: dict[Part, int] = {}
    for position, item in enumerate(items):
        part = item.field.path.part
        if not item.rest:
            if item.field.wildcard:
                wildcards.setdefault(part, position)
        elif len(item.rest) > 1 or item.field.wildcard:
            groups.setdefault((part, item.rest[0]), []).append(Item(item.field, item.rest[1:]))
    entries: list[Entry] = []
    opened: set[tuple[Part, str]] = set()
    for position, item in enumerate(items):
        field = item.field
        here = Path(field.path.part, (*above, *item.rest[:1]))
        if not item.rest:
            entries.append(Entry(None if field.wildcard else field.natural_name, field.alias, here, None))
        elif len(item.rest) == 1 and not field.wildcard:
            entries.append(Entry(field.natural_name, field.alias, here, None))
        elif (here.part, item.rest[0]) not in opened:
            opened.add((here.part, item.rest[0]))
            group = _completed(groups[here.part, item.rest[0]], here, wildcards.get(here.part), position)
            entries.append(Entry(item.rest[0], None, here, _level(group, here.segments)))
    aliases = frozenset(entry.alias for entry in entries if entry.alias is not None)
    named: dict[Part, set[str]] = {}
    for entry in entries:
        if entry.name is not None and entry.path.segments:
            named.setdefault(entry.path.part, set()).add(entry.path.segments[-1])
    return Level(tuple(entries), aliases, {part: frozenset(names) for part, names in named.items()})


def _completed(group: list[Item], here: Path, wildcard_at: int | None, position: int) -> list[Item]:
    """Add a wildcard to a level below a wildcard: `*, a.b AS x` renames b inside a and keeps its other fields."""
    if wildcard_at is None or any(item.field.wildcard and not item.rest for item in group):
        return group
    others = Item(Field(here, wildcard=True), ())
    return [others, *group] if wildcard_at < position else [*group, others]


def _build(level: Level, fetch: Callable[[Entry], Any]) -> dict[str, Any]:
    names = Names(level.aliases)
    result: dict[str, Any] = {}
    for entry in level.entries:
        value = fetch(entry)
        if entry.name is None:
            skipped = level.named.get(entry.path.part, frozenset())
            for name, field in fields_of(value, entry.path).items():
                if name not in skipped:
                    result[names.claim(name)] = field
            continue
        key = names.claim(entry.name) if entry.alias is None else entry.alias
        if value is not MISSING:
            result[key] = value if entry.below is None else _descend(entry, entry.below, value)
    return result


def _descend(entry: Entry, below: Level, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_descend(entry, below, item) for item in value]
    if not isinstance(value, Mapping):
        first = next(iter(below.entries)).path
        raise through_scalar(write_path(first), f'"{write_path(entry.path)}"')
    record = value
    return _build(below, lambda inner: record if inner.name is None else record.get(inner.path.segments[-1], MISSING))

"""Rows without WITHSTRUCTURE: each field of the list is a key of the row; records and arrays are not taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.model import Field, Part, Path
from isotherm.kcql.projection.paths import (
    MISSING,
    Fetch,
    IgnoreTree,
    pruned,
    through_array,
    through_scalar,
)
from isotherm.kcql.projection.record import Record
from isotherm.kcql.syntax.names import write_path

Row = Callable[[Record], dict[str, Any]]


class Leaf(NamedTuple):
    """One key of the row."""

    name: str
    fetch: Fetch
    key: str | None
    """The field's name when it is a field of the value itself, which needs no walk; else None."""


class Wildcard(NamedTuple):
    """All fields of the record at a path, except those that the list names."""

    path: Path
    fetch: Fetch
    named_elsewhere: frozenset[str]
    known: tuple[str, ...] | None
    """The fields in schema order; None when only the record determines them."""


class Names:
    """Assigns the keys of one row, or of one level of it: a name that is taken becomes `name_1`, `name_2`, ..."""

    def __init__(self, aliases: Iterable[str]) -> None:
        self._taken = set(aliases)

    def claim(self, name: str) -> str:
        """The key for a field of this name."""
        free = name
        count = 0
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free


def named_elsewhere(fields: Sequence[Field], level: Path) -> frozenset[str]:
    """The fields of one level that the list names, so that a wildcard of this level does not repeat them."""
    depth = len(level.segments)
    return frozenset(
        field.path.segments[-1]
        for field in fields
        if not field.wildcard
        and field.path.part is level.part
        and len(field.path.segments) == depth + 1
        and field.path.segments[:depth] == level.segments
    )


def fields_of(value: Any, path: Path) -> Mapping[str, Any]:
    """The fields that a wildcard at `path` selects from `value`; none when it is missing, or null below the top.

    Raises:
        ProjectionError: `value` is an array or a scalar, or the whole value of the record is null.
    """
    if isinstance(value, Mapping):
        return value
    if (value is None and path != Path(Part.VALUE)) or value is MISSING:
        return {}
    text = write_path(path, wildcard=True)
    if value is None:
        raise ProjectionError(text, "the value is null, it has no fields")
    if isinstance(value, list | tuple):
        raise through_array(text)
    raise through_scalar(text, f"a value of type {type(value).__name__}")


def whole_value(tree: IgnoreTree) -> Row:
    """`SELECT *`: the value itself, not a copy, unless something is ignored."""

    def row(record: Record) -> dict[str, Any]:
        value = record.value
        if type(value) is dict:
            return value
        return dict(fields_of(value, Path(Part.VALUE)))

    def row_without(record: Record) -> dict[str, Any]:
        value = record.value
        fields = value if type(value) is dict else fields_of(value, Path(Part.VALUE))
        return dict(pruned(fields, tree))

    return row_without if tree else row


def static_row(leaves: Sequence[Leaf], *, needs_value: bool) -> Row:
    """A row whose keys are known in advance; a field that the record lacks is omitted.

    Args:
        leaves: the keys, in order.
        needs_value: whether the list has a wildcard of the whole value, so that a null value is an error.
    """
    names = [leaf.name for leaf in leaves]
    keys = [leaf.key for leaf in leaves if leaf.key is not None]
    pairs = [(leaf.name, leaf.fetch) for leaf in leaves]

    def row(record: Record) -> dict[str, Any]:
        if needs_value:
            fields_of(record.value, Path(Part.VALUE))
        return {name: value for name, fetch in pairs if (value := fetch(record)) is not MISSING}

    if len(keys) < 2 or len(keys) < len(leaves):
        return row
    take = itemgetter(*keys)

    def flat_row(record: Record) -> dict[str, Any]:
        try:
            return dict(zip(names, take(record.value), strict=False))
        except (KeyError, TypeError, IndexError):
            return row(record)

    return flat_row


def dynamic_row(fields: Sequence[tuple[str | None, Leaf | Wildcard]], aliases: Iterable[str], tree: IgnoreTree) -> Row:
    """A row with a wildcard whose fields only each record determines."""
    reserved = frozenset(aliases)

    def row(record: Record) -> dict[str, Any]:
        if tree:
            record = record._replace(value=pruned(record.value, tree))
        names = Names(reserved)
        result: dict[str, Any] = {}
        for alias, entry in fields:
            if isinstance(entry, Wildcard):
                below = entry.fetch(record)
                found = fields_of(below, entry.path)
                if below is None and entry.known is not None:
                    found = dict.fromkeys(entry.known)
                for name, value in found.items():
                    if name not in entry.named_elsewhere:
                        result[names.claim(name)] = value
                continue
            key = names.claim(entry.name) if alias is None else alias
            value = entry.fetch(record)
            if value is not MISSING:
                result[key] = value
        return result

    return row

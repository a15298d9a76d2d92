"""Compiles a path to the function that fetches its value from a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.model import Part, Path
from isotherm.kcql.projection.record import Record, header_of, headers_of
from isotherm.kcql.projection.shapes import (
    ANYTHING,
    Kind,
    SchemaShapes,
    Shape,
)
from isotherm.kcql.syntax.names import nearest, write_path

Fetch = Callable[[Record], Any]
Function = Callable[[Record], Any]

_FIELDS_NAMED = 12


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The result of a fetch for a field that the record does not have."""

WHOLE: Mapping[Part, Fetch] = {
    Part.VALUE: lambda record: record.value,
    Part.KEY: lambda record: record.key,
    Part.HEADER: headers_of,
    Part.TOPIC: lambda record: record.topic,
    Part.PARTITION: lambda record: record.partition,
    Part.OFFSET: lambda record: record.offset,
    Part.TIMESTAMP: lambda record: record.timestamp_ms,
}


def through_array(path: str) -> ProjectionError:
    """The error for a path that leads through an array."""
    return ProjectionError(path, "leads through an array, which only fields of a statement WITHSTRUCTURE may do")


def through_scalar(path: str, at: str) -> ProjectionError:
    """The error for a path that leads through a value without fields; `at` names that value."""
    return ProjectionError(path, f"leads through {at}, which has no fields")


def shape_at(schema: SchemaShapes, path: Path, *, arrays: bool) -> Shape:
    """The shape of a path's value by the schema; `ANYTHING` when the schema does not determine it.

    Args:
        schema: the writer schema of the value.
        path: the path of a statement.
        arrays: whether the path may lead through arrays.

    Raises:
        ProjectionError: the schema has no such field, or the path leads through an array or a scalar.
    """
    if path.part is not Part.VALUE:
        return ANYTHING
    shape = schema.root
    for depth, name in enumerate(path.segments):
        while shape.kind is Kind.ARRAY and shape.element is not None:
            if not arrays:
                raise through_array(write_path(path))
            shape = schema.shape(shape.element)
        if shape.kind is Kind.ANY:
            return ANYTHING
        if shape.kind is Kind.SCALAR:
            raise through_scalar(write_path(path), _prefix(path, depth))
        if shape.kind is Kind.MAP and shape.element is not None:
            shape = schema.shape(shape.element)
        elif name in shape.fields:
            shape = schema.shape(shape.fields[name])
        else:
            raise _unknown(path, depth, list(shape.fields))
    return shape


def _unknown(path: Path, depth: int, fields: list[str]) -> ProjectionError:
    like = nearest(path.segments[depth], fields)
    suggestion = None if like is None else write_path(Path(path.part, (*path.segments[:depth], like)))
    named = ", ".join(fields[:_FIELDS_NAMED]) + (", ..." if len(fields) > _FIELDS_NAMED else "")
    where = "the record" if depth == 0 else _prefix(path, depth)
    return ProjectionError(write_path(path), f"{where} has no such field; it has {named or 'none'}", suggestion)


def _prefix(path: Path, depth: int) -> str:
    return f'"{write_path(Path(path.part, path.segments[:depth]))}"' if depth else f"the {path.part}"


def fetcher(path: Path, functions: Mapping[str, Function]) -> Fetch:
    """The function that fetches a path from a record.

    The function returns `MISSING` when the record has no such field, and None when the path leads through null. It
    raises ProjectionError when the path leads through an array or a scalar.

    Raises:
        ProjectionError: the path is a function that `functions` does not have.
    """
    if path.part is Part.FUNCTION:
        name = path.segments[0]
        if name not in functions:
            raise ProjectionError(f"{name}()", "there is no such function here", nearest(name, functions))
        return functions[name]
    names = path.segments
    if not names:
        return WHOLE[path.part]
    if path.part is Part.HEADER:
        return lambda record: _walk(header_of(record, names[0], MISSING), names[1:], path, 1)
    whole = WHOLE[path.part]
    if len(names) > 1 or path.part is not Part.VALUE:
        return lambda record: _walk(whole(record), names, path, 0)
    name = names[0]

    def fetch(record: Record) -> Any:
        value = record.value
        return value.get(name, MISSING) if type(value) is dict else _walk(value, names, path, 0)

    return fetch


def _walk(value: Any, names: tuple[str, ...], path: Path, depth: int) -> Any:
    for name in names:
        if value is None or value is MISSING:
            return value
        if isinstance(value, Mapping):
            value = value.get(name, MISSING)
        elif isinstance(value, list | tuple):
            raise through_array(write_path(path))
        else:
            raise through_scalar(write_path(path), _prefix(path, depth))
        depth += 1
    return value


IgnoreTree = dict[str, "IgnoreTree | None"]


def ignore_tree(paths: tuple[tuple[str, ...], ...]) -> IgnoreTree:
    """The ignored paths as a tree; None marks a field that is ignored with everything below it."""
    tree: IgnoreTree = {}
    for path in sorted(paths, key=len):
        level: IgnoreTree | None = tree
        for name in path[:-1]:
            if level is not None:
                level = level.setdefault(name, {})
        if level is not None:
            level[path[-1]] = None
    return tree


def pruned(value: Any, tree: IgnoreTree) -> Any:
    """A copy of a value without the ignored fields, also inside the elements of arrays."""
    if isinstance(value, Mapping):
        kept = {}
        for name, field in value.items():
            if name not in tree:
                kept[name] = field
            elif (below := tree[name]) is not None:
                kept[name] = pruned(field, below)
        return kept
    if isinstance(value, list | tuple):
        return [pruned(item, tree) for item in value]
    return value

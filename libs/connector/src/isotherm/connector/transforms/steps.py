"""What most transforms share: data of one part, with a schema that is compiled once or without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.schemas import defaults_for_nulls, per_schema

Convert = Callable[[Any, Message], Any]
"""From the data of a part and its message to other data. Raises TransformError."""


class Compiled(NamedTuple):
    """What a transform does to data of one schema."""

    schema: Schema
    convert: Convert


def step(
    part: Part,
    with_schema: Callable[[Schema], Compiled],
    without_schema: Convert,
    *,
    skips_null: bool = True,
    replaces_nulls: bool = True,
) -> Transform:
    """A transform of one part.

    Args:
        part: key or value.
        with_schema: compiles the transform for a schema.
        without_schema: the transform of data without a schema.
        skips_null: whether null data stay as they are; otherwise the functions above get them.
        replaces_nulls: whether null in an optional field with a default counts as the default.
    """

    def compile_one(schema: Schema) -> Compiled:
        compiled = with_schema(schema)
        defaults = defaults_for_nulls(schema) if replaces_nulls else {}
        return Compiled(compiled.schema, _filling(defaults, compiled.convert)) if defaults else compiled

    compile_cached = per_schema(compile_one)

    def apply(message: Message) -> Message:
        data, schema = part.data(message), part.schema(message)
        if data is None and skips_null:
            return message
        if schema is None:
            return part.replaced(message, None, without_schema(data, message))
        compiled = compile_cached(schema)
        return part.replaced(message, compiled.schema, compiled.convert(data, message))

    return apply


def _filling(defaults: Mapping[str, Any], convert: Convert) -> Convert:
    def filled(data: Any, message: Message) -> Any:
        if isinstance(data, dict):
            missing = {name: default for name, default in defaults.items() if data.get(name) is None}
            data = {**data, **missing} if missing else data
        return convert(data, message)

    return filled


def required_map(data: Any, purpose: str) -> dict[str, Any]:
    """The data, which must be a record. Raises TransformError."""
    if isinstance(data, dict):
        return data
    found = "null" if data is None else type(data).__name__
    raise TransformError(f"{purpose} needs a record, found {found}")

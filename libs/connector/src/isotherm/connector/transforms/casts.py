"""Cast: fields, or the whole data, as another type, by Java's rules."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from isotherm.connector.transforms.fields import shape_of_value
from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.numbers import (
    BITS,
    is_number,
    narrowed,
    parsed_float,
    parsed_whole,
    single,
    text_of_double,
)
from isotherm.connector.transforms.schemas import PRIMITIVES, Shape, field, fields_of, optional, record, shape
from isotherm.connector.transforms.steps import Compiled, required_map, step
from isotherm.connector.transforms.times import MS_PER_DAY, iso_text, ms_of, ms_of_date

_NOT_CAST = ("array", "map", "struct", "union")


def cast_fields(part: Part, types: Mapping[str, str], *, replaces_nulls: bool) -> Transform:
    """Cast of some fields: their types by name."""

    def with_schema(schema: Schema) -> Compiled:
        fields, casts = [], {}
        for one in fields_of(schema, "Cast"):
            target = types.get(one["name"])
            if target is None:
                fields.append(one)
                continue
            found = casts[one["name"]] = shape(one["type"])
            made = field(one["name"], optional(PRIMITIVES[target], is_optional=found.optional))
            if one.get("default") is not None:
                made["default"] = cast(one["default"], found, target)
                made["type"] = made["type"][::-1] if found.optional else made["type"]
            fields.append(made)
        items = [(name, found, types[name]) for name, found in casts.items()]
        changed = [name for name, found, target in items if not _is_lossless(found, target)]

        def convert(data: Any, _: Message) -> Any:
            found = required_map(data, "Cast")
            return {**found, **{name: cast(found.get(name), kind, target) for name, kind, target in items}}

        return Compiled(record(schema, fields, changed=changed), convert)

    def without_schema(data: Any, _: Message) -> Any:
        found = required_map(data, "Cast")
        return {**found, **{name: cast(found.get(name), None, target) for name, target in types.items()}}

    return step(part, with_schema, without_schema, replaces_nulls=replaces_nulls)


def _is_lossless(kind: Shape, target: str) -> bool:
    """Whether different values of a type stay different values, in the same order."""
    if kind.logical == "Decimal":
        return False
    if target in BITS:
        return kind.type == "boolean" or BITS.get(kind.type, 65) <= BITS[target]
    return (kind.type == target and kind.logical is None) or (kind.type, target) == ("float32", "float64")


def cast_whole(part: Part, target: str) -> Transform:
    """Cast of the whole data."""

    def with_schema(schema: Schema) -> Compiled:
        found = shape(schema)
        made = optional(PRIMITIVES[target], is_optional=found.optional)
        return Compiled(made, lambda data, _: cast(data, found, target))

    return step(part, with_schema, lambda data, _: cast(data, None, target), replaces_nulls=False)


def cast(value: Any, kind: Shape | None, target: str) -> Any:
    """A value as another type; null stays null.

    Args:
        value: the value.
        kind: its type; None for a value without a schema.
        target: a key of PRIMITIVES.

    Raises:
        TransformError: its type cannot be cast, or its text does not hold such a value.
    """
    if value is None:
        return None
    kind = kind or shape_of_value(value)
    if kind.type in _NOT_CAST:
        raise TransformError(f"Cast does not take values of type {kind.type}")
    if target == "string":
        return _text(value, kind)
    value = _plain(value, kind)
    if target == "boolean":
        return _boolean(value)
    if isinstance(value, bool):
        value = int(value)
    if target in BITS:
        if isinstance(value, str):
            return parsed_whole(value, BITS[target])
        if is_number(value):
            return narrowed(value, BITS[target])
    elif isinstance(value, str):
        return parsed_float(value, is_single=target == "float32")
    elif is_number(value):
        return single(float(value)) if target == "float32" else float(value)
    raise TransformError(f"Cast cannot make {target} of a value of type {kind.type}")


def _plain(value: Any, kind: Shape) -> Any:
    """A date, time or timestamp as the number that stands for it."""
    if kind.logical == "Date":
        return ms_of_date(value) // MS_PER_DAY
    if isinstance(value, date | time):
        return ms_of(value)
    return str(value) if isinstance(value, UUID) else value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() == "true"
    if is_number(value):
        return narrowed(value, 64) != 0
    raise TransformError("Cast cannot make boolean of a value of type bytes")


def _text(value: Any, kind: Shape) -> str:
    if kind.logical in ("Date", "Time", "Timestamp") or isinstance(value, date | time | datetime):
        return iso_text(ms_of_date(value) if kind.logical == "Date" else ms_of(value))
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return text_of_double(value, is_single=kind.type == "float32")
    return str(value) if isinstance(value, int | Decimal | str | UUID) else repr(value)

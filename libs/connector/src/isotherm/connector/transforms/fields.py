"""MaskField, ReplaceField, InsertField and ValueToKey: fields of a record masked, left out, renamed, added, copied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.numbers import BITS, decimal_of_text, float_of_text, whole_of_text
from isotherm.connector.transforms.schemas import (
    STRUCT_NAME,
    TIMESTAMP,
    Shape,
    field,
    fields_of,
    optional,
    per_schema,
    record,
    shape,
)
from isotherm.connector.transforms.steps import Compiled, required_map, step

_ZEROS: Mapping[str, Callable[[], Any]] = {
    "boolean": lambda: False,
    **dict.fromkeys(BITS, lambda: 0),
    "float32": lambda: 0.0,
    "float64": lambda: 0.0,
    "string": str,
    "array": list,
    "map": dict,
    "Date": lambda: date(1970, 1, 1),
    "Time": time,
    "Timestamp": lambda: 0,
    "Decimal": Decimal,
}
_MASKED = "MaskField"


def mask_field(part: Part, fields: Sequence[str], replacement: str | None, *, replaces_nulls: bool) -> Transform:
    """MaskField: the fields get a null value of their type (0, false, empty), or the replacement."""

    def with_schema(schema: Schema) -> Compiled:
        kinds = {one["name"]: shape(one["type"]) for one in fields_of(schema, _MASKED) if one["name"] in fields}

        def convert(data: Any, _: Message) -> Any:
            found = required_map(data, _MASKED)
            masked = {
                name: None if found.get(name) is None else _mask(kind, replacement) for name, kind in kinds.items()
            }
            return {**found, **masked}

        return Compiled(record(schema, fields_of(schema, _MASKED), changed=fields), convert)

    def without_schema(data: Any, _: Message) -> Any:
        found = required_map(data, _MASKED)
        masked = {
            name: None if found.get(name) is None else _mask(shape_of_value(found[name]), replacement)
            for name in fields
        }
        return {**found, **masked}

    return step(part, with_schema, without_schema, skips_null=False, replaces_nulls=replaces_nulls)


def _mask(kind: Shape, replacement: str | None) -> Any:
    name = kind.logical or kind.type
    if replacement is None:
        if name not in _ZEROS:
            raise TransformError(f"{_MASKED} cannot mask a value of type {name}")
        return _ZEROS[name]()
    if name in BITS:
        return whole_of_text(replacement, BITS[name])
    if name in ("float32", "float64"):
        return float_of_text(replacement, is_single=name == "float32")
    if name == "Decimal":
        return decimal_of_text(replacement)
    if name != "string":
        raise TransformError(f"{_MASKED} cannot replace a value of type {name}; numbers and texts have replacements")
    return replacement


def shape_of_value(value: Any) -> Shape:
    """The type that Connect gives to a value without a schema: whole numbers are int64, others float64.

    Raises TransformError for a value of another class.
    """
    for kind, name in _CLASSES:
        if isinstance(value, kind):
            return Shape(name, "Timestamp" if kind is _TIMES else None, False, None)
    raise TransformError(f"a value of type {type(value).__name__} has no type of Connect")


_TIMES = (date, time)
_CLASSES: tuple[tuple[Any, str], ...] = (
    (bool, "boolean"),
    (int, "int64"),
    (float, "float64"),
    (str, "string"),
    ((bytes, bytearray), "bytes"),
    (list, "array"),
    (dict, "map"),
    (_TIMES, "int64"),
    (Decimal, "bytes"),
)


def replace_field(
    part: Part,
    exclude: Collection[str],
    include: Collection[str],
    renames: Mapping[str, str],
    *,
    replaces_nulls: bool,
) -> Transform:
    """ReplaceField: fields are left out, or only some are kept, and fields get other names."""
    originals = {new: old for old, new in renames.items()}

    def is_kept(name: str) -> bool:
        return name not in exclude and (not include or name in include)

    def with_schema(schema: Schema) -> Compiled:
        kept = [one for one in fields_of(schema, "ReplaceField") if is_kept(one["name"])]
        fields = [{**one, "name": renames.get(one["name"], one["name"])} for one in kept]
        # As in Connect, the value is looked up by the new name's first owner.
        sources = [(one["name"], originals.get(one["name"], one["name"])) for one in fields]

        def convert(data: Any, _: Message) -> Any:
            found = required_map(data, "ReplaceField")
            return {name: found.get(source) for name, source in sources}

        return Compiled(record(schema, fields, origins=dict(sources)), convert)

    def without_schema(data: Any, _: Message) -> Any:
        found = required_map(data, "ReplaceField")
        kept = [(renames.get(name, name), value) for name, value in found.items() if is_kept(name)]
        made = dict(kept)
        if len(made) < len(kept):
            # In Connect the order of a hash table decides which of them is lost.
            raise TransformError(f"ReplaceField gives two fields one name: {', '.join(name for name, _ in kept)}")
        return made

    return step(part, with_schema, without_schema, replaces_nulls=replaces_nulls)


def insert_field(
    part: Part, inserted: Mapping[str, str], static_value: str | None, *, replaces_nulls: bool
) -> Transform:
    """InsertField: adds where the record stands, its timestamp, or a text.

    Args:
        part: key or value.
        inserted: names of the new fields by what they hold: `topic`, `partition`, `offset`, `timestamp`, `static`. A
            name with `!` at its end is a required field.
        static_value: the text of `static`.
        replaces_nulls: see `steps.step`.
    """
    added = [(what, _name(inserted[what]), not inserted[what].endswith("!")) for what in _INSERTED if what in inserted]
    added = [one for one in added if one[0] != "static" or static_value is not None]

    def values(message: Message) -> dict[str, Any]:
        found = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "timestamp": message.timestamp_ms,
            "static": static_value,
        }
        return {name: found[what] for what, name, _ in added}

    def with_schema(schema: Schema) -> Compiled:
        new = [field(name, optional(_INSERTED[what], is_optional=may_be_null)) for what, name, may_be_null in added]
        schema_after = record(schema, [*fields_of(schema, "InsertField"), *new])
        return Compiled(schema_after, lambda data, message: {**required_map(data, "InsertField"), **values(message)})

    return step(
        part,
        with_schema,
        lambda data, message: {**required_map(data, "InsertField"), **values(message)},
        replaces_nulls=replaces_nulls,
    )


_INSERTED: Mapping[str, Schema] = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": TIMESTAMP,
    "static": "string",
}


def _name(written: str) -> str:
    return written[:-1] if written.endswith(("!", "?")) else written


def value_to_key(fields: Sequence[str], *, replaces_nulls: bool) -> Transform:
    """ValueToKey: the key becomes a record of some fields of the value."""
    purpose = "ValueToKey"

    def key_schema(schema: Schema) -> Schema:
        known = {one["name"]: one for one in fields_of(schema, purpose)}
        missing = next((name for name in fields if name not in known), None)
        if missing is not None:
            raise TransformError(f"{purpose}: the value has no field {missing!r}")
        return {"type": "record", "name": STRUCT_NAME, "fields": [known[name] for name in fields]}

    compiled = per_schema(key_schema)

    def convert(data: Any, _: Message) -> Any:
        found = required_map(data, purpose)
        return {name: found.get(name) for name in fields}

    # The values come from a transform of the value that changes nothing, so that nulls are replaced alike.
    value_of = step(
        Part.VALUE,
        lambda schema: Compiled(schema, convert),
        convert,
        skips_null=False,
        replaces_nulls=replaces_nulls,
    )

    def apply(message: Message) -> Message:
        schema = None if message.value_schema is None else compiled(message.value_schema)
        made = value_of(message)
        assert made is not None
        return message._replace(key_schema=schema, key=made.value)

    return apply

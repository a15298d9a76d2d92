"""HeaderFrom, InsertHeader and DropHeaders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from isotherm.connector.transforms.literals import value_of_literal
from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.schemas import fields_of, record
from isotherm.connector.transforms.steps import Compiled, required_map, step


def header_from(
    part: Part, fields: Sequence[str], headers: Sequence[str], *, is_move: bool, replaces_nulls: bool
) -> Transform:
    """HeaderFrom: fields are copied or moved to headers, which are added behind those that are there."""

    def without(data: Any) -> dict[str, Any]:
        found = required_map(data, "HeaderFrom")
        return {name: value for name, value in found.items() if name not in fields} if is_move else found

    def with_schema(schema: Schema) -> Compiled:
        all_fields = fields_of(schema, "HeaderFrom")
        names = [one["name"] for one in all_fields]
        missing = next((name for name in fields if name not in names), None)
        if missing is not None:
            raise TransformError(f"HeaderFrom: there is no field {missing!r}")
        kept = [one for one in all_fields if not is_move or one["name"] not in fields]
        return Compiled(record(schema, kept), lambda data, _: without(data))

    whole = step(part, lambda schema: Compiled(schema, _same), _same, skips_null=False, replaces_nulls=replaces_nulls)
    changed = step(part, with_schema, lambda data, _: without(data), skips_null=False, replaces_nulls=replaces_nulls)

    def apply(message: Message) -> Message | None:
        filled = whole(message)
        assert filled is not None
        found = required_map(part.data(filled), "HeaderFrom")
        made = changed(message)
        added = tuple((header, found.get(name)) for header, name in zip(headers, fields, strict=True))
        return None if made is None else made._replace(headers=(*message.headers, *added))

    return apply


def _same(data: Any, _: Message) -> dict[str, Any]:
    return required_map(data, "HeaderFrom")


def insert_header(name: str, literal: str) -> Transform:
    """InsertHeader: a header is added, also when there is one of its name. Its literal says the type."""
    value = value_of_literal(literal)
    return lambda message: message._replace(headers=(*message.headers, (name, value)))


def drop_headers(names: Collection[str]) -> Transform:
    """DropHeaders: all headers of these names go."""
    return lambda message: message._replace(headers=tuple(one for one in message.headers if one[0] not in names))

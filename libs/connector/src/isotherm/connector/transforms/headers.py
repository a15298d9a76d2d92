"""HeaderFrom, InsertHeader and DropHeaders."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.numbers import decimal_of_text, single
from isotherm.connector.transforms.schemas import fields_of, record
from isotherm.connector.transforms.steps import Compiled, required_map, step

_WORDS = {"null": None, "true": True, "false": False}
_LONGEST = 64
"""Bits of a whole number; a longer one is a double."""
_MOST_DIGITS = 400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = (
    (DateFormat("yyyy-MM-dd"), 10),
    (DateFormat("HH:mm:ss.SSS'Z'"), 13),
    (DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"), 24),
)
"""Each with the length of its texts."""


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
    value = _value_of_literal(literal)
    return lambda message: message._replace(headers=(*message.headers, (name, value)))


def drop_headers(names: Collection[str]) -> Transform:
    """DropHeaders: all headers of these names go."""
    return lambda message: message._replace(headers=tuple(one for one in message.headers if one[0] not in names))


def _value_of_literal(text: str) -> Any:
    """Return the value that a literal stands for, as Connect infers it (`Values.parseString`): null, a boolean, a
    number, a time, a list or a map, else the text itself.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if text[:1].isascii() and text[:1].isdigit() and (moment := _time(text)) is not None:
        return moment
    try:
        return _number(decimal_of_text(text)) if text[:1] in set("0123456789+-") else text
    except TransformError:
        return text


def _time(text: str) -> date | time | datetime | None:
    for form, length in _TIMES:
        if len(text) == length:
            try:
                moment = _EPOCH + timedelta(milliseconds=form.parse(text))
            except TransformError:
                return None
            return moment.date() if length == 10 else moment.time() if length == 13 else moment
    return None


def _number(number: Decimal) -> int | float | Decimal:
    if number.adjusted() < _MOST_DIGITS and number == number.to_integral_value():
        whole = int(number)
        if -(1 << _LONGEST - 1) <= whole < 1 << _LONGEST - 1:
            return whole
    double = float(number)
    narrow = double if number.as_tuple().exponent == 0 else single(double)
    return number if math.isinf(double) else double if math.isinf(narrow) else narrow

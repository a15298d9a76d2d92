"""The value that a literal of a configuration stands for, as Connect infers it (`Values.parseString`)."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import TransformError
from isotherm.connector.transforms.numbers import decimal_of_text, single

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


def value_of_literal(text: str) -> Any:
    """Return null, a boolean, a number, a time, a list or a map, if the text is one in Connect's terms; else itself."""
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

"""Numbers and texts as Java converts them: widths, saturation, and the text of a double."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from typing import Any

from isotherm.connector.transforms.message import TransformError

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
"""The widths of Connect's whole numbers."""
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_DOUBLE = re.compile(r"\s*([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?))[fFdD]?\s*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_MOST_EXPONENT = 400


def whole_of_text(text: str, bits: int) -> int:
    """The low bits of a number in a text (`new BigDecimal(text).longValue()`). Raises TransformError."""
    number = decimal_of_text(text)
    if number.adjusted() > _MOST_EXPONENT:
        raise TransformError(f"{text!r} is too large for a whole number")
    return wrapped(int(number), bits)


def decimal_of_text(text: str) -> Decimal:
    """The number in a text. Raises TransformError."""
    if not _DECIMAL.fullmatch(text):
        raise TransformError(f"{text!r} is no number")
    return Decimal(text)


def float_of_text(text: str, *, is_single: bool = False) -> float:
    """The double, or float, nearest to a number in a text. Raises TransformError."""
    number = float(decimal_of_text(text))
    return single(number) if is_single else number


def parsed_whole(text: str, bits: int) -> int:
    """The number in a text, which must fit (`Integer.parseInt`). Raises TransformError."""
    if not _WHOLE.fullmatch(text) or wrapped(int(text), bits) != int(text):
        raise TransformError(f"{text!r} is no whole number of {bits} bits")
    return int(text)


def parsed_float(text: str, *, is_single: bool) -> float:
    """The number in a text, with blanks around it (`Double.parseDouble`). Raises TransformError."""
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise TransformError(f"{text!r} is no number")
    number = float(found[1])
    return single(number) if is_single else number


def wrapped(number: int, bits: int) -> int:
    """The low bits of a whole number, as a signed number of that width."""
    low = number & (1 << bits) - 1
    return low - (1 << bits) if low >> (bits - 1) else low


def narrowed(number: float | int | Decimal, bits: int) -> int:
    """A number as a whole number of `bits`: doubles saturate (JLS 5.1.3), whole numbers lose their high bits."""
    if isinstance(number, float):
        if math.isnan(number):
            return 0
        wide = 64 if bits == 64 else 32
        most = (1 << (wide - 1)) - 1
        whole = most if number >= most else -most - 1 if number <= -most - 1 else int(number)
        return wrapped(whole, bits)
    return wrapped(int(number), bits)


def single(number: float) -> float:
    """A double rounded to a float."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def text_of_double(number: float, *, is_single: bool = False) -> str:
    """A double or float as Java writes it: `1.0`, `1.5E-5`, `1.0E10`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    shortest = _shortest_single(number) if is_single else repr(number)
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = exponent + len(digits)
    minus = "-" if sign else ""
    if number == 0:
        return f"{minus}0.0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        padded = text.ljust(point, "0")
        return f"{minus}{padded[:point]}.{padded[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _shortest_single(number: float) -> str:
    return next(
        (text for digits in range(1, 10) if single(float(text := f"{number:.{digits}g}")) == number), repr(number)
    )


def is_number(value: Any) -> bool:
    """Whether a value is a number of Java: no boolean."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)

"""Conditions on readings as Spark expressions. Pure.

Spark's logic has SQL's three values, as KCQL's has; only "true" keeps a reading.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import reduce
from typing import assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import exact_comparisons
from isotherm.aggregator.frames.exact_comparisons import COMPARE, MIRRORED
from isotherm.aggregator.reading_condition import ATTRIBUTES, kind_of
from isotherm.kcql import Condition, Path
from isotherm.kcql.model import And, Comparison, Constant, Like, Membership, Not, NullTest, Operand, Or

_ESCAPE = "\\"


def is_true(condition: Condition, reading: str) -> Column:
    """Return whether a condition is true of the struct column `reading`; false also where it is unknown."""
    return F.coalesce(_column(condition, reading), F.lit(False))


def _column(condition: Condition, reading: str) -> Column:
    match condition:
        case And(parts):
            return reduce(operator.and_, (_column(part, reading) for part in parts))
        case Or(parts):
            return reduce(operator.or_, (_column(part, reading) for part in parts))
        case Not(inner):
            return ~_column(inner, reading)
        case NullTest(path, negated):
            field = _field(path, reading)
            return field.isNotNull() if negated else field.isNull()
        case Comparison(sign, left, right):
            return _comparison(sign, left, right, reading)
        case Membership(path, values, negated):
            member = _member(path, values, reading)
            return ~member if negated else member
        case Like(path, pattern, escape, negated):
            match_ = F.like(_field(path, reading), F.lit(_pattern(pattern, escape)), F.lit(_ESCAPE))
            return ~match_ if negated else match_
    assert_never(condition)


def _comparison(sign: str, left: Operand, right: Operand, reading: str) -> Column:
    if isinstance(left, Constant):
        return _comparison(MIRRORED[sign], right, left, reading)
    field = _field(left, reading)
    if isinstance(right, Path):
        return _comparison_of_fields(sign, left, right, reading)
    if _is_number(right):
        return exact_comparisons.compare_with_constant(sign, field, _number(right), is_long=_is_long(left))
    return COMPARE[sign](field, _constant(right))  # type: ignore[no-any-return]  # of Columns a Column


def _comparison_of_fields(sign: str, left: Path, right: Path, reading: str) -> Column:
    one, other = _field(left, reading), _field(right, reading)
    if kind_of(left) != "number" or _is_long(left) is _is_long(right):
        return COMPARE[sign](one, other)  # type: ignore[no-any-return]  # of Columns a Column
    if _is_long(left):
        return exact_comparisons.compare_double_with_long(MIRRORED[sign], other, one)
    return exact_comparisons.compare_double_with_long(sign, one, other)


def _member(path: Path, values: Sequence[Constant], reading: str) -> Column:
    field = _field(path, reading)
    if _is_number(values[0]):
        return exact_comparisons.is_member(field, tuple(map(_number, values)), is_long=_is_long(path))
    return reduce(operator.or_, (field == _constant(value) for value in values))


def _field(path: Path, reading: str) -> Column:
    if path.segments[0] == ATTRIBUTES:
        return F.try_element_at(F.col(f"{reading}.{ATTRIBUTES}"), F.lit(path.segments[1]))
    return F.col(f"{reading}.{path.segments[0]}")


def _constant(constant: Constant) -> Column:
    value = constant.value
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit(round(value.timestamp() * 1_000_000)))
    return F.lit(value)


def _is_number(constant: Constant) -> bool:
    return isinstance(constant.value, int | Decimal) and not isinstance(constant.value, bool)


def _number(constant: Constant) -> int | Decimal:
    assert isinstance(constant.value, int | Decimal)
    return constant.value


def _is_long(path: Path) -> bool:
    return path.segments == ("sequence",)


def _pattern(pattern: str, escape: str | None) -> str:
    """Return a pattern of KCQL as one of Spark, in which a backslash escapes."""
    written, chars = [], iter(pattern)
    for char in chars:
        is_escaped = char == escape
        plain = next(chars, char) if is_escaped else char
        needs_escape = plain == _ESCAPE or (is_escaped and plain in "%_")
        written.append(f"{_ESCAPE}{plain}" if needs_escape else plain)
    return "".join(written)

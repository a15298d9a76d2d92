"""Conditions on readings as Spark expressions. Pure.

Spark's logic has SQL's three values, as KCQL's has; only "true" keeps a reading.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import reduce
from typing import assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.reading_condition import ATTRIBUTES
from isotherm.kcql import Condition, Path
from isotherm.kcql.model import And, Comparison, Constant, Like, Membership, Not, NullTest, Or

_COMPARE: Mapping[str, Callable[[Column, Column], Column]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
            return _COMPARE[sign](_operand(left, reading), _operand(right, reading))
        case Membership(path, values, negated):
            field = _field(path, reading)
            member = reduce(operator.or_, (field == _constant(value) for value in values))
            return ~member if negated else member
        case Like(path, pattern, escape, negated):
            match_ = F.like(_field(path, reading), F.lit(_pattern(pattern, escape)), F.lit(_ESCAPE))
            return ~match_ if negated else match_
    assert_never(condition)


def _operand(operand: Path | Constant, reading: str) -> Column:
    return _field(operand, reading) if isinstance(operand, Path) else _constant(operand)


def _field(path: Path, reading: str) -> Column:
    if path.segments[0] == ATTRIBUTES:
        return F.try_element_at(F.col(f"{reading}.{ATTRIBUTES}"), F.lit(path.segments[1]))
    return F.col(f"{reading}.{path.segments[0]}")


def _constant(constant: Constant) -> Column:
    value = constant.value
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit(round(value.timestamp() * 1_000_000)))
    if isinstance(value, str):
        return F.lit(value)
    # Comparing a long with a double is exact up to 2**53 in both Spark and KCQL.
    return F.lit(float(value))


def _pattern(pattern: str, escape: str | None) -> str:
    """Return a pattern of KCQL as one of Spark, in which a backslash escapes."""
    written, chars = [], iter(pattern)
    for char in chars:
        is_escaped = char == escape
        plain = next(chars, char) if is_escaped else char
        needs_escape = plain == _ESCAPE or (is_escaped and plain in "%_")
        written.append(f"{_ESCAPE}{plain}" if needs_escape else plain)
    return "".join(written)

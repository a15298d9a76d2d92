"""Comparisons of numbers by their exact values, as KCQL makes them. Pure: columns in, columns out.

Spark compares a long with a double by rounding the long, so 2^53 and 2^53 + 1 would be equal.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""KCQL's signs of comparison."""
MIRRORED: Mapping[str, str] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The sign for the exchanged operands."""

_FIRST_BEYOND_LONG = 2**63
_EXACT_DOUBLE = 2**53


def compare_with_constant(sign: str, field: Column, constant: int | Decimal, *, is_long: bool) -> Column:
    """Return whether a number `field` (a long or a double) compares with a constant; null for null.

    KCQL takes a constant with a point or an exponent as a double, unless it is a smaller whole number.
    """
    is_small_whole = -_EXACT_DOUBLE < constant < _EXACT_DOUBLE and constant == int(constant)
    number = int(constant) if isinstance(constant, int) or is_small_whole else float(constant)
    return _long_with(sign, field, number) if is_long else _double_with(sign, field, number)


def is_member(field: Column, constants: tuple[int | Decimal, ...], *, is_long: bool) -> Column:
    """Return whether a number `field` is one of the constants; null for null.

    A constant with a point or an exponent is taken as KCQL takes it in a comparison, and by its exact value.
    """
    tests = [compare_with_constant("=", field, constant, is_long=is_long) for constant in constants]
    if is_long:
        tests += [
            _long_with("=", field, int(constant))
            for constant in constants
            if isinstance(constant, Decimal) and constant == constant.to_integral_value()
        ]
    return reduce(operator.or_, tests)


def compare_double_with_long(sign: str, double: Column, long: Column) -> Column:
    """Return whether a double compares with a long; null if one of them is null."""
    rounded = long.cast("double")
    return (
        F.when(double.isNull() | long.isNull(), F.lit(None).cast("boolean"))
        # Rounding keeps the order: the long lies on the same side of every other double as its nearest double.
        .when(double != rounded, COMPARE[sign](double, rounded))
        .when(double >= F.lit(float(_FIRST_BEYOND_LONG)), F.lit(bool(COMPARE[sign](1, 0))))
        .otherwise(COMPARE[sign](double.cast("long"), long))
    )


def _long_with(sign: str, field: Column, number: float) -> Column:
    if not math.isfinite(number) or not -_FIRST_BEYOND_LONG <= number < _FIRST_BEYOND_LONG:
        return _always(field, COMPARE[sign](0, number))
    whole = math.floor(number)
    if whole == number:
        return COMPARE[sign](field, F.lit(whole).cast("long"))  # type: ignore[no-any-return]  # of Columns a Column
    if sign in ("=", "<>"):
        return _always(field, sign == "<>")
    return field <= F.lit(whole).cast("long") if sign in ("<", "<=") else field > F.lit(whole).cast("long")


def _double_with(sign: str, field: Column, number: float) -> Column:
    try:
        nearest = float(number)
    except OverflowError:  # a whole number beyond all doubles
        return _always(field, COMPARE[sign](0, number))
    if nearest == number:
        return COMPARE[sign](field, F.lit(nearest))  # type: ignore[no-any-return]  # of Columns a Column
    if sign in ("=", "<>"):
        return _always(field, sign == "<>")
    is_below = nearest < number
    if sign in ("<", "<="):
        return field <= F.lit(nearest) if is_below else field < F.lit(nearest)
    return field > F.lit(nearest) if is_below else field >= F.lit(nearest)


def _always(field: Column, answer: bool) -> Column:
    return F.when(field.isNotNull(), F.lit(answer))

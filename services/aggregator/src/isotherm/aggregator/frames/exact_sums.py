"""Exact sums of doubles in Spark: partial sums of whole numbers, which do not depend on order. Pure.

A double is split into at most three digits of 32 bits, each with its position. Digits of one position are added as
whole numbers, on every machine, in any order, in Spark's own hash aggregation, which spills to disk. What is left is
one whole number for each position (at most 66, two to four for usual measurements), and `rounded` makes the double of
them. `isotherm.aggregator.exact_sum` gives the same bits in Python.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.exact_sum import DIGIT_BITS, LOWEST_EXPONENT, WEIGHTS

MAX_TERMS = 2**29
"""Most terms of one sum: so many digits of 33 bits fit into 62 bits. Spark ends a query whose sum overflows 63."""

_WEIGHTS = f"array({', '.join(f'{weight!r}D' for weight in WEIGHTS)})"
_LOWEST_TOP = 2
"""Lowest position of a first digit, so that the two after it have positions, too."""


def position(term: Column) -> Column:
    """Return the position of the first digit of a finite double.

    The logarithm may be off by one beside a power of two. Then the first digit has 33 bits, or it is 0 and the other
    two have all 53 bits of the double; either way nothing is lost.
    """
    exponent = F.coalesce(F.log2(F.abs(term)), F.lit(float(LOWEST_EXPONENT)))
    top = F.floor((exponent - F.lit(float(LOWEST_EXPONENT))) / F.lit(float(DIGIT_BITS)))
    return F.greatest(top, F.lit(_LOWEST_TOP)).cast("int")


def digit(term: Column, place: Column) -> Column:
    """Return the digit of `term` at a position, with its sign: how often the position's weight goes into it.

    Dividing a double by a power of two is exact here, and so is `rest`.
    """
    return (term / _weight(place)).cast("long")


def rest(term: Column, place: Column, digit: Column) -> Column:
    """Return what is left of `term` without its digit at a position. Exact."""
    return term - digit.cast("double") * _weight(place)


def rounded(digits: Column) -> Column:
    """Return the double of summed digits: an array of structs of `position` and `digit`, each position once."""
    zero = F.struct(F.lit(0).alias("place"), F.lit(0).cast("long").alias("carry"), F.lit(0.0).alias("total"))
    return F.aggregate(F.array_sort(digits), zero, _add, lambda end: end["total"] + _value(end["carry"], end["place"]))


def _add(before: Column, entry: Column) -> Column:
    """Add the digit of the next position, and of the positions between, where only a carry can be."""
    place, is_next = entry["position"], entry["position"] == before["place"]
    total = before["total"] + F.when(is_next, 0.0).otherwise(_value(before["carry"], before["place"]))
    number = entry["digit"] + F.when(is_next, before["carry"]).otherwise(F.lit(0).cast("long"))
    half = 1 << (DIGIT_BITS - 1)
    low = (number + F.lit(half)).bitwiseAND(F.lit((1 << DIGIT_BITS) - 1)) - F.lit(half)
    return F.struct(
        (place + 1).alias("place"),
        F.shiftright(number - low, DIGIT_BITS).alias("carry"),
        (total + _value(low, place)).alias("total"),
    )


def _value(digit: Column, place: Column) -> Column:
    return digit.cast("double") * _weight(place)


def _weight(place: Column) -> Column:
    # One expression as text: PySpark would ask the JVM for each of the literals.
    return F.get(F.expr(_WEIGHTS), place)

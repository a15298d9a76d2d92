"""Estimated numbers of distinct values, by HyperLogLog sketches that can be merged (ADR 0261). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

LOG2_BUCKETS = 12
"""2^12 buckets: a standard error of 1.04 / sqrt(4096) = 1.6 %, and at most 4,136 bytes."""
TYPE = "map<string,binary>"


def column_of(number: int) -> str:
    """Return the name of the column with the values of a field, by its place among the fields."""
    return f"distinct_{number}"


def values(fields: Sequence[str]) -> list[Column]:
    """Return the values of fields of a reading, in a form that a sketch takes: texts and whole numbers."""
    return [_value(name).alias(column_of(number)) for number, name in enumerate(fields)]


def _value(name: str) -> Column:
    field, _, entry = name.partition(".")
    if entry:
        return _sketchable(F.try_element_at(F.col(field), F.lit(entry)))
    if field == "unit":
        return _sketchable(F.col(field))
    # 0.0 and -0.0 are one value, and have one text only after an addition.
    return (F.col(field) + F.lit(0.0)).cast("string") if field == "value" else F.col(field)


def _sketchable(text: Column) -> Column:
    """Return texts with a character before them: a sketch passes over an empty text, which is a value, too."""
    return F.concat(F.lit(" "), text)


def sketch(name: str) -> Column:
    """Return the aggregate that makes a sketch of a column. A null is no value."""
    return F.hll_sketch_agg(name, LOG2_BUCKETS)


def by_field(sketches: Mapping[str, Column]) -> Column:
    """Return sketches by the name of their field."""
    entries = [part for name, one in sketches.items() for part in (F.lit(name), one)]
    return F.create_map(*entries).cast(TYPE)


def sum_of(one: Column, other: Column) -> Column:
    """Return the sketches of both sets of readings, for the fields of which both have one."""
    both = F.map_zip_with(one, other, lambda _name, here, there: F.hll_union(here, there))
    return F.map_filter(both, lambda _name, sketched: sketched.isNotNull())


def estimates(sketches: Column) -> Column:
    """Return the number of distinct values by field.

    A sketch that was filled value by value estimates by the order of the values, too. The union with itself forgets
    that order, so the same values give the same number however they came.
    """
    return F.transform_values(sketches, lambda _name, one: F.hll_sketch_estimate(F.hll_union(one, one)))

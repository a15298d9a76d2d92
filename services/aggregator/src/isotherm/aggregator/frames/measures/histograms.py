"""Histograms of doubles whose buckets grow by a factor, and percentiles of them (ADR 0261). Pure.

With the factor g = (1 + r) / (1 - r) a value lies in the bucket ceil(log_g |value|), and the middle of its bucket is at
most r of the value away from it (Masson, Rim, Lee 2019: DDSketch). Histograms are merged by adding counts, which is
exact and does not depend on order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.windowing.measures import Percentile

SMALLEST_VALUE = 1e-100
"""Values nearer to 0 count as 0. No larger value than 1e100 is aggregated (`readings.LARGEST_VALUE`)."""

TYPE = "struct<relative_error:double,buckets:array<struct<index:int,count:bigint>>>"
_BUCKETS_TYPE = "array<struct<index:int,count:bigint>>"


def _log_factor(relative_error: float) -> float:
    return math.log((1 + relative_error) / (1 - relative_error))


def _offset(relative_error: float) -> int:
    """Return what is added to a bucket's exponent, so that it is above 0 and the index can have the value's sign."""
    return math.ceil(100 * math.log(10) / _log_factor(relative_error)) + 1


def index(value: Column, relative_error: float) -> Column:
    """Return the index of the bucket of a finite double. Indices are in the order of the values."""
    size = F.abs(value)
    exponent = F.ceil(F.ln(size) / F.lit(_log_factor(relative_error))) + F.lit(_offset(relative_error))
    return F.when(size < SMALLEST_VALUE, F.lit(0)).otherwise(F.signum(value) * exponent).cast("int")


def made(buckets: Column, relative_error: float) -> Column:
    """Return a histogram of an array of structs of `index` and `count`, each index once and in order."""
    return F.struct(F.lit(relative_error).alias("relative_error"), buckets.cast(_BUCKETS_TYPE).alias("buckets"))


def none() -> Column:
    """Return the histogram of a window without one."""
    return F.lit(None).cast(TYPE)


def sum_of(one: Column, other: Column) -> Column:
    """Return the histogram of both sets of values; null when one has none, or their relative errors differ."""
    counts = F.map_zip_with(
        F.map_from_entries(one["buckets"]),
        F.map_from_entries(other["buckets"]),
        lambda _index, here, there: F.coalesce(here, F.lit(0)) + F.coalesce(there, F.lit(0)),
    )
    together = F.struct(
        one["relative_error"].alias("relative_error"),
        F.array_sort(F.map_entries(counts)).cast(_BUCKETS_TYPE).alias("buckets"),
    )
    return F.when(one["relative_error"] == other["relative_error"], together).otherwise(none())


def percentiles(row: Column, asked: Sequence[Percentile]) -> Column:
    """Return the percentiles of a row by name; an empty map without a histogram.

    `row` has `histogram`, `count`, `min` and `max`. No percentile lies outside of the values.
    """
    nothing = F.create_map().cast("map<string,double>")
    if not asked:
        return nothing
    entries = [part for one in asked for part in (F.lit(one.name), _percentile(row, one))]
    return F.when(row["histogram"].isNull(), nothing).otherwise(F.create_map(*entries))


def _percentile(row: Column, asked: Percentile) -> Column:
    part, whole = asked.share
    rank = F.call_function("div", row["count"] * F.lit(part) + F.lit(whole - 1), F.lit(whole))
    begin = F.struct(rank.alias("left"), F.lit(None).cast("int").alias("index"))

    def walk(before: Column, bucket: Column) -> Column:
        is_here = before["index"].isNull() & (before["left"] <= bucket["count"])
        return F.struct(
            (before["left"] - bucket["count"]).alias("left"),
            F.when(is_here, bucket["index"]).otherwise(before["index"]).alias("index"),
        )

    found = F.aggregate(row["histogram"]["buckets"], begin, walk, lambda end: end["index"])
    middle = _middle(found, row["histogram"]["relative_error"])
    return F.greatest(row["min"], F.least(row["max"], middle))


def _middle(index: Column, relative_error: Column) -> Column:
    """Return the value of a bucket, from which no value in it is further away than the relative error of the value."""
    factor = (F.lit(1.0) + relative_error) / (F.lit(1.0) - relative_error)
    offset = F.ceil(F.lit(100 * math.log(10)) / F.ln(factor)) + F.lit(1)
    size = F.lit(2.0) * F.pow(factor, F.abs(index) - offset) / (factor + F.lit(1.0))
    return F.when(index == 0, F.lit(0.0)).otherwise(F.signum(index.cast("double")) * size)

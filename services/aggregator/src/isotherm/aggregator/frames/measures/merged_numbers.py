"""The numbers of two sets of readings together, of which only the numbers are known. Pure: columns in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames.measures import distinct_counts, histograms
from isotherm.aggregator.windowing.measures import NUMBERS

_EXACT = ("device_count", "count", "min", "max", "duplicates", "histogram", "sketches")
_TOLERANCE = 1e-9
"""Tolerance of sum, mean and stddev: relative, and absolute below 1. They depend on the order of the additions."""


def only(row: Column, names: Sequence[str]) -> Column:
    """Return a struct of some fields of another one."""
    return F.struct(*(row[name].alias(name) for name in names))


def sum_of(one: Column, other: Column, names: Sequence[str] = NUMBERS) -> Column:
    """Return the numbers of two disjoint sets of readings together; `names` tells which of them there are."""
    count = one["count"] + other["count"]
    total = one["sum"] + other["sum"]
    apart = other["mean"] - one["mean"]
    # The sums of the squared distances from the mean add up, with this term for the distance of the two means
    # (Chan, Golub, LeVeque 1979). The numbers stay finite: values are at most 1e100.
    squares = (
        one["stddev"] * one["stddev"] * one["count"]
        + other["stddev"] * other["stddev"] * other["count"]
        + apart * apart * (one["count"] * (other["count"] / count))
    )
    together: Mapping[str, Callable[[], Column]] = {
        "count": lambda: count,
        "sum": lambda: total,
        "mean": lambda: total / count,
        "min": lambda: F.least(one["min"], other["min"]),
        "max": lambda: F.greatest(one["max"], other["max"]),
        "stddev": lambda: F.sqrt(squares / count),
        "duplicates": lambda: one["duplicates"] + other["duplicates"],
        "histogram": lambda: histograms.sum_of(one["histogram"], other["histogram"]),
        "sketches": lambda: distinct_counts.sum_of(one["sketches"], other["sketches"]),
    }
    return F.struct(*(together[name]().alias(name) for name in names))


def has_fewer(one: Column, other: Column, names: Sequence[str]) -> Column:
    """Return whether a window has fewer readings than another one, those left out as copies included. Null has none."""

    def readings(row: Column) -> Column:
        counts = [row[name] for name in ("count", "duplicates") if name in names]
        return F.coalesce(sum(counts[1:], counts[0]), F.lit(0))

    return readings(one) < readings(other)


def is_same(one: Column, other: Column, names: Sequence[str]) -> Column:
    """Return whether two structs have the same numbers, by _TOLERANCE where they are not exact."""
    same = F.lit(True)
    for name in names:
        now, before = one[name], other[name]
        if name == "sketches":
            # The bytes of a sketch depend on the order of its values, what it estimates does not.
            now, before = (F.array_sort(F.map_entries(distinct_counts.estimates(each))) for each in (now, before))
        if name in _EXACT:
            same = same & now.eqNullSafe(before)
        else:
            near = F.abs(now - before) <= F.lit(_TOLERANCE) * F.greatest(F.lit(1.0), F.abs(now), F.abs(before))
            same = same & F.coalesce(near, F.lit(False))
    return same

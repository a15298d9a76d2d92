"""Sums that do not depend on the order of their terms: in Python, and the same bits in Spark."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.exact_sum import exact_sum
from isotherm.aggregator.frames import windows

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

MEMBERS = (
    "metric string, window_start timestamp, window_end timestamp, count long, sum double, min double, max double, "
    "revision long, home string"
)
SMALLEST = 5e-324
EDGES = [0.0, SMALLEST, -SMALLEST, 0.1, 0.2, 0.3, 1e100, -1e100, 2.2250738585072014e-308]
POWERS = [sign * 2.0**n for n in (-1042, -1010, -50, -18, 14, 46, 300) for sign in (1, -1)]
EDGES += [*POWERS, *(math.nextafter(power, side) for power in POWERS for side in (0, math.copysign(9e99, power)))]
terms = st.lists(st.floats(-1e100, 1e100) | st.floats(-100, 100) | st.sampled_from(EDGES), min_size=1, max_size=40)


@given(terms=terms, seed=st.integers(0, 1000))
def test_a_sum_is_the_same_in_any_order_and_exact_to_two_units_in_the_last_place(terms: list[float], seed: int) -> None:
    shuffled = list(terms)
    random.Random(seed).shuffle(shuffled)
    total, exact = exact_sum(terms), math.fsum(terms)
    assert total.hex() == exact_sum(shuffled).hex() == exact_sum(reversed(terms)).hex()
    assert abs(total - exact) <= 2 * math.ulp(exact)


def test_a_sum_beyond_the_largest_double_is_no_sum() -> None:
    assert exact_sum([1e308, 1e308, -1e308]) == 1e308
    with pytest.raises(OverflowError):
        exact_sum([1e308] * 1_000)


def members(spark: SparkSession, groups: Sequence[Sequence[float]]) -> DataFrame:
    """One device for each term; the groups are homes."""
    rows = [(float(term), f"home {number}") for number, group in enumerate(groups) for term in group]
    at = F.timestamp_millis(F.lit(0))
    return spark.createDataFrame(rows, "sum double, home string").select(
        F.lit("temperature").alias("metric"),
        at.alias("window_start"),
        F.timestamp_millis(F.lit(60_000)).alias("window_end"),
        F.lit(1).cast("long").alias("count"),
        "sum",
        F.col("sum").alias("min"),
        F.col("sum").alias("max"),
        F.lit(7).cast("long").alias("revision"),
        "home",
    )


def means(frame: DataFrame) -> dict[str, tuple[int, int, str, float, float]]:
    rows = windows.group(frame, ["home"], "unknown").collect()
    return {
        row["group"]: (row["device_count"], row["count"], row["mean"].hex(), row["min"], row["max"]) for row in rows
    }


def test_spark_adds_to_the_same_bits_in_any_order_and_any_number_of_partitions(spark: SparkSession) -> None:
    chance = random.Random(22)
    groups = [[value] for value in EDGES]
    groups += [[chance.gauss(20, 5) * 60 for _ in range(200)] for _ in range(5)]
    groups += [[math.ldexp(chance.uniform(-1, 1), chance.randrange(-1070, 330)) for _ in range(50)] for _ in range(20)]
    groups += [[1e100, 1.0, -1e100, 0.1], [2.0**60, -(2.0**60), SMALLEST], [1e16, 1.0, -1e16], [-0.0, 0.0]]
    expected = {
        f"home {number}": (
            len(group),
            len(group),
            (exact_sum(group) / len(group)).hex(),
            min(group),
            max(group),
        )
        for number, group in enumerate(groups)
    }
    frame = members(spark, groups).persist()
    try:
        assert means(frame) == expected
        assert means(frame.repartition(7, F.rand(3)).sortWithinPartitions(F.rand(4))) == expected
    finally:
        frame.unpersist()


def test_no_array_holds_the_members_of_a_group(spark: SparkSession) -> None:
    """The members are added before the shuffle, by a hash aggregation that spills; arrays hold positions alone."""
    plan = windows.group(members(spark, [[1.0]]), ["home"], "unknown")._jdf.queryExecution().sparkPlan().toString()
    nodes = [line.strip(" :+-*()0123456789") for line in plan.splitlines()]
    aggregations = [node for node in nodes if "Aggregate(" in node]
    kinds = [node.split("(")[0] for node in aggregations]
    assert kinds == ["ObjectHashAggregate", "ObjectHashAggregate", "HashAggregate", "HashAggregate"]
    for node in aggregations[2:]:
        keys, _, functions = node.partition("functions=")
        assert "position#" in keys
        assert "collect_list" not in functions


@pytest.mark.long
def test_a_group_of_a_million_devices_needs_no_more_memory(spark: SparkSession) -> None:
    count = 1_000_000
    frame = members(spark, [[1.0]]).drop("sum", "min", "max").crossJoin(spark.range(count).repartition(8))
    value = (F.col("id") % 1000) * F.lit(0.1) + F.lit(0.7)
    frame = frame.withColumns({"sum": value, "min": value, "max": value})
    found = means(frame)
    expected = exact_sum((n % 1000) * 0.1 + 0.7 for n in range(count))
    assert found == {"home 0": (count, count, (expected / count).hex(), 0.7, 999 * 0.1 + 0.7)}

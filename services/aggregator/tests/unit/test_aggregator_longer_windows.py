"""Longer windows made of finished ones: the plan, and the merging in one small Spark session against a recount."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import windows
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY
from isotherm.aggregator.rollups import merging
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.windowing.measures import NUMBERS
from isotherm.aggregator.windowing.rollup_plan import Rollup
from isotherm.servicekit import settings as loading
from isotherm.servicekit.settings import SettingsError
from isotherm.simulators import checker

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

MINUTE = Rollup("minute", 60_000, "rollups", "", 10_000, "out")
RULES = checker.Rules(10_000, allowed_lateness_ms=10**15, max_skew_ms=2_000)
Reading = dict[str, Any]


def load(*overrides: str) -> AggregatorSettings:
    return loading.load(
        AggregatorSettings, "aggregator", environ={}, overrides=["checkpoint_dir=c", "jars_dir=j", *overrides]
    )


def test_each_window_is_made_of_the_longest_ones_that_fit() -> None:
    chosen = load(
        "window_ms=10000",
        "windows.day.length_ms=86400000",
        "windows.minute.length_ms=60000",
        "windows.odd.length_ms=90000",
        "windows.hour.length_ms=3600000",
        "windows.hour.output_topic=hours",
    )
    parts = [(one.name, one.part_ms, one.part_topic) for one in chosen.rollups]
    assert parts == [
        ("minute", 10_000, "temperatures.aggregated"),
        ("odd", 10_000, "temperatures.aggregated"),
        ("hour", 90_000, "temperatures.rollups"),
        ("day", 3_600_000, "hours"),
    ]


SLIDING = ["windows.a.kind=sliding", "windows.a.length_ms=120000"]


def test_sliding_windows_have_whole_parts_and_are_none() -> None:
    chosen = load(
        "window_ms=10000",
        "windows.minute.length_ms=60000",
        "windows.near.kind=sliding",
        "windows.near.length_ms=120000",
        "windows.near.slide_ms=20000",
        "windows.far.kind=sliding",
        "windows.far.length_ms=300000",
        "windows.far.slide_ms=120000",
        "windows.hour.length_ms=3600000",
    )
    assert [(one.name, one.part_ms, one.slide_ms) for one in chosen.rollups] == [
        ("minute", 10_000, None),
        ("near", 10_000, 20_000),
        ("far", 60_000, 120_000),
        ("hour", 60_000, None),
    ]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["windows.a.length_ms=90000"], "windows.a: length_ms 90000 must be a multiple of window_ms 60000"),
        (["windows.a.length_ms=60000"], "must be a multiple of window_ms"),
        (["windows.a.length_ms=120000", "windows.b.length_ms=120000"], "length_ms 120000 is that of windows.a"),
        (["window_ms=1000", "windows.a.length_ms=86400000"], "is more than 10000 windows of 1000 ms"),
        (["slide_ms=30000", "windows.a.length_ms=120000"], "sliding windows overlap"),
        (["windows.a.length_ms=120000", "windows.a.output_topic=temperatures.aggregated"], "topics of their own"),
        (["windows.a.length_ms=120000", "windows.a.output_topic=x", "windows.a.grouped_topic=x"], "topics of their"),
        (["windows.a.length_ms=120000", "input_topics=temperatures.rollups"], "includes temperatures.rollups"),
        (["windows.a.length_ms=120000", "windows.a.kind=session"], "windows.a.kind.*'session' is not allowed: must be"),
        (["windows.a.length_ms=120000", "windows.a.kind=hopping"], "windows.a.kind.*'rollup' or 'sliding'"),
        (["windows.a.length_ms=120000", "windows.a.kind=sliding"], "windows.a.*slide_ms None is not allowed"),
        ([*SLIDING, "windows.a.slide_ms=120000"], "slide_ms 120000 is not allowed.*less than length_ms 120000"),
        ([*SLIDING, "windows.a.slide_ms=90000"], "length_ms 120000, slide_ms 90000 must be a multiple of window_ms"),
        ([*SLIDING, "window_ms=1000", "windows.a.slide_ms=1000"], "slide_ms 1000 is not allowed: must be 1200 or more"),
        ([*SLIDING, "windows.a.slide_ms=60000", "windows.b.length_ms=120000"], "length_ms 120000 is that of windows.a"),
        (["windows.a.length_ms=120000", "windows.a.slide_ms=60000"], "kind rollup do not overlap"),
        (["windows.a b.length_ms=120000"], "name 'a b' is not allowed"),
    ],
)
def test_windows_that_cannot_be_made_end_the_start(overrides: list[str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(*overrides)


readings = st.builds(
    lambda device, value, time: {
        "device_id": device,
        "metric": "m",
        "value": value,
        "event_time": time,
        "ingest_time": time,
    },
    st.sampled_from(["d1", "d2"]),
    st.floats(-1e6, 1e6) | st.sampled_from([1e6 + 0.001, 1e6 + 0.002, 0.1]),
    st.integers(0, 239_999),
)


def published(spark: SparkSession, given: Sequence[Reading]) -> DataFrame:
    """What `corrections.published` returns of the windows of these readings."""
    rows = [(one["device_id"], one["metric"], one["value"], one["event_time"]) for one in given]
    frame = spark.createDataFrame(rows, "device_id string, metric string, value double, at long")
    made = windows.aggregate(frame.withColumn("event_time", F.timestamp_millis("at")), 10_000)
    numbers = F.struct(*NUMBERS, F.lit(5).cast("long").alias("revision"))
    return made.select(*AGGREGATE_IDENTITY, numbers.alias("newest"))


def collected(rows: DataFrame) -> dict[checker.WindowKey, dict[str, Any]]:
    return {checker.window_key(row.asDict()): row.asDict() for row in rows.collect()}


@given(given_readings=st.lists(readings, min_size=1, max_size=60))
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
def test_merged_windows_equal_a_batch_over_the_readings(spark: SparkSession, given_readings: list[Reading]) -> None:
    expected = checker.expected_windows(given_readings, replace(RULES, window_ms=60_000))
    wanted = {key: window for key, window in expected.items() if key[2] != 60_000}
    # Rows of another length in the same topic are left alone.
    other = published(spark, given_readings).withColumn("window_end", F.expr("window_end + interval 1 second"))
    parts = published(spark, given_readings).union(other)
    found = collected(merging.rolled_up(parts, MINUTE, {0, 120_000, 180_000}))
    assert checker.mismatches(wanted, found) == []


@given(given_readings=st.lists(readings, min_size=1, max_size=40), slide_ms=st.sampled_from([10_000, 20_000, 50_000]))
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
def test_sliding_windows_equal_a_batch_over_the_readings(
    spark: SparkSession, given_readings: list[Reading], slide_ms: int
) -> None:
    """Their length need not be a multiple of their slide."""
    sliding = Rollup("sliding", 60_000, "rollups", "", 10_000, "out", slide_ms)
    parts = published(spark, given_readings)
    names = F.concat_ws("|", "device_id", "metric", F.unix_millis("window_start"), F.unix_millis("window_end"))
    new = merging.new_starts(parts.select(F.encode(names, "UTF-8").alias("key")), sliding).collect()
    starts = {row["start_ms"] for row in new}
    found = collected(merging.rolled_up(parts, sliding, starts))
    expected = checker.expected_windows(given_readings, replace(RULES, window_ms=60_000, slide_ms=slide_ms))
    assert starts == {key[2] for key in expected}
    assert checker.mismatches(expected, found) == []
    one = min(starts)
    some = collected(merging.rolled_up(parts, sliding, {one}))
    assert some.keys() == {key for key in found if key[2] == one}


def rows(
    spark: SparkSession, made: Mapping[str, int], known: Mapping[str, int], until_ms: int | None
) -> dict[str, Any]:
    """By device, whether a window is published, whether it stays for having more readings, and its count."""

    def frame(counts: Mapping[str, int], start_ms: int) -> DataFrame:
        numbers = ", ".join(f"{name} {'long' if name == 'count' else 'double'}" for name in NUMBERS)
        values = [(device, "m", count, *([1.0] * 5)) for device, count in counts.items()]
        columns = spark.createDataFrame(values, f"device_id string, metric string, {numbers}")
        times = {"window_start": F.timestamp_millis(F.lit(start_ms)), "window_end": F.timestamp_millis(F.lit(60_000))}
        return columns.withColumns(times)

    newest = frame(known, 0).select(*AGGREGATE_IDENTITY, F.struct(*NUMBERS).alias("newest"))
    found = merging.to_publish(frame(made, 0), newest, until_ms).collect()
    return {row["device_id"]: (row["is_new"], row["is_fewer"], row["count"]) for row in found}


def test_only_what_differs_is_published_and_nothing_loses_readings(spark: SparkSession) -> None:
    made = {"new": 3, "same": 3, "more": 4, "fewer": 2}
    known = {"same": 3, "more": 3, "fewer": 3, "gone": 3}
    assert rows(spark, made, known, None) == {
        "new": (True, False, 3),
        "same": (False, False, 3),
        "more": (True, False, 4),
        "fewer": (False, True, 3),
        "gone": (False, True, 3),
    }


def test_a_window_of_which_parts_may_be_missing_is_only_corrected(spark: SparkSession) -> None:
    """A new checkpoint began within it: whether somebody published its first parts, nobody knows."""
    assert rows(spark, {"new": 3, "more": 4}, {"more": 3}, 0) == {"more": (True, False, 4)}
    assert rows(spark, {"new": 3, "more": 4}, {"more": 3}, -1).keys() == {"new", "more"}


def test_keys_tell_which_windows_have_new_parts(spark: SparkSession) -> None:
    keys = ["d|m|0|10000", "d|m|50000|60000", "a%7Cb|m|60000|70000", "d|m|0|60000", "nothing"]
    records = spark.createDataFrame([(key.encode(),) for key in keys], "key binary")
    found = {row["start_ms"]: row["rows"] for row in merging.new_starts(records, MINUTE).collect()}
    assert found == {0: 2, 60_000: 1}

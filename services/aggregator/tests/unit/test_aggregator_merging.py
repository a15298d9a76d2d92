"""Late readings merged into published windows, in one small Spark session, against a plain-Python recount."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import confluent_avro, headers, windows
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY, JUDGED_BY, Scope, Span
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.aggregator.windowing.measures import NUMBERS
from isotherm.simulators import checker

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=10**15, max_skew_ms=2_000)
ALL = Scope(Span(0, 1_000_000))
IDS = confluent_avro.SchemaIds({7: json.dumps(windows.AGGREGATE)}, closed=True)
KEY = ("d", "m", 0, 10_000)
PRESENT = Judgement.of(Timeliness(5_000, 2_000, 3_000), "")
Reading = dict[str, Any]

readings = st.builds(
    lambda device, value, time: {
        "device_id": device,
        "metric": "m",
        "value": value,
        "event_time": time,
        "ingest_time": time,
    },
    st.sampled_from(["d1", "d2", "d3", "d4"]),
    st.floats(-1e6, 1e6) | st.sampled_from([1e6 + 0.001, 1e6 + 0.002, 0.1]),
    st.integers(0, 39_999),
)


def frame(spark: SparkSession, given: Sequence[Reading]) -> DataFrame:
    rows = [(one["device_id"], one["metric"], one["value"], one["event_time"]) for one in given]
    return spark.createDataFrame(rows, "device_id string, metric string, value double, at long").select(
        "device_id", "metric", "value", F.timestamp_millis("at").alias("event_time")
    )


def as_published(rows: DataFrame) -> DataFrame:
    """What `published` returns, of windows that were never corrected."""
    numbers = F.struct(*NUMBERS, F.lit(5).cast("long").alias("revision"))
    both = numbers.alias("newest"), numbers.alias("original")
    return rows.select(*AGGREGATE_IDENTITY, *both, F.lit(str(PRESENT)).alias(JUDGED_BY))


def late_windows(given: DataFrame, scope: Scope, slide_ms: int | None = None) -> DataFrame:
    made = corrections.aggregate(given, scope, 10_000, slide_ms)
    return made.withColumn(JUDGED_BY, F.lit(str(PRESENT)))


def untouched(published: DataFrame) -> DataFrame:
    return published.withColumns({"is_rebuilt": F.lit(False), "is_incomplete": F.lit(False)})


def collected(rows: DataFrame) -> dict[checker.WindowKey, dict[str, Any]]:
    return {checker.window_key(row.asDict()): row.asDict() for row in rows.collect()}


@given(
    on_time=st.lists(readings, max_size=30),
    late=st.lists(readings, max_size=30),
    slide_ms=st.sampled_from([None, 5_000]),
)
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
def test_merged_windows_equal_a_batch_over_all_readings(
    spark: SparkSession, on_time: list[Reading], late: list[Reading], slide_ms: int | None
) -> None:
    rules = checker.Rules(RULES.window_ms, RULES.allowed_lateness_ms, RULES.max_skew_ms, slide_ms=slide_ms)
    scope = Scope(Span(-10_000, 1_000_000))
    known = corrections.aggregate(frame(spark, on_time), scope, 10_000, slide_ms)
    added = late_windows(frame(spark, late), scope, slide_ms)
    found = collected(corrections.merged(untouched(as_published(known)), added))
    expected, before = checker.expected_windows([*on_time, *late], rules), checker.expected_windows(on_time, rules)
    assert checker.mismatches(expected, found) == []
    changed = {key for key in expected if expected[key] != before.get(key)}
    assert {key for key, row in found.items() if row["is_correction"]} == changed
    in_windows = [window for one in late for window in checker.windows_of(one["event_time"], rules)]
    assert sum(row["late_readings"] for row in found.values()) == len(in_windows)


def record(spark: SparkSession, rows: Sequence[tuple[int, float, int, int | None]]) -> DataFrame:
    """Records of one window: count, sum, revision, and how many late readings the header tells of."""
    names = ["device_id", "metric", "start", "end", *NUMBERS, "revision", "late"]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, KINDS, strict=True))
    values = [(*KEY, n, total, total / n, 0.0, 9.0, 1.0, revision, late) for n, total, revision, late in rows]
    made = spark.createDataFrame(values, columns).withColumns(
        {"window_start": F.timestamp_millis("start"), "window_end": F.timestamp_millis("end")}
    )
    with_late = headers.made({headers.LATE_READINGS: F.col("late")})
    return windows.to_aggregate_topic(made, 7, F.when(F.col("late").isNotNull(), with_late))


KINDS = ["string", "string", "long", "long", "long", *["double"] * 5, "long", "long"]


def published(records: DataFrame, scope: Scope = ALL) -> list[Any]:
    return corrections.published(records, IDS, windows.AGGREGATE, AGGREGATE_IDENTITY, scope, PRESENT).collect()


def test_a_corrected_row_is_never_the_original(spark: SparkSession) -> None:
    """A new checkpoint publishes windows again: the newest row without late readings is the original."""
    topic = record(spark, [(3, 3.0, 10, None), (5, 5.0, 20, 2), (3, 6.0, 30, None), (6, 9.0, 40, 3)])
    (row,) = published(topic)
    assert (row["newest"]["revision"], row["original"]["revision"]) == (40, 30)
    (late_only,) = published(record(spark, [(2, 2.0, 20, 2)]))
    assert (late_only["newest"]["count"], late_only["original"]) == (2, None)


def test_only_windows_of_the_scope_are_read(spark: SparkSession) -> None:
    topic = record(spark, [(3, 3.0, 10, None)]).persist()
    assert len(published(topic, Scope(Span(0, 10_000), frozenset({0})))) == 1
    assert published(topic, Scope(Span(0, 10_000), frozenset({5_000}))) == []
    assert published(topic, Scope(Span(0, 9_000))) == []
    foreign = topic.withColumn("key", F.lit("nothing that the aggregator writes"))
    assert published(foreign) == []


def struct(count: int, total: float, revision: int = 5) -> Mapping[str, Any]:
    return {"count": count, "sum": total, "mean": total / count, "min": 0.0, "max": 9.0, "stddev": 1.0} | {
        "revision": revision
    }


NUMBERS_TYPE = "struct<count:long,sum:double,mean:double,min:double,max:double,stddev:double,revision:long>"


def known(spark: SparkSession, newest: Any, original: Any) -> DataFrame:
    row = (KEY[0], KEY[1], KEY[2], KEY[3], newest, original)
    columns = f"device_id string, metric string, start long, end long, newest {NUMBERS_TYPE}, original {NUMBERS_TYPE}"
    made = spark.createDataFrame([row], columns)
    times = (F.timestamp_millis("start").alias("window_start"), F.timestamp_millis("end").alias("window_end"))
    judged_by = F.lit(str(PRESENT)).alias(JUDGED_BY)
    return made.select("device_id", "metric", *times, "newest", "original", judged_by)


def late_window(spark: SparkSession, values: Sequence[float]) -> DataFrame:
    given = [{"device_id": "d", "metric": "m", "value": value, "event_time": 1} for value in values]
    return late_windows(frame(spark, given), ALL)


def test_a_correction_takes_no_reading_from_a_window(spark: SparkSession) -> None:
    """Retention has removed late readings that an earlier correction merged: its row stays."""
    (row,) = corrections.merged(
        untouched(known(spark, struct(6, 6.0), struct(3, 3.0))), late_window(spark, [1.0])
    ).collect()
    assert (row["is_fewer"], row["is_correction"], row["count"]) == (True, False, 6)
    (row,) = corrections.merged(
        untouched(known(spark, struct(6, 6.0), struct(3, 3.0))), late_window(spark, [])
    ).collect()
    assert (row["is_fewer"], row["is_correction"], row["count"]) == (False, False, 6)


def test_a_correction_comes_again_after_a_new_checkpoint(spark: SparkSession) -> None:
    newest = original = struct(3, 3.0, revision=30)
    (row,) = corrections.merged(untouched(known(spark, newest, original)), late_window(spark, [1.0, 2.0])).collect()
    assert (row["is_correction"], row["count"], row["sum"], row["late_readings"]) == (True, 5, 6.0, 2)


@pytest.mark.parametrize(
    ("in_input", "late", "expected"),
    [
        ([1.0] * 4, [], (True, False, False, 4)),  # the watermark dropped one
        ([1.0] * 4, [2.0], (True, True, False, 5)),
        ([1.0] * 2, [2.0], (False, True, True, 4)),  # the input has lost one
        ([], [], (False, False, True, 3)),
    ],
)
def test_originals_rebuilt_from_the_input_gain_and_never_lose(
    spark: SparkSession, in_input: list[float], late: list[float], expected: tuple[bool, bool, bool, int]
) -> None:
    as_it_was = struct(3, 3.0)
    rebuilt = corrections.with_rebuilt(known(spark, as_it_was, as_it_was), late_window(spark, in_input), PRESENT)
    (row,) = corrections.merged(rebuilt, late_window(spark, late)).collect()
    assert (row["original"] is not None, row["is_correction"], row["is_fewer"], row["count"]) == expected


def test_groups_are_made_of_all_rows_of_a_window_with_late_readings(spark: SparkSession) -> None:
    """And again when all its rows are right: a correction may have been killed before it published groups."""
    on_time = [
        {"device_id": device, "metric": "m", "value": value, "event_time": at}
        for device, value, at in [("d1", 1.0, 1), ("d2", 2.0, 1), ("d1", 4.0, 10_001)]
    ]
    late = late_windows(frame(spark, [{**on_time[0], "value": 3.0}]), ALL)
    right = corrections.merged(
        untouched(as_published(corrections.aggregate(frame(spark, on_time), ALL, 10_000, None))), late
    )
    table = spark.createDataFrame([("d1", "h"), ("d2", "h")], "device_id string, home string")
    numbered = windows.with_revision(right.drop("original"), 9)
    made = corrections.groups(numbered, corrections.touched_windows(right), table, ["home"], "unknown").persist()
    (group,) = made.collect()
    assert (group["device_count"], group["count"], group["mean"], group["min"], group["max"]) == (2, 3, 2.0, 1.0, 3.0)
    numbers = F.struct("device_count", "count", "mean", "min", "max", "revision")
    as_it_is = made.select(*corrections.GROUP_IDENTITY, numbers.alias("newest"))
    assert corrections.changed_groups(made, as_it_is).count() == 0
    assert corrections.changed_groups(made, as_it_is.limit(0)).count() == 1


def test_a_window_takes_the_readings_that_were_late_for_its_original(spark: SparkSession) -> None:
    """And all of them without an original row: readings that are on time now, in a window that is not made again."""
    before = Judgement.of(Timeliness(1_000, 2_000, 3_000), "")
    rows = [
        ("d", 1.0, str(before)),
        ("d", 2.0, str(before)),
        ("d", 1.0, str(PRESENT)),
        *(("d", value, corrections.ANY) for value in (1.0, 2.0)),
        ("e", 3.0, str(before)),
        ("e", 3.0, corrections.ANY),
    ]
    late = spark.createDataFrame(rows, f"device_id string, value double, {JUDGED_BY} string").withColumns(
        {"metric": F.lit("m"), "event_time": F.timestamp_millis(F.lit(1))}
    )
    by_judgement = corrections.aggregate_late(late, [PRESENT, before], ALL, 10_000, None)
    counts = {}
    for judged_by in (PRESENT, before):
        published_rows = known(spark, struct(3, 3.0), struct(3, 3.0)).withColumn(JUDGED_BY, F.lit(str(judged_by)))
        fitting = corrections.of_their_originals(by_judgement, published_rows, PRESENT).collect()
        counts[judged_by] = {row["device_id"]: row["count"] for row in fitting}
    assert counts == {PRESENT: {"d": 1, "e": 1}, before: {"d": 2, "e": 1}}

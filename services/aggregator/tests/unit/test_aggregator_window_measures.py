"""Percentiles and distinct counts of windows, in one small Spark session, against a plain-Python recount."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator import records
from isotherm.aggregator.checkpoint.folder import fingerprint
from isotherm.aggregator.frames import avro_types, confluent_avro, headers, windows
from isotherm.aggregator.frames.measures import merged_numbers
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY, JUDGED_BY, Scope, Span
from isotherm.aggregator.rollups import merging
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.aggregator.windowing.measures import PLAIN, Measures, Percentile
from isotherm.aggregator.windowing.rollup_plan import Rollup
from isotherm.simulators import checker

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

ERROR = 0.02
PERCENTS = (0.001, 7, 50, 99.9)
ALL = Measures(
    deduplicate=True,
    percentiles=tuple(map(Percentile.of, PERCENTS)),
    relative_error=ERROR,
    distinct=("value", "unit", "attributes.gateway"),
)
RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=10**15, max_skew_ms=10**15)
MINUTE = Rollup("minute", 60_000, "rollups", "", 10_000, "out")
PRESENT = Judgement.of(Timeliness(5_000, 2_000, 3_000), "", deduplicate=True)
COLUMNS = (
    "device_id string, metric string, value double, event_ms long, ingest_ms long, sequence long, unit string, "
    "attributes map<string,string>"
)
Reading = tuple[str, str, float, int, int, int, str, dict[str, str]]

values = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 5e-324, -1e-101, 1e-100, 1.02, 1.02**40, 20.0]))
readings = st.lists(
    st.tuples(values, st.integers(0, 59_999), st.sampled_from(["Cel", "K"]), st.sampled_from(["", "a", "b", "c"])),
    max_size=60,
).map(
    lambda found: [
        ("d", "m", value, at, at, number, unit, {"gateway": gateway} if gateway else {})
        for number, (value, at, unit, gateway) in enumerate(found)
    ]
)


def frame(spark: SparkSession, found: Sequence[Reading]) -> DataFrame:
    made = spark.createDataFrame(list(found), COLUMNS)
    times = {"event_time": F.timestamp_millis("event_ms"), "ingest_time": F.timestamp_millis("ingest_ms")}
    return made.withColumns(times)


def collected(rows: DataFrame, measures: Measures = ALL) -> dict[checker.WindowKey, dict[str, Any]]:
    derived = windows.with_derived(rows, measures).collect()
    return {checker.window_key(row.asDict()): row.asDict(recursive=True) for row in derived}


def assert_right(found: dict[Any, dict[str, Any]], given_readings: Sequence[Reading], rules: checker.Rules) -> None:
    """Compare every window with a recount."""
    names = ("device_id", "metric", "value", "event_time", "ingest_time")
    plain = [dict(zip(names, one[:5], strict=True)) for one in given_readings]
    assert checker.mismatches(checker.expected_windows(plain, rules), found) == []
    assert_measures_right(found, given_readings, rules)


def assert_measures_right(
    found: dict[Any, dict[str, Any]], given_readings: Sequence[Reading], rules: checker.Rules
) -> None:
    inside: dict[Any, list[Reading]] = defaultdict(list)
    for one in given_readings:
        for start, end in checker.windows_of(one[3], rules):
            inside[one[0], one[1], start, end].append(one)
    for key, members in inside.items():
        row, ordered = found[key], sorted(one[2] for one in members)
        assert sum(bucket["count"] for bucket in row["histogram"]["buckets"]) == len(ordered)
        for percent in PERCENTS:
            right = ordered[max(1, math.ceil(round(percent * 1000) * len(ordered) / 100_000)) - 1]
            near = row["percentiles"][Percentile.of(percent).name]
            assert abs(near - right) <= ERROR * abs(right) * (1 + 1e-9) + 1e-100, (percent, ordered)
        # So few values are counted exactly.
        assert row["distinct_counts"] == {
            "value": len({one[2] for one in members}),
            "unit": len({one[6] for one in members}),
            "attributes.gateway": len({one[7]["gateway"] for one in members if one[7]}),
        }


def test_the_largest_and_the_smallest_values_have_buckets(spark: SparkSession) -> None:
    extremes = [1e100, -1e100, 9.99e99, -1e-100, 1e-100, 5e-324, -5e-324, 0.0, 1.0, -1.0]
    found = [("d", "m", value, 1, 1, number, "Cel", dict[str, str]()) for number, value in enumerate(extremes)]
    assert_measures_right(collected(windows.aggregate(frame(spark, found), 10_000, None, ALL)), found, RULES)


def test_a_sorted_state_is_keyed_by_the_window_first_and_gives_the_same_rows(spark: SparkSession) -> None:
    found = [(name, "m", value, 1, 1, 1, "Cel", dict[str, str]()) for name in ("a", "b") for value in (1.0, 2.5)]
    usual = windows.aggregate(frame(spark, found), 10_000)
    by_window = windows.aggregate(frame(spark, found), 10_000, is_state_sorted=True)
    assert sorted(by_window.collect()) == sorted(usual.collect())
    assert by_window.columns == usual.columns
    (line,) = re.findall(r"Aggregate \[(\S+?)#", by_window._jdf.queryExecution().optimizedPlan().toString())
    assert line.startswith("window")


@given(found=readings, slide_ms=st.sampled_from([None, 5_000]))
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
def test_windows_equal_the_recount(spark: SparkSession, found: list[Reading], slide_ms: int | None) -> None:
    rules = checker.Rules(10_000, RULES.allowed_lateness_ms, RULES.max_skew_ms, slide_ms=slide_ms)
    assert_right(collected(windows.aggregate(frame(spark, found), 10_000, slide_ms, ALL)), found, rules)


@given(found=readings)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
def test_merged_windows_equal_one_over_all_readings_bucket_by_bucket(spark: SparkSession, found: list[Reading]) -> None:
    parts = windows.aggregate(frame(spark, found), 10_000, None, ALL)
    newest = F.struct(*ALL.numbers, F.lit(5).cast("long").alias("revision"))
    published = parts.select(*AGGREGATE_IDENTITY, newest.alias("newest"))
    rolled = collected(merging.rolled_up(published, MINUTE, {0}, ALL.numbers))
    minute = checker.Rules(60_000, RULES.allowed_lateness_ms, RULES.max_skew_ms)
    assert_right(rolled, found, minute)
    whole = collected(windows.aggregate(frame(spark, found), 60_000, None, ALL))
    for key, row in rolled.items():
        for name in ("histogram", "percentiles", "distinct_counts"):
            assert row[name] == whole[key][name]


@given(on_time=readings, late=readings)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
def test_corrected_windows_equal_the_recount(spark: SparkSession, on_time: list[Reading], late: list[Reading]) -> None:
    """Through the records of the topic, with originals that are computed again and those that are not."""
    late = [(*one[:5], one[5] + 1_000, *one[6:]) for one in late]
    scope, names = Scope(Span(0, 1_000_000)), ALL.numbers
    known = corrections.aggregate(frame(spark, on_time), scope, 10_000, None, ALL)
    topic = windows.to_aggregate_topic(windows.with_revision(known, 5), 7, headers.made({}), ALL)
    published = published_of(topic, scope).persist()
    added = corrections.aggregate(frame(spark, late), scope, 10_000, None, ALL.of_unique)
    added = added.withColumn(JUDGED_BY, F.lit(str(PRESENT)))
    untouched = published.withColumns({"is_rebuilt": F.lit(False), "is_incomplete": F.lit(False)})
    rebuilt = corrections.with_rebuilt(published.withColumn(JUDGED_BY, F.lit(str(PRESENT))), known, PRESENT, names)
    for before in (untouched, rebuilt):
        rows = corrections.merged(before, added, names)
        assert_right(collected(rows), [*on_time, *late], RULES)
        assert rows.where(F.col("original").isNotNull()).count() == 0
        assert rows.where("is_correction").count() == added.count()


def published_of(topic: DataFrame, scope: Scope) -> DataFrame:
    writer = windows.aggregate_schema(ALL)
    ids = confluent_avro.SchemaIds({7: json.dumps(writer)}, closed=True)
    return corrections.published(topic, ids, writer, AGGREGATE_IDENTITY, scope, PRESENT)


def test_an_estimate_does_not_depend_on_the_order_in_which_values_come(spark: SparkSession) -> None:
    """Nor on the parts that they are merged of. A sketch that is filled at once estimates by the order, too."""
    many = [
        ("d", "m", float(number % 7_000), 1_000, 1_000, number, "Cel", dict[str, str]()) for number in range(20_000)
    ]
    measures = Measures(distinct=("sequence", "value"))
    counts = set()
    for order, parts in ((many, 1), (many[::-1], 1), (many, 5)):
        made = windows.aggregate(frame(spark, order).repartition(parts), 10_000, None, measures)
        (row,) = collected(made, measures).values()
        counts.add((row["distinct_counts"]["sequence"], row["distinct_counts"]["value"], row["histogram"]))
        assert row["percentiles"] == {}
    ((sequences, in_values, _),) = counts
    assert abs(sequences - 20_000) < 4 * 0.0163 * 20_000
    assert abs(in_values - 7_000) < 4 * 0.0163 * 7_000


def test_rows_that_cannot_be_merged_lose_what_one_of_them_lacks(spark: SparkSession) -> None:
    reading = [("d", "m", 20.0, 1, 1, 0, "Cel", dict[str, str]())]
    coarse = Measures(percentiles=ALL.percentiles, relative_error=0.1, distinct=("unit",))
    made = [windows.aggregate(frame(spark, reading), 10_000, None, one) for one in (ALL, coarse)]
    structs = [one.select(F.struct(*ALL.numbers).alias(name)) for one, name in zip(made, ("one", "other"), strict=True)]
    both = structs[0].crossJoin(structs[1])
    merged = both.select(merged_numbers.sum_of(F.col("one"), F.col("other"), ALL.numbers).alias("row")).select("row.*")
    (row,) = windows.with_derived(merged, ALL).collect()
    assert (row["count"], row["histogram"], row["percentiles"], row["distinct_counts"]) == (2, None, {}, {"unit": 1})


def test_both_ways_of_a_batch_write_the_same_bytes_and_they_are_read_as_they_were(spark: SparkSession) -> None:
    found = [("d", "m", value, 1, 1, number, "Cel", {"gateway": "a"}) for number, value in enumerate([-3.0, 0.0, 3.0])]
    made = windows.with_revision(windows.aggregate(frame(spark, found), 10_000, None, ALL), 9)
    large = windows.to_aggregate_topic(made, 7, headers.made({}), ALL).persist()
    (row,) = windows.with_derived(windows.in_epoch_ms(made), ALL).collect()
    key, value = records.aggregate_encoder(7, ALL)(row.asDict(recursive=True))
    (written,) = large.collect()
    assert (written["key"].encode(), bytes(written["value"])) == (key, value)
    (read,) = published_of(large, Scope(Span(0, 60_000))).collect()
    assert read["newest"].asDict(recursive=True) == {
        name: value for name, value in row.asDict(recursive=True).items() if name not in AGGREGATE_IDENTITY
    }


@pytest.mark.parametrize(
    "measures",
    [Measures(distinct=("unit", "attributes.gateway")), Measures(percentiles=(Percentile.of(50),), distinct=("unit",))],
    ids=["distinct counts", "both"],
)
def test_the_state_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path, measures: Measures) -> None:
    taken: list[tuple[int, dict[str, float], dict[str, int]]] = []

    def take(finished: DataFrame, _batch_id: int) -> None:
        rows = windows.with_derived(finished, measures).collect()
        taken.extend((row["count"], row["percentiles"], row["distinct_counts"]) for row in rows)

    def run() -> None:
        found = spark.readStream.schema(COLUMNS).json(str(tmp_path / "readings"))
        clock = found.where("device_id = 'clock'").select(F.timestamp_millis("event_ms").alias("event_time"))
        given_readings = found.where("device_id <> 'clock'").withColumn("event_time", F.timestamp_millis("event_ms"))
        timed = windows.with_clock(given_readings, clock, 0, measures)
        rows = windows.in_epoch_ms(windows.aggregate(timed, 10_000, None, measures))
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "state")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    (tmp_path / "readings").mkdir()
    for number, lines in enumerate([[("d", 1, "K")], [("d", 2, "Cel"), ("d", 3, "K")], [("clock", 10_000, "")]]):
        texts = [
            {"device_id": device, "metric": "m", "value": 20.0, "event_ms": at, "unit": unit, "attributes": {}}
            for device, at, unit in lines
        ]
        hidden = tmp_path / "readings" / f".{number}"
        hidden.write_text("\n".join(map(json.dumps, texts)))
        hidden.rename(tmp_path / "readings" / str(number))
        run()
    ((count, percentiles, counts),) = taken
    assert (count, counts) == (3, {"unit": 2, "attributes.gateway": 0} if len(measures.distinct) > 1 else {"unit": 2})
    assert percentiles == ({"p50": 20.0} if measures.percentiles else {})


def test_rows_of_the_first_version_are_read_with_nothing_in_the_new_fields(spark: SparkSession) -> None:
    reading = [("d", "m", 20.0, 1, 1, 0, "Cel", dict[str, str]())]
    made = windows.with_revision(windows.aggregate(frame(spark, reading), 10_000), 9)
    topic = windows.to_aggregate_topic(made, 7, headers.made({}))
    ids = confluent_avro.SchemaIds({7: json.dumps(windows.AGGREGATE)}, closed=True)
    reader = windows.aggregate_schema(ALL)
    (row,) = corrections.published(topic, ids, reader, AGGREGATE_IDENTITY, Scope(Span(0, 60_000)), PRESENT).collect()
    new = {name: row["newest"][name] for name in ("duplicates", "histogram", "sketches", "percentiles")}
    assert new == {"duplicates": 0, "histogram": None, "sketches": {}, "percentiles": {}}
    # No earlier release left copies out.
    assert row[JUDGED_BY] == str(Judgement.of(PRESENT.timeliness, ""))


def test_every_field_of_a_window_has_a_type_of_spark() -> None:
    assert avro_types.struct_of(windows.aggregate_schema(PLAIN)).simpleString().startswith("struct<device_id:string")
    assert "histogram:struct<relative_error:double,buckets:array<struct<index:int,count:bigint>>>" in (
        avro_types.struct_of(windows.aggregate_schema(ALL)).simpleString()
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("percentiles", [0], "0.0 is not allowed: must be above 0 and below 100"),
        ("percentiles", [100], "must be above 0 and below 100"),
        ("percentiles", [math.nan], "nan is not allowed"),
        ("percentiles", [99.9999], "99.9999 is not allowed: .*at most three decimals"),
        ("percentiles", [50, 50.0], "50.0 is there twice"),
        ("percentile_relative_error", 0.5, "less than or equal to 0.1"),
        ("distinct_counts", ["device_id"], "'device_id' is not allowed: must be value, unit, sequence or attributes"),
        ("distinct_counts", ["attributes.a.b"], "must be value, unit, sequence or attributes.<name>"),
        ("distinct_counts", ["unit", "unit"], "'unit' is there twice"),
    ],
)
def test_what_cannot_be_measured_ends_the_start(key: str, value: object, text: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){key}.*{text}"):
        AggregatorSettings.model_validate({"checkpoint_dir": "c", "jars_dir": "j", key: value})


def test_a_checkpoint_depends_on_the_histogram_and_the_fields_and_not_on_which_percentiles() -> None:
    def of(**chosen: object) -> dict[str, Any]:
        model = AggregatorSettings.model_validate({"checkpoint_dir": "c", "jars_dir": "j", **chosen})
        return fingerprint(model, "k", {}, {})

    assert of(percentile_relative_error=0.05) == of()
    assert of(percentiles=[50]) == of(percentiles=[99.9, 1]) != of()
    assert of(percentiles=[50], percentile_relative_error=0.05) != of(percentiles=[50])
    assert of(distinct_counts=["unit"]) != of(distinct_counts=["value"]) != of()

"""Copies of readings are left out of windows and corrections, in one small Spark session, against a recount."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.checkpoint.folder import fingerprint
from isotherm.aggregator.frames import windows
from isotherm.aggregator.frames.measures import unique_readings
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import ANY, JUDGED_BY
from isotherm.aggregator.recompute.topic_reader import TopicReader
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.aggregator.windowing.measures import PLAIN, Measures
from isotherm.simulators import checker

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

UNIQUE = Measures(deduplicate=True)
TIMELINESS = Timeliness(5_000, 2_000, 3_000)
UNIQUE_JUDGEMENT = Judgement.of(TIMELINESS, "", deduplicate=True)
RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=10**15, max_skew_ms=10**15)
COLUMNS = "device_id string, metric string, value double, event_ms long, ingest_ms long, sequence long"
Reading = dict[str, Any]

readings = st.builds(
    lambda device, value, event_ms, ingest_ms, sequence: {
        "device_id": device,
        "metric": "m",
        "value": value,
        "event_time": event_ms,
        "ingest_time": ingest_ms,
        "sequence": sequence,
    },
    st.sampled_from(["d1", "d2"]),
    st.floats(-1e6, 1e6),
    st.sampled_from([0, 4_999, 5_000, 9_999, 10_000, 10_001]),
    st.integers(20_000, 20_002),
    st.integers(0, 1),
)


def frame(spark: SparkSession, found: Sequence[Reading]) -> DataFrame:
    rows = [
        (one["device_id"], one["metric"], one["value"], one["event_time"], one["ingest_time"], one["sequence"])
        for one in found
    ]
    return spark.createDataFrame(rows, COLUMNS).select(
        "device_id",
        "metric",
        "value",
        F.timestamp_millis("event_ms").alias("event_time"),
        F.timestamp_millis("ingest_ms").alias("ingest_time"),
        "sequence",
    )


def unique(found: Sequence[Reading]) -> list[Reading]:
    """The copies that count."""
    kept: dict[Any, Reading] = {}
    for one in sorted(found, key=lambda one: (one["ingest_time"], one["value"])):
        kept.setdefault(tuple(one[name] for name in ("device_id", "metric", "event_time", "sequence")), one)
    return list(kept.values())


@given(found=st.lists(readings, max_size=40), slide_ms=st.sampled_from([None, 5_000, 4_000]))
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
def test_windows_count_each_reading_once_whatever_the_order(
    spark: SparkSession, found: list[Reading], slide_ms: int | None
) -> None:
    rules = replace(RULES, slide_ms=slide_ms)
    for given_order in (found, list(reversed(found))):
        rows = windows.aggregate(frame(spark, given_order), 10_000, slide_ms, UNIQUE).collect()
        made = {checker.window_key(row.asDict()): row.asDict() for row in rows}
        assert checker.mismatches(checker.expected_windows(unique(found), rules), made) == []
        whole = checker.expected_windows(found, rules)
        assert {key: row["count"] + row["duplicates"] for key, row in made.items()} == {
            key: row["count"] for key, row in whole.items()
        }


def test_nothing_changes_for_who_does_not_switch_it_on(spark: SparkSession) -> None:
    made = windows.aggregate(frame(spark, []), 10_000)
    names = [field["name"] for field in windows.AGGREGATE["fields"]]
    assert [*made.columns, "revision"] == names
    assert (PLAIN.schema_version, PLAIN.reading_fields) == (1, ())
    assert str(Judgement.of(TIMELINESS, "")) == str(UNIQUE_JUDGEMENT).removesuffix(" deduplicate=true")


def test_a_checkpoint_says_whether_copies_are_left_out() -> None:
    given_settings = {"checkpoint_dir": "c", "jars_dir": "j"}
    plain, other = (
        fingerprint(AggregatorSettings.model_validate({**given_settings, "deduplicate": switch}), "k", {}, {})
        for switch in (False, True)
    )
    assert {key for key in {*plain, *other} if plain.get(key) != other.get(key)} == {"deduplicate"}
    assert "deduplicate" not in plain


@pytest.mark.parametrize("where", ["", "value > 3"])
def test_a_judgement_survives_its_text(where: str) -> None:
    judgement = Judgement.of(TIMELINESS, where, deduplicate=True)
    assert Judgement.parse(str(judgement)) == judgement
    assert Judgement.parse(str(Judgement.of(TIMELINESS, where))) == Judgement.of(TIMELINESS, where)
    with pytest.raises(ValueError, match="names no settings"):
        Judgement.parse(str(judgement) + " and more")


def records(spark: SparkSession, rows: Sequence[tuple[bytes, Reading]]) -> DataFrame:
    made = spark.createDataFrame(
        [(value, *(one[name] for name in (*unique_readings.IDENTITY, "value", "ingest_time"))) for value, one in rows],
        "bytes binary, device_id string, metric string, event_ms long, sequence long, measured double, ingest_ms long",
    )
    reading = F.struct(
        "device_id",
        "metric",
        F.timestamp_millis("event_ms").alias("event_time"),
        F.timestamp_millis("ingest_ms").alias("ingest_time"),
        F.col("measured").alias("value"),
        "sequence",
    )
    return made.select(F.col("bytes").alias("value"), reading.alias("reading"))


def test_late_copies_count_once_where_copies_are_left_out_and_else_if_their_bytes_differ(spark: SparkSession) -> None:
    one = {"device_id": "d", "metric": "m", "event_time": 1, "ingest_time": 9, "value": 1.0, "sequence": 0}
    sent = [(b"a", one), (b"a", one), (b"b", {**one, "ingest_time": 8, "value": 2.0}), (b"c", {**one, "sequence": 1})]
    plain = str(Judgement.of(TIMELINESS, ""))
    by = F.array(F.lit(plain), F.lit(str(UNIQUE_JUDGEMENT)), F.lit(ANY))
    late = corrections.late_readings(records(spark, sent), by, [str(UNIQUE_JUDGEMENT)]).collect()
    values = {
        text: sorted((row["value"], row["sequence"]) for row in late if row[JUDGED_BY] == text)
        for text in (plain, str(UNIQUE_JUDGEMENT), ANY)
    }
    all_bytes = [(1.0, 0), (1.0, 1), (2.0, 0)]
    assert values == {plain: all_bytes, ANY: all_bytes, str(UNIQUE_JUDGEMENT): [(1.0, 1), (2.0, 0)]}


def test_a_late_copy_of_a_reading_on_time_is_left_out_by_its_judgement(spark: SparkSession) -> None:
    one = {"device_id": "d", "metric": "m", "event_time": 1, "ingest_time": 9, "value": 1.0, "sequence": 0}
    late = corrections.late_readings(
        records(spark, [(b"a", one), (b"b", {**one, "sequence": 1})]),
        F.array(F.lit(str(UNIQUE_JUDGEMENT)), F.lit(ANY)),
        [str(UNIQUE_JUDGEMENT)],
    )
    input_records = records(spark, [(b"c", {**one, "ingest_time": 2, "value": 7.0}), (b"d", {**one, "sequence": 2})])
    on_time = corrections.on_time_by(
        input_records, [UNIQUE_JUDGEMENT], lambda _one: F.when(F.col("reading.sequence") == 2, "late")
    )
    left = unique_readings.without_copies_of(late, on_time, [JUDGED_BY]).collect()
    assert {(row["sequence"], row[JUDGED_BY]) for row in left} == {(1, str(UNIQUE_JUDGEMENT)), (0, ANY), (1, ANY)}


class BrokerOfTwoPartitions:
    """Partition 1 has records of an open transaction at its end."""

    def end_offsets(self, _topics: Sequence[str], *, committed: bool) -> dict[Partition, int]:
        return {("t", 0): 100, ("t", 1): 5 if committed else 9}

    def offsets_at(self, _topics: Sequence[str], time_ms: int) -> dict[Partition, int]:
        return {("t", 0): time_ms // 10, ("t", 1): 9}


def test_the_input_is_read_no_further_than_readings_on_time_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(TopicReader, "_read", lambda _self, _topics, **options: asked.append(options))
    reader = TopicReader.__new__(TopicReader)
    monkeypatch.setattr(reader, "_broker", BrokerOfTwoPartitions(), raising=False)
    reader.records(["t"], 100, 599)
    (options,) = asked
    assert json.loads(options["startingOffsets"]) == {"t": {"0": 10, "1": 5}}
    assert json.loads(options["endingOffsets"]) == {"t": {"0": 60, "1": 5}}


def test_the_state_knows_copies_until_the_clock_passes_their_window(spark: SparkSession, tmp_path: Path) -> None:
    """Copies come in batches and starts of their own; a reading as old as the watermark itself is kept."""
    for name in ("clock", "readings"):
        (tmp_path / name).mkdir()
    taken: list[tuple[Any, ...]] = []

    def put(folder: str, name: str, lines: Sequence[object]) -> None:
        hidden = tmp_path / folder / f".{name}"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
        hidden.rename(tmp_path / folder / name)

    def take(finished: DataFrame, _batch_id: int) -> None:
        taken.extend((row["window_start"], row["count"], row["sum"], row["duplicates"]) for row in finished.collect())

    def run() -> None:
        clock = spark.readStream.text(str(tmp_path / "clock")).selectExpr(
            "timestamp_millis(cast(value as long)) as event_time"
        )
        stream = (
            spark.readStream.schema(COLUMNS)
            .json(str(tmp_path / "readings"))
            .selectExpr("*", "timestamp_millis(event_ms) as event_time", "timestamp_millis(ingest_ms) as ingest_time")
        )
        timed = windows.with_clock(stream.coalesce(1), clock, 5_000, UNIQUE)
        rows = windows.in_epoch_ms(windows.aggregate(timed, 10_000, None, UNIQUE))
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "state")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def line(event_ms: int, value: float, ingest_ms: int) -> Reading:
        return {"device_id": "d", "metric": "m", "value": value, "event_ms": event_ms} | {
            "ingest_ms": ingest_ms,
            "sequence": 0,
        }

    put("readings", "1", [line(1_000, 1.0, 50), line(1_000, 1.0, 50), line(9_999, 4.0, 50)])
    run()
    put("readings", "2", [line(1_000, 2.0, 40)])
    run()
    put("clock", "1", [14_999])
    run()
    put("readings", "3", [line(9_999, 8.0, 60), line(10_000, 16.0, 50)])
    run()
    assert taken == []
    put("clock", "2", [15_000])
    run()
    assert taken == [(0, 2, 6.0, 3)]
    put("readings", "4", [line(10_000, 32.0, 45)])  # as old as the watermark, which is 10,000
    run()
    put("clock", "3", [25_000])
    run()
    assert taken[1:] == [(10_000, 1, 32.0, 1)]

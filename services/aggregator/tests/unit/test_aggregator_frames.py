"""The pure functions on data frames, in one small Spark session, against a plain-Python recount."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import (
    confluent_avro,
    devices,
    headers,
    readings,
    windows,
)
from isotherm.aggregator.reading_condition import parse_condition
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.schemas import schema
from isotherm.servicekit import avro
from isotherm.simulators import checker

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=5_000, max_skew_ms=2_000, publish_delay_ms=3_000)
TIMELINESS = Timeliness(5_000, 2_000, 3_000)
JUDGED_BY = "allowed_lateness_ms=5000 max_skew_ms=2000 max_publish_delay_ms=3000"
READING_V1 = schema("SensorReading", 1)
READING_V2 = {**READING_V1, "fields": [*READING_V1["fields"]]}
READING_V2["fields"].insert(2, {"name": "quality", "type": "string", "default": "x"})
IDS = confluent_avro.SchemaIds({1: json.dumps(READING_V1), 2: json.dumps(READING_V2)}, frozenset({9}))
ENCODE = {1: avro.encoder(READING_V1, 1), 2: avro.encoder(READING_V2, 2)}
RECORDS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
APPENDED_MS = 11_000
"""When the broker appended a record, unless a test says otherwise."""


def reading(**changes: Any) -> dict[str, Any]:
    return {
        "device_id": "d",
        "metric": "temperature",
        "value": 1.0,
        "unit": "Cel",
        "event_time": 10_000,
        "ingest_time": 11_000,
        "sequence": 0,
        "attributes": {"k": "v"},
        **changes,
    }


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def records(spark: SparkSession, values: Sequence[bytes | None], appended_ms: Sequence[int] = ()) -> DataFrame:
    times = appended_ms or [APPENDED_MS] * len(values)
    rows = [(b"key", value, "t", 0, offset, at(times[offset]), None) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORDS)


def reject_reasons(decoded: DataFrame) -> dict[int, str]:
    reason = readings.reject_reason(IDS, TIMELINESS)
    rows = readings.rejected(decoded, reason).select("offset", "reason").collect()
    return {row["offset"]: row["reason"] for row in rows}


def on_time(decoded: DataFrame) -> DataFrame:
    return readings.on_time(decoded, readings.reject_reason(IDS, TIMELINESS))


near = st.integers(0, 40_000)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["a|b", "50%"])
good_readings = st.builds(
    reading,
    device_id=texts,
    metric=st.sampled_from(["temperature", "brightness"]),
    value=st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, 1e100, -1.7e308]),
    event_time=near | st.sampled_from([-1, 2**50, 2**62]),
    ingest_time=near | st.sampled_from([2**50]),
)


topics = st.lists(st.tuples(good_readings, st.sampled_from([1, 2]), st.integers(-500, 9_000)), min_size=10, max_size=60)
"""The readings of a topic: each with the version of its schema, and how long after its ingest time it is appended."""


@given(six=st.lists(topics, min_size=6, max_size=6))
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_windows_and_reject_reasons_equal_the_recount(
    spark: SparkSession, six: list[list[tuple[dict[str, Any], int, int]]]
) -> None:
    """Of six topics at once, because a job costs the same for one: a metric's name keeps their windows apart."""
    sent = [
        (value | {"metric": f"{value['metric']} {number}"}, version, held_ms)
        for number, topic in enumerate(six)
        for value, version, held_ms in topic
    ]
    values = [ENCODE[version](value | ({"quality": "good"} if version == 2 else {})) for value, version, _ in sent]
    times = [max(0, min(value["ingest_time"] + held_ms, 10**9)) for value, _, held_ms in sent]
    judged = [value | {"appended_time": time_ms} for (value, *_), time_ms in zip(sent, times, strict=True)]
    decoded = readings.decode(records(spark, values, times), IDS)

    expected = {offset: checker.classify(value, RULES) for offset, value in enumerate(judged)}
    # Beyond Spark's own range of times, a reading cannot even be decoded.
    found = {
        offset: "out-of-range" if reason == "corrupt" else reason for offset, reason in reject_reasons(decoded).items()
    }
    assert found == {offset: reason for offset, reason in expected.items() if reason != "on-time"}

    for slide_ms in (None, 5_000):
        rules = replace(RULES, slide_ms=slide_ms)
        rows = windows.aggregate(on_time(decoded), rules.window_ms, slide_ms).collect()
        aggregates = {checker.window_key(row.asDict()): row.asDict() for row in rows}
        assert len(aggregates) == len(rows)
        assert checker.mismatches(checker.expected_windows(judged, rules), aggregates) == []


NO_READINGS: dict[str, tuple[bytes | None, str]] = {
    "tombstone": (None, "no-value"),
    "empty": (b"", "not-framed"),
    "short": (b"\x00\x00\x00", "not-framed"),
    "wrong magic": (b"\x01\x00\x00\x00\x01" + bytes(40), "not-framed"),
    "unknown id": (b"\x00\x00\x00\x00\x09" + bytes(40), "unknown-schema"),
    "cut": (ENCODE[1](reading())[:-9], "corrupt"),
    "no body": (ENCODE[1](reading())[:5], "corrupt"),
    # Refused before anything is allocated.
    "string of 2 GiB": (b"\x00\x00\x00\x00\x01\xfe\xff\xff\xff\x0f", "corrupt"),
    "string of negative length": (b"\x00\x00\x00\x00\x01\xff\xff\xff\xff\x0f", "corrupt"),
}
"""By name, bytes that are no reading and the reason why."""


@pytest.fixture(scope="module")
def beside_readings(spark: SparkSession) -> tuple[dict[int, str], Counter[str]]:
    """NO_READINGS, each behind a reading of a device of its name: reasons by offset, and readings on time by device.

    All in one topic, because a job costs the same for one value.
    """
    values = [each for name, (value, _) in NO_READINGS.items() for each in (ENCODE[1](reading(device_id=name)), value)]
    decoded = readings.decode(records(spark, values), IDS)
    return reject_reasons(decoded), Counter(row["device_id"] for row in on_time(decoded).collect())


@pytest.mark.parametrize("name", NO_READINGS)
def test_bytes_that_are_no_reading_get_a_reason(
    beside_readings: tuple[dict[int, str], Counter[str]], name: str
) -> None:
    reasons, devices_on_time = beside_readings
    offset = 2 * list(NO_READINGS).index(name)
    assert (reasons.get(offset), reasons.get(offset + 1)) == (None, NO_READINGS[name][1])
    assert devices_on_time[name] == 1
    assert len(reasons) == devices_on_time.total() == len(NO_READINGS)


def test_rejects_keep_key_value_and_headers_and_say_why(spark: SparkSession) -> None:
    late, future = ENCODE[1](reading(ingest_time=99_000)), ENCODE[1](reading(event_time=99_000))
    old = [("mqtt.topic", b"a/b"), ("__connect.errors.topic", b"where it was rejected before")]
    forged = [("aggregator.appended_ms", b"0"), ("aggregator.judged_by", b"?")]
    rows = [
        (b"k0", late, "t", 3, 7, at(APPENDED_MS), [("mqtt.topic", b"a/b"), *forged]),
        (b"k1", future, "t", 3, 8, at(APPENDED_MS), old),
        (None, b"?", "t", 3, 9, at(APPENDED_MS), None),
    ]
    decoded = readings.decode(spark.createDataFrame(rows, RECORDS), IDS)
    rejected = readings.rejected(decoded, readings.reject_reason(IDS, TIMELINESS))
    out = readings.to_reject_topics(rejected, "late", "dead", Judgement.of(TIMELINESS, "")).collect()

    assert [(row["topic"], row["key"], row["value"]) for row in out] == [
        ("late", b"k0", late),
        ("dead", b"k1", future),
        ("dead", None, b"?"),
    ]
    first, second, third = ([(h["key"], bytes(h["value"]).decode()) for h in row["headers"]] for row in out)
    judged = [("aggregator.appended_ms", str(APPENDED_MS)), ("aggregator.judged_by", JUDGED_BY)]
    assert first == [("mqtt.topic", "a/b"), *judged]
    assert second[0] == ("mqtt.topic", "a/b")
    assert dict(second)["__connect.errors.topic"] == "t"
    assert dict(second)["__connect.errors.offset"] == "8"
    assert "more than 2000 ms ahead" in dict(second)["__connect.errors.exception.message"]
    assert dict(third)["__connect.errors.exception.class.name"] == "aggregator.readings.not-framed"


def test_an_id_that_nobody_asked_about_ends_the_query(spark: SparkSession) -> None:
    unheard = b"\x00\x00\x00\x01\x02" + bytes(20)
    with pytest.raises(Exception, match="isotherm:new-schema-id") as failure:
        on_time(readings.decode(records(spark, [unheard]), IDS)).count()
    assert confluent_avro.new_schema_ids(str(failure.value)) == [258]
    closed = confluent_avro.SchemaIds(IDS.known, IDS.unknown, closed=True)
    assert on_time(readings.decode(records(spark, [unheard]), closed)).count() == 0


def test_values_are_decoded_once_per_record(spark: SparkSession) -> None:
    decoded = readings.decode(records(spark, [ENCODE[1](reading())]), IDS)
    plan = windows.aggregate(on_time(decoded), RULES.window_ms)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_avro(") == len(IDS.known)


def test_records_that_are_no_readings_on_time_are_counted_where_the_others_are(spark: SparkSession) -> None:
    """The count decides whether the query of rejects reads them."""
    sent = [ENCODE[1](reading()), b"nonsense", ENCODE[1](reading(ingest_time=99_000)), ENCODE[1](reading())]
    decoded = readings.decode(records(spark, sent), IDS)
    observation = Observation()
    judged = readings.judged(decoded, readings.reject_reason(IDS, TIMELINESS))
    observed = judged.observe(
        observation, F.count("device_id").alias("on_time"), F.count_if(readings.is_rejected()).alias("rejected")
    )
    assert windows.aggregate(observed.where(~readings.is_rejected()), RULES.window_ms).collect()[0]["count"] == 2
    assert observation.get == {"on_time": 2, "rejected": 2}


def test_a_reading_that_was_held_back_is_late_by_the_brokers_time(spark: SparkSession) -> None:
    taken_in_ms = reading()["ingest_time"]
    times = [taken_in_ms + TIMELINESS.max_publish_delay_ms, taken_in_ms + TIMELINESS.max_publish_delay_ms + 1]
    decoded = readings.decode(records(spark, [ENCODE[1](reading())] * 2, times), IDS)
    assert reject_reasons(decoded) == {1: "late"}
    assert on_time(decoded).count() == 1


def test_finite_values_make_finite_windows(spark: SparkSession) -> None:
    largest, beyond = ENCODE[1](reading(value=1e100)), ENCODE[1](reading(value=1.7e308))
    decoded = readings.decode(records(spark, [largest, largest, beyond, beyond]), IDS)
    assert reject_reasons(decoded) == {2: "too-large", 3: "too-large"}
    (row,) = windows.aggregate(on_time(decoded), RULES.window_ms).collect()
    assert all(math.isfinite(row[name]) for name in ("sum", "mean", "min", "max", "stddev"))


def test_an_id_found_later_is_known_from_an_offset_on(spark: SparkSession) -> None:
    ids = replace(IDS, known_since={1: {("t", 0): 2, ("t", 1): 9}})
    decoded = readings.decode(records(spark, [ENCODE[1](reading())] * 4), ids)
    rejected = readings.rejected(decoded, readings.reject_reason(ids, TIMELINESS)).select("offset", "reason").collect()
    assert [tuple(row) for row in rejected] == [(0, "unknown-schema"), (1, "unknown-schema")]
    assert on_time_with(decoded, ids).count() == 2


def on_time_with(decoded: DataFrame, ids: confluent_avro.SchemaIds) -> DataFrame:
    return readings.on_time(decoded, readings.reject_reason(ids, TIMELINESS))


def test_readings_that_nobody_wants_are_counted_and_go_nowhere(spark: SparkSession) -> None:
    """Dead letters are told whatever the condition says."""
    where = parse_condition("metric = 'temperature' AND attributes.k = 'v'")
    sent = [
        reading(),
        reading(attributes={}),
        reading(metric="brightness", ingest_time=99_000),  # late
        reading(metric="brightness", event_time=99_000),  # in the future
        reading(ingest_time=99_000),
    ]
    decoded = readings.decode(records(spark, [ENCODE[1](one) for one in sent]), IDS, where)
    reason = readings.reject_reason(IDS, TIMELINESS, where)
    found = {row["offset"]: row["reason"] for row in readings.rejected(decoded, reason).collect()}
    assert found == {1: "filtered", 2: "filtered", 3: "future", 4: "late"}
    assert readings.on_time(decoded, reason).count() == 1


def late_by(decoded: DataFrame, *judgements: Judgement) -> list[tuple[int, str]]:
    """The ingest times of the late readings, each with the judgements by which it is late, ANY left out."""
    late = corrections.late_by(judgements, judgements[0], lambda one: readings.reject_reason(IDS, one.timeliness))
    rows = corrections.late_readings(decoded, late).collect()
    found = [(checker.epoch_ms(row["ingest_time"]), row["judged_by"]) for row in rows]
    assert {ingest_ms for ingest_ms, by in found if by == corrections.ANY} >= {ingest_ms for ingest_ms, _ in found}
    return sorted(one for one in found if one[1] != corrections.ANY)


def test_a_late_reading_counts_once_in_a_correction(spark: SparkSession) -> None:
    """However many copies the late topic and the input hold."""
    on_time_one, late = ENCODE[1](reading()), ENCODE[1](reading(ingest_time=99_000))
    gone, undecodable = ENCODE[2]({**reading(ingest_time=98_000), "quality": "good"}), b"?"
    in_input, in_late_topic = [on_time_one, late, on_time_one, undecodable], [late, gone, gone, on_time_one]
    found = corrections.as_appended_to_input(records(spark, [*in_input, *in_late_topic]))
    decoded = readings.decode(found, IDS)
    assert late_by(decoded, Judgement.of(TIMELINESS, "")) == [(98_000, JUDGED_BY), (99_000, JUDGED_BY)]


def late_topic(spark: SparkSession, *found: tuple[Mapping[str, Any], int, Judgement]) -> DataFrame:
    """Readings in the late topic, each with its append time in the input and its judgement; copied an hour later."""
    rows = [
        (
            b"key",
            ENCODE[1](one),
            "late",
            0,
            offset,
            at(appended_ms + 3_600_000),
            [("aggregator.appended_ms", str(appended_ms).encode()), ("aggregator.judged_by", str(judged_by).encode())],
        )
        for offset, (one, appended_ms, judged_by) in enumerate(found)
    ]
    return readings.decode(corrections.as_appended_to_input(spark.createDataFrame(rows, RECORDS)), IDS)


def test_a_late_reading_is_judged_by_its_append_time_in_the_input(spark: SparkSession) -> None:
    """And by the settings by which the window's original was made: they may have changed since."""
    strict = Judgement.of(TIMELINESS, "")
    lenient = Judgement.of(replace(TIMELINESS, allowed_lateness_ms=60_000), "")
    held_back = reading(ingest_time=11_000)
    device_late = reading(ingest_time=16_000)
    decoded = late_topic(spark, (device_late, 16_500, strict), (held_back, 14_001, strict))
    assert late_by(decoded, lenient) == [(11_000, str(lenient))]
    assert late_by(decoded, lenient, strict) == [(11_000, str(strict)), (11_000, str(lenient)), (16_000, str(strict))]
    # After the limit was lowered, a copy judged by the new one was on time when its window was made.
    assert late_by(late_topic(spark, (device_late, 16_500, strict)), lenient) == []


def test_a_condition_that_is_not_known_any_more_judges_as_it_did(spark: SparkSession) -> None:
    present = Judgement.of(TIMELINESS, "")
    before = Judgement.of(TIMELINESS, "metric = 'temperature'")
    one, other = reading(ingest_time=98_000), reading(ingest_time=99_000)
    decoded = late_topic(spark, (one, 98_000, before), (other, 99_000, present))
    assert late_by(decoded, present, before) == [(98_000, str(present)), (98_000, str(before)), (99_000, str(present))]


def decoded_values(rows: DataFrame, writer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parsed = fastavro.parse_schema(dict(writer), named_schemas={})
    return {row["key"]: avro_body(bytes(row["value"]), parsed) for row in rows.collect()}


def avro_body(value: bytes, parsed: Any) -> dict[str, Any]:
    assert value[:5] == b"\x00\x00\x00\x00\x07"
    body = fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)
    assert isinstance(body, dict)
    return body


def test_groups_equal_the_recount(spark: SparkSession) -> None:
    sent = [reading(device_id=f"d{n % 7}", value=n * 0.1, event_time=10_000 + n) for n in range(50)]
    attributes = ["home", "region", "attributes.floor"]
    known = {f"d{n}": {"home": f"h{n % 2}" if n else None, "region": "50%|n", attributes[2]: "3"} for n in range(5)}
    rows = [(device_id, *(device[name] for name in attributes)) for device_id, device in known.items()]
    table = spark.createDataFrame(rows, "device_id string, home string, region string, `attributes.floor` string")
    decoded = readings.decode(records(spark, [ENCODE[1](one) for one in sent]), IDS)
    aggregates = windows.with_revision(windows.aggregate(on_time(decoded), RULES.window_ms), 1)
    expected_windows = checker.expected_windows(sent, RULES)
    for unknown_group in ("unknown", ""):
        groups = windows.group(windows.with_devices(aggregates, table), attributes, unknown_group)
        written = decoded_values(windows.to_group_topic(groups, 7), windows.GROUP)
        found = {checker.group_key(row): row for row in written.values()}
        expected = checker.expected_groups(expected_windows, known, attributes, unknown_group)
        assert checker.mismatches(expected, found) == []
        assert "region|50%25%7Cn|temperature|10000|20000" in written


def test_aggregates_are_keyed_with_escapes(spark: SparkSession) -> None:
    decoded = readings.decode(records(spark, [ENCODE[1](reading(device_id="a|b%7C"))]), IDS)
    aggregates = windows.with_revision(windows.aggregate(on_time(decoded), RULES.window_ms), 1)
    written = decoded_values(windows.to_aggregate_topic(aggregates, 7, headers.made({})), windows.AGGREGATE)
    assert list(written) == ["a%7Cb%257C|temperature|10000|20000"]
    assert next(iter(written.values()))["stddev"] == 0.0


def test_the_newest_record_of_a_device_counts(spark: SparkSession) -> None:
    encode = avro.encoder(devices.READER, 5)

    def device(home: str | None) -> bytes:
        nothing: dict[str, Any] = {"room": None, "model": None, "thresholds": {}, "attributes": {"floor": home}}
        return encode({"device_id": "ignored", "home": home, "region": "r", **nothing})

    values = [("a", device("1")), ("b", device("2")), ("c", device("3")), ("a", device("4")), ("b", None), ("c", b"?")]
    rows = [(key.encode(), value) for key, value in values]
    topic = spark.createDataFrame([(k, v, "devices", 0, n, None, None) for n, (k, v) in enumerate(rows)], RECORDS)
    newest = devices.newest(topic)
    assert confluent_avro.schema_ids(newest) == [5]
    ids = confluent_avro.SchemaIds({5: json.dumps(devices.READER)}, closed=True)
    names = ["home", "attributes.floor", "attributes.tenant"]
    table = devices.decode(newest, ids, names).collect()
    entries = {"attributes.floor": "4", "attributes.tenant": None}
    assert [row.asDict() for row in table] == [{"device_id": "a", "home": "4", **entries}]
    # What has come since some offset, put into the table at that offset, makes the same table.
    for offset in (2, 5):
        begin = devices.decode(devices.newest(topic.where(F.col("offset") < offset)), ids, names)
        changes = devices.last_values(topic.where(F.col("offset") >= offset))
        changed = devices.decode(changes.where(F.col("value").isNotNull()), ids, names)
        assert devices.updated(begin, changes, changed).collect() == table


def test_a_device_written_before_it_had_attributes_has_none(spark: SparkSession) -> None:
    first = schema("Device", 1)
    nothing: dict[str, Any] = {"room": None, "model": None, "region": None, "thresholds": {}}
    value = avro.encoder(first, 5)({"device_id": "a", "home": "1", **nothing})
    topic = spark.createDataFrame([(b"a", value, "devices", 0, 0, None, None)], RECORDS)
    ids = confluent_avro.SchemaIds({5: json.dumps(first)}, closed=True)
    (row,) = devices.decode(devices.newest(topic), ids, ["home", "attributes.floor"]).collect()
    assert row.asDict() == {"device_id": "a", "home": "1", "attributes.floor": None}

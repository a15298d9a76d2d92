"""The trace of a reading: what it says of readings of every fate, and how it finds them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from console_in_memory import CONFIG, KLASS, NOW, PLUGIN, World, world_of
from hypothesis import given
from hypothesis import strategies as st
from traced_pipeline import BEGIN, DEAD, FATES, LATE, PARTITIONS, READINGS, WINDOWS, Pipeline, Told, live, place_of

import isotherm.schemas
from isotherm.console.connectors.offsets import CommittedOffset
from isotherm.console.records.partitions import partition_of
from isotherm.console.trace.model import Reading
from isotherm.console.trace.windows import Spans, keys


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def check(told: Told, answer: dict[str, Any], committed: int) -> None:
    """The answer says what was done with the reading, and nothing else."""
    assert answer["is_exact"]
    assert answer["reading"]["event_time"] == told.value["event_time"]
    assert answer["reading"]["sequence"] == told.value["sequence"]
    steps: dict[str, list[str | None]] = {}
    for step in answer["steps"]:
        place = step["record"] and "{topic}/{partition}/{offset}".format(**step["record"])
        steps.setdefault(step["state"], []).append(place)
    stored = told.place.split()
    expected: dict[str, list[str | None]] = {"received": [None], "stored": [stored[0]]}
    if told.fate == "copied":
        expected["copied"] = [*stored[1:]]
    if told.window:
        windows = told.window.split()
        expected["windowed"] = [windows[0]]
        if windows[1:]:
            expected["revised"] = [*windows[1:]]
    by_fate = {
        "late": "late",
        "future": "dead letter",
        "refused": "dead letter",
        "alerting": "alerted",
        "lost": "unpublished",
    }
    found = set(steps) - {"read", "unread", "filtered"}
    assert found == {*expected, *([by_fate[told.fate]] if told.fate in by_fate else [])}, (told, answer)
    for state, places in expected.items():
        assert steps[state] == places, (told, answer)
    assert len(steps.get("alerted", [])) == (told.fate == "alerting")
    offset = int(stored[0].rpartition("/")[2])
    settled: set[str] = set()
    if told.fate != "refused":
        settled = {"unread" if committed <= offset else "filtered" if told.value["value"] > 28 else "read"}
    assert {state for state in steps if state in ("read", "unread", "filtered")} == settled, (told, answer)


def sink(world: World, committed: int) -> None:
    """A connector that reads the readings, and leaves the warmest out."""
    kcql = f"INSERT INTO a SELECT * FROM {READINGS} WHERE value <= 28"
    world.cluster.update_plugin(KLASS, PLUGIN | {"kcql_clauses": ["WHERE"]})
    world.create(config=CONFIG | {"topics": READINGS, "print.kcql": kcql})
    world.memory.committed = [CommittedOffset(READINGS, partition, committed) for partition in range(PARTITIONS)]


def test_a_thousand_readings_of_every_fate(world: World) -> None:
    chance = random.Random(24)
    pipeline = Pipeline(world)
    told = [
        live(pipeline, f"dev|{chance.randrange(40)}/%", sequence, chance.choice(FATES)) for sequence in range(1, 1_001)
    ]
    pipeline.finish()
    committed = 180
    sink(world, committed)
    assert {one.fate for one in told} == set(FATES)
    for one in told:
        path = f"/isotherm/devices/{one.value['device_id'].replace('%', '%25')}/trace"
        asked = {"at": f"@{one.value['event_time']}", "metric": one.value["metric"]}
        if one.fate == "future":
            # Its event time is far from its append time: only its sequence or its place tells where it is.
            asked = {"record": one.place}
        answer = world.http.get(path, params=asked)
        assert answer.status_code == 200, (one, answer.text)
        check(one, answer.json(), committed)


def test_by_sequence_it_is_found_wherever_it_is(world: World) -> None:
    pipeline = Pipeline(world)
    for sequence in range(1, 12_001):
        device = f"d{sequence % 7}"
        pipeline.reading(device, sequence, BEGIN + sequence, BEGIN + sequence)
    pipeline.finish()
    for sequence in (1, 2, 7, 777, 6_000, 11_999, 12_000):
        device = f"d{sequence % 7}"
        found = world.http.get(f"/isotherm/devices/{device}/trace", params={"sequence": sequence}).json()
        assert found["reading"]["sequence"] == sequence
        reader = world.topics.topics[READINGS]
        assert reader.reads < 200
    late = Pipeline(world)
    for sequence in range(1, 12_001):
        device = "new" if sequence > 11_000 and sequence % 7 == 0 else f"d{sequence % 7}"
        late.reading(device, sequence, BEGIN + sequence, BEGIN + sequence)
    late.finish()
    for sequence in (11_004, 11_501, 11_998):
        found = world.http.get("/isotherm/devices/new/trace", params={"sequence": sequence}).json()
        assert found["reading"]["sequence"] == sequence
    missing = world.http.get("/isotherm/devices/d1/trace", params={"sequence": 2})
    assert missing.status_code == 404
    assert "do not ascend" in missing.json()["message"]


@pytest.mark.parametrize("asked", [{}, {"sequence": 3}])
def test_a_reading_that_was_stored_an_hour_late_is_found(world: World, asked: dict[str, int]) -> None:
    pipeline = Pipeline(world)
    for n in range(1, 6):
        late_ms = 3_600_000 if n == 3 else 0
        pipeline.reading("d", n, BEGIN + n * 10_000 - late_ms, BEGIN + n * 10_000 + 5)
    pipeline.finish()
    at = {"at": f"@{BEGIN + 30_000 - 3_600_000}"}
    found = world.http.get("/isotherm/devices/d/trace", params={**at, **asked}).json()
    assert (found["reading"]["sequence"], found["is_exact"]) == (3, True)


def test_without_more_it_is_the_newest_reading(world: World) -> None:
    pipeline = Pipeline(world)
    for n in range(5):
        pipeline.reading("d", n, BEGIN + n * 10_000, BEGIN + n * 10_000 + 5)
    pipeline.finish()
    assert world.http.get("/isotherm/devices/d/trace").status_code == 404
    example = isotherm.schemas.examples("devices.latest")[0].value
    latest = {"temperature": {**example["latest"]["temperature"], "event_time": BEGIN + 40_000, "sequence": 4}}
    state = world.schemas.encoded("devices.latest", "DeviceState", 1, {**example, "device_id": "d", "latest": latest})
    world.latest.update("d", state)
    assert world.http.get("/isotherm/devices/d/trace").json()["reading"]["sequence"] == 4
    assert world.http.get("/isotherm/devices/d/trace", params={"metric": "brightness"}).status_code == 404


def test_the_nearest_reading_is_said_to_be_only_that(world: World) -> None:
    pipeline = Pipeline(world)
    for n in range(5):
        pipeline.reading("d", n, BEGIN + n * 10_000, BEGIN + n * 10_000 + 5)
    pipeline.finish()
    found = world.http.get("/isotherm/devices/d/trace", params={"at": f"@{BEGIN + 21_000}"}).json()
    assert (found["reading"]["sequence"], found["is_exact"]) == (2, False)
    page = world.http.get("/ui/devices/d/trace", params={"at": f"@{BEGIN + 21_000}"}).text
    assert "This is the nearest one" in page
    assert f"/ui/topics/{READINGS}/" in page


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"at": "yesterday"}, 400, "is not a time"),
        ({"record": "thermostat.data/x/1"}, 400, "is not a place"),
        ({"record": "thermostat.data/0/999"}, 404, "there is no record of a reading thermostat.data/0/999"),
        ({"record": "nothing/0/1"}, 404, "there is no record of a reading nothing/0/1"),
        ({"at": f"@{NOW}"}, 404, "no reading of d was stored around this time"),
        ({"at": "@7"}, 404, "no reading of d was stored around this time"),
        ({"at": "0001-01-01T00:00:00Z"}, 404, "no reading of d was stored around this time"),
    ],
)
def test_what_is_not_found_is_said(world: World, asked: dict[str, str], status: int, message: str) -> None:
    pipeline = Pipeline(world)
    pipeline.reading("d", 1, BEGIN, BEGIN + 5)
    pipeline.finish()
    answer = world.http.get("/isotherm/devices/d/trace", params=asked)
    assert (answer.status_code, message in answer.json()["message"]) == (status, True)
    page = world.http.get("/ui/devices/d/trace", params=asked)
    assert (page.status_code, message.split()[0] in page.text) == (status, True)


def states_of(answer: dict[str, Any]) -> list[str]:
    return [step["state"] for step in answer["steps"]]


def test_a_copy_that_came_too_late_does_not_make_the_reading_late(world: World) -> None:
    pipeline = Pipeline(world)
    value, record = pipeline.reading("d", 1, BEGIN, BEGIN + 5)
    row = pipeline.window(value, BEGIN + 70_000, 7)
    copy = pipeline.append_raw(READINGS, b"d", record.value or b"", at_ms=BEGIN + 300_000)
    appended = ("aggregator.appended_ms", str(BEGIN + 300_000).encode())
    pipeline.append_raw(LATE, b"d", record.value or b"", appended, at_ms=BEGIN + 301_000)
    pipeline.finish()
    answer = world.http.get("/isotherm/devices/d/trace", params={"record": place_of(record)}).json()
    assert states_of(answer) == ["received", "stored", "windowed"]
    assert answer["steps"][-1]["record"]["offset"] == row.offset
    assert "late" in states_of(world.http.get("/isotherm/devices/d/trace", params={"record": place_of(copy)}).json())


def test_a_device_that_was_silent_for_long_is_found_by_sequence(world: World) -> None:
    pipeline = Pipeline(world)
    at_ms = BEGIN
    for first, last in ((1, 400), (401, 800)):
        for sequence in range(first, last + 1):
            at_ms += 1
            pipeline.reading("d", sequence, at_ms, at_ms)
        for other in range(20_000 if last == 400 else 0):
            at_ms += 1
            pipeline.append_raw(READINGS, f"other-{other % 9}".encode(), b"-", at_ms=at_ms)
    pipeline.finish()
    for sequence in (1, 38, 112, 399, 400, 401, 600, 800):
        found = world.http.get("/isotherm/devices/d/trace", params={"sequence": sequence})
        assert found.json()["reading"]["sequence"] == sequence, found.text


def test_each_connector_that_refused_a_reading_is_told(world: World) -> None:
    pipeline = Pipeline(world)
    _, record = pipeline.reading("d", 1, BEGIN, BEGIN + 5)
    origin = {"topic": READINGS, "partition": str(record.partition), "offset": str(record.offset)}
    for connector in ("b", "a", "b", "aggregator"):
        said = {**origin, "connector.name": connector, "exception.message": f"{connector} \x1b[31m"}
        headers = [(f"__connect.errors.{name}", text.encode()) for name, text in said.items()]
        pipeline.append_raw(DEAD, b"d", record.value or b"", *headers, at_ms=BEGIN + 100)
    pipeline.finish()
    sink(world, committed=50)
    answer = world.http.get("/isotherm/devices/d/trace", params={"record": place_of(record)}).json()
    assert states_of(answer) == ["received", "stored", *["dead letter"] * 3]
    assert [step["hop"] for step in answer["steps"][2:]] == ["b", "a", "aggregator"]


def test_every_sliding_window_of_many_devices_is_found(world: World) -> None:
    pipeline = Pipeline(world)
    start = BEGIN - BEGIN % 60_000
    _, record = pipeline.reading("d", 1, start + 1_000, start + 1_005)
    for begin in range(start - 120_000, start + 120_000, 10_000):
        for device in (*(f"x{n}" for n in range(60)), "d"):
            row = {
                **isotherm.schemas.examples(WINDOWS)[0].value,
                "device_id": device,
                "metric": "temperature",
                "window_start": begin,
                "window_end": begin + 60_000,
                "revision": begin,
            }
            key = f"{device}|temperature|{begin}|{begin + 60_000}"
            pipeline.append(WINDOWS, "TemperatureAggregate", key, row, at_ms=begin + 90_000)
    pipeline.finish()
    answer = world.http.get("/isotherm/devices/d/trace", params={"record": place_of(record)}).json()
    assert states_of(answer).count("windowed") == 6, answer
    assert answer["notes"] == []


def test_a_topic_that_the_aggregator_does_not_read_has_no_windows(world: World) -> None:
    pipeline = Pipeline(world)
    value, _ = pipeline.reading("d", 1, BEGIN, BEGIN + 5)
    pipeline.window(value, BEGIN + 70_000, 7)
    pipeline.records["temperature"] = []
    record = pipeline.append("temperature", "SensorReading", "d", value, at_ms=BEGIN + 9)
    pipeline.finish()
    answer = world.http.get("/isotherm/devices/d/trace", params={"record": place_of(record)}).json()
    assert states_of(answer) == ["received", "stored"]


@pytest.mark.parametrize("asked", [{"metric": "brightness"}, {"sequence": 2}])
def test_a_record_of_another_reading_is_refused(world: World, asked: dict[str, Any]) -> None:
    pipeline = Pipeline(world)
    _, record = pipeline.reading("d", 1, BEGIN, BEGIN + 5)
    pipeline.finish()
    at = {"record": place_of(record)}
    assert world.http.get("/isotherm/devices/d/trace", params=at).status_code == 200
    assert world.http.get("/isotherm/devices/d/trace", params={**at, **asked}).status_code == 404
    assert world.http.get("/isotherm/devices/other/trace", params=at).status_code == 404


@given(st.binary(max_size=64), st.integers(1, 200))
def test_keys_are_on_the_partition_that_producers_choose(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@given(
    st.integers(10**6, 10**13), st.sampled_from([(60_000, 60_000), (60_000, 10_000), (90_000, 60_000), (1_000, 1_000)])
)
def test_a_reading_is_in_exactly_these_windows(at_ms: int, of: tuple[int, int]) -> None:
    spans = Spans(*of)
    found = {key.decode() for key, _ in keys(Reading("d|", "m", 1.0, "Cel", at_ms, at_ms, 0), spans)}
    starts = range(0, at_ms + 1, spans.slide_ms)[-200:]
    expected = {start for start in starts if start <= at_ms < start + spans.length_ms}
    assert found == {f"d%7C|m|{start}|{start + spans.length_ms}" for start in expected}

"""The balance of a span: what adds up, and each kind of what does not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.cli.reconciliation import connectors, windows
from isotherm.cli.reconciliation.connectors import Committed
from isotherm.cli.reconciliation.report import Line
from isotherm.cli.reconciliation.tally import Span, Tally

START, MINUTE = 1_767_225_600_000, 60_000
SPAN = Span(START, START + 3 * MINUTE)
IN, OUT = "in", "out"
Key = tuple[str, int, int]
"""Device, event time and sequence."""

keys = st.tuples(st.sampled_from(["a", "b"]), st.integers(START - MINUTE, START + 4 * MINUTE - 1), st.integers(0, 3))
topics = st.dictionaries(keys, st.floats(-40, 60), min_size=1, max_size=60).filter(
    lambda values: any(SPAN.holds(key[1]) for key in values)
)


def reading(key: Key, value: float) -> dict[str, Any]:
    device, event_ms, sequence = key
    return {"device_id": device, "metric": "t", "event_time": event_ms, "sequence": sequence, "value": value}


def row(
    device: str, start_ms: int, values: Iterable[float], length_ms: int = MINUTE, revision: int = 1
) -> dict[str, Any]:
    of = list(values)
    return {
        "device_id": device,
        "metric": "t",
        "window_start": start_ms,
        "window_end": start_ms + length_ms,
        "revision": revision,
        "count": len(of),
        "sum": math.fsum(of),
    }


def rows(values: Mapping[Key, float], slide_ms: int = MINUTE, length_ms: int = MINUTE) -> list[dict[str, Any]]:
    """The windows of readings."""
    found: dict[tuple[str, int], list[float]] = {}
    for (device, event_ms, _), value in values.items():
        start_ms = event_ms - event_ms % slide_ms
        while start_ms + length_ms > event_ms:
            found.setdefault((device, start_ms), []).append(value)
            start_ms -= slide_ms
    return [row(device, start_ms, of, length_ms) for (device, start_ms), of in found.items()]


def tally_of(values: Mapping[Key, float], published: Iterable[dict[str, Any]], copies: Iterable[Key] = ()) -> Tally:
    made = Tally(SPAN)
    records = [*values.items(), *((key, values[key]) for key in copies)]
    for offset, (key, value) in enumerate(records):
        made.add_reading((IN, 0, offset), reading(key, value), "aggregator")
    for offset, record in enumerate(published):
        made.add_window((OUT, 0, offset), record)
    return made


def lines(tally: Tally) -> tuple[Line, Line]:
    return windows.lines(tally, IN, OUT)


@given(topics, st.sampled_from([(MINUTE, MINUTE), (15_000, MINUTE), (30_000, 30_000), (20_000, 60_000)]))
def test_a_span_whose_windows_have_all_readings_adds_up(values: dict[Key, float], window: tuple[int, int]) -> None:
    tally = tally_of(values, rows(values, *window))
    of_readings, of_windows = lines(tally)
    inside = [key for key in values if SPAN.holds(key[1])]
    assert of_readings.adds_up, of_readings
    assert of_windows.adds_up, of_windows
    assert of_readings.figures["readings"] == of_readings.figures["in windows"] == len(inside)


@given(topics, st.data())
def test_a_reading_that_a_window_lacks_or_has_twice_is_found(values: dict[Key, float], data: st.DataObject) -> None:
    whole = [one for one in rows(values) if SPAN.start_ms <= one["window_start"] < SPAN.end_ms]
    others = [one for one in rows(values) if one not in whole]
    if not whole:
        return
    hurt = dict(data.draw(st.sampled_from(whole)))
    change = data.draw(st.sampled_from([-1, 1]))
    hurt["count"] += change
    _, line = lines(
        tally_of(
            values,
            [
                *(
                    one
                    for one in whole
                    if one["window_start"] != hurt["window_start"] or one["device_id"] != hurt["device_id"]
                ),
                hurt,
                *others,
            ],
        )
    )
    assert not line.adds_up
    wanted = "too few readings" if change < 0 else "too many readings"
    assert line.figures[wanted] == 1
    assert f"{hurt['device_id']}/t/{hurt['window_start']}" in line.problems[0]


@given(topics, st.data())
def test_a_lost_window_leaves_its_readings_missing(values: dict[Key, float], data: st.DataObject) -> None:
    published = rows(values)
    lost = data.draw(st.sampled_from(published))
    inside = [
        key
        for key in values
        if key[0] == lost["device_id"] and lost["window_start"] <= key[1] < lost["window_end"] and SPAN.holds(key[1])
    ]
    line, _ = lines(tally_of(values, [one for one in published if one is not lost]))
    assert line.figures["missing"] == len(inside)
    assert line.adds_up == (not inside)


def test_a_lost_sliding_window_is_found_although_others_have_its_readings() -> None:
    values = {("a", START + number * 1_000, 0): 1.0 for number in range(170)}
    published = rows(values, 15_000, MINUTE)
    lost = next(one for one in published if one["window_start"] == START + MINUTE)
    line, of_windows = lines(tally_of(values, [one for one in published if one is not lost]))
    assert of_windows.adds_up
    assert line.figures["missing"] == 60
    assert "60 not in all their windows" in line.problems[0]


def test_a_span_without_readings_does_not_add_up() -> None:
    line, _ = lines(Tally(SPAN))
    assert line.problems == ("no reading of the span is stored",)


def test_what_could_not_be_traced_is_told() -> None:
    line = connectors.sample_line(Counter({"written": 2}), 3, [], ["in/0/1: 503: Kafka is slow"])
    assert line.problems == ("1 readings cannot be traced: in/0/1: 503: Kafka is slow",)
    assert line.figures["rows"] == 2


def test_another_value_is_another_sum() -> None:
    values = {("a", START + number, 0): 20.0 + number for number in range(10)}
    hurt = rows(values)[0]
    hurt["sum"] += 0.001
    _, line = lines(tally_of(values, [hurt]))
    assert line.figures["another sum"] == 1
    assert not line.adds_up


@given(topics)
def test_copies_may_be_in_the_windows_or_not(values: dict[Key, float]) -> None:
    once, twice = rows(values), rows({**values, **{(key[0], key[1], key[2] + 10): of for key, of in values.items()}})
    for published in (once, twice):
        of_readings, of_windows = lines(tally_of(values, published, copies=values))
        assert of_windows.adds_up, of_windows
        assert of_readings.figures["extra copies"] == of_readings.figures["readings"]


@given(topics, st.data())
def test_late_readings_are_in_their_windows_before_or_after_a_correction(
    values: dict[Key, float], data: st.DataObject
) -> None:
    late = data.draw(st.sets(st.sampled_from(sorted(values))))
    on_time = {key: of for key, of in values.items() if key not in late}
    for published in (rows(values), rows(on_time)):
        tally = tally_of(values, published)
        for key in late:
            tally.add_late(reading(key, values[key]))
        of_readings, of_windows = lines(tally)
        assert of_readings.adds_up, of_readings
        assert of_windows.adds_up, of_windows
        assert of_readings.figures["late"] == sum(SPAN.holds(key[1]) for key in late)


def test_the_highest_revision_counts_whatever_the_order() -> None:
    values = {("a", START + number, 0): 1.0 for number in range(4)}
    for order in ((1, 2), (2, 1)):
        tally = tally_of(values, [row("a", START, [1.0] * (4 if one == 2 else 3), revision=one) for one in order])
        assert all(line.adds_up for line in lines(tally))
        assert lines(tally)[1].figures == {
            "records": 2,
            "windows": 1,
            "too few readings": 0,
            "too many readings": 0,
            "another sum": 0,
        }


def test_what_the_aggregator_refused_is_in_no_window() -> None:
    tally = Tally(SPAN)
    tally.add_dead_letter((IN, 0, 1), "aggregator")
    tally.add_dead_letter((IN, 0, 0), "a sink")
    for offset in range(3):
        tally.add_reading((IN, 0, offset), reading(("a", START + offset, 0), 1.0), "aggregator")
    tally.add_window((OUT, 0, 0), row("a", START, [1.0, 1.0]))
    of_readings, of_windows = lines(tally)
    assert of_readings.adds_up
    assert of_windows.adds_up
    assert (of_readings.figures["records"], of_readings.figures["dead letters"]) == (3, 1)


def test_a_connector_has_settled_everything_before_its_offset() -> None:
    tally = Tally(SPAN)
    tally.add_dead_letter((IN, 1, 4), "sink")
    tally.add_dead_letter((IN, 1, 400), "sink")
    for partition in range(2):
        for offset in range(10):
            tally.add_reading((IN, partition, offset), reading(("a", START, offset), 1.0), "aggregator")
    found = connectors.lines(
        tally,
        [
            Committed("sink", [IN], {(IN, 0): 10, (IN, 1): 7}),
            Committed("new", [IN], {}),
            Committed("by regex", [IN], {(IN, 0): 3, (IN, 1): 100}),
            Committed("of others", ["else"], {("else", 0): 1}),
            Committed("has left the topic", ["else"], {("else", 0): 1, (IN, 0): 3}),
        ],
    )
    assert {line.title: dict(line.figures) for line in found} == {
        "sink": {"records": 20, "settled": 17, "dead letters": 1, "unread": 3},
        "new": {"records": 20, "settled": 0, "dead letters": 0, "unread": 20},
        "by regex": {"records": 20, "settled": 13, "dead letters": 0, "unread": 7},
    }
    assert [line.adds_up for line in found] == [False, False, False]
    assert connectors.lines(tally, [Committed("sink", [IN], {(IN, 0): 10, (IN, 1): 10})])[0].adds_up


@pytest.mark.parametrize(
    ("states", "adds_up"), [({"written": 3, "replaced": 1, "read": 2}, True), ({"missing": 1}, False)]
)
def test_rows_that_are_missing_or_altered_do_not_add_up(states: dict[str, int], adds_up: bool) -> None:
    line = connectors.sample_line(Counter(states), 4, ["es: the store does not have it"] if not adds_up else [])
    assert line.adds_up == adds_up
    assert line.figures["rows"] == sum(states.values())

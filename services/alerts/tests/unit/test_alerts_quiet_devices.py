"""Batches with compiled judging decide and remember exactly what the engine does, with any order, repeats and kills."""

from __future__ import annotations

import random
from typing import Any

import pytest
from alerts_batches import (
    ENCODE_LATEST,
    LATEST_HEADER,
    NOW_MS,
    SCHEMA_ID,
    Batches,
    OneByOne,
    Record,
    record,
    rule_engine,
)
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine import alert_records, device_state
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.hotpath import compiled
from isotherm.alerts.rules.device_table import DeviceTable

START_MS = 1_750_000_000_000
RULES: list[dict[str, Any]] = [
    {"kind": "above", "metric": "t", "threshold": 30, "hysteresis": 1, "for_ms": 15_000},
    {"kind": "below", "metric": "t", "threshold": 5},
    {"kind": "rate", "metric": "t", "threshold": 12, "hysteresis": 2, "window_ms": 60_000, "severity": "critical"},
    {"kind": "flat", "metric": "t", "tolerance": 0.5, "for_ms": 90_000},
    {"kind": "above", "metric": "h", "threshold": 30},
    {
        "kind": "all",
        "name": "warm-and-damp",
        "for_ms": 10_000,
        "conditions": [
            {"kind": "above", "metric": "t", "threshold": 28, "hysteresis": 1},
            {"kind": "above", "metric": "h", "threshold": 4.5},
        ],
    },
    {"kind": "silent", "intervals": 3, "min_ms": 20_000},
]
DEVICES = ("attic", "cellar", "kitchen")

STEPS = st.lists(
    st.tuples(
        st.sampled_from(DEVICES),
        st.sampled_from(("t", "t", "t", "h")),
        # Values around the thresholds, and small movements between them.
        st.one_of(st.sampled_from((4.0, 5.0, 20.0, 20.4, 21.0, 29.9, 30.0, 30.5)), st.floats(-50, 90)),
        st.sampled_from((0, 1, 7_000, 10_000, 10_000, 10_000, 12_345, 40_000, 120_000)),
        # How the sequence goes on: mostly with the next number.
        st.sampled_from((1, 1, 1, 1, 1, 1, 1, 1, 2, 0, None)),
        st.sampled_from(("Cel", "Cel", "Cel", "Cel", "Cel", "Cel", "K")),
        st.sampled_from(("", "", "", "", "batch", "checkpoint", "advance", "kill", "repeat", "swap", "future", "late")),
    ),
    max_size=120,
)


def steady(count: int, every_ms: int = 10_000, device_id: str = "attic") -> list[Record]:
    """Return readings of a device that does nothing unusual."""
    return [
        record(Reading(device_id, "t", 20 + number % 7, "Cel", at_ms, at_ms + 5, number + 1))
        for number, at_ms in enumerate(range(START_MS, START_MS + count * every_ms, every_ms))
    ]


def both(rules: list[dict[str, Any]] = RULES, reorder_ms: int = 5_000) -> tuple[OneByOne, Batches]:
    engine = rule_engine(rules, reorder_ms)
    devices = DeviceTable(engine.rules, {})
    return OneByOne(engine, devices), Batches(engine, devices)


def states(
    single: OneByOne, batches: Batches
) -> tuple[dict[str, device_state.DeviceRuleState], dict[str, device_state.DeviceRuleState]]:
    """Return all states of both when all devices have come to the same time."""
    for device_id, state in single.states.items():
        single.advance(device_id, state)
    return single.states, batches.states(single.clock_ms)


def decided(alerts: list[dict[str, Any]]) -> list[str]:
    """Return alerts in an order that does not depend on that of the devices, each once."""
    return sorted({repr(one) for one in alerts})


@given(STEPS, st.sampled_from((0, 5_000)), st.booleans())
def test_batches_equal_single_readings(steps: list[Any], reorder_ms: int, has_append_time: bool) -> None:
    single, batches = both(reorder_ms=reorder_ms)
    now_ms, sequences = START_MS, dict.fromkeys(((device, name) for device in DEVICES for name in "th"), 0)
    log: list[Record] = []
    fed = committed = read = 0
    for device_id, name, value, passed_ms, step, unit, event in steps:
        now_ms += passed_ms
        key = (device_id, name)
        number = 0 if step is None else sequences[key] + step
        sequences[key] = max(number, sequences[key])
        measured_ms = now_ms + (90_000 if event == "future" else 0)
        appended_ms = now_ms + (50_000 if event == "late" else 20) if has_append_time else None
        log.append(record(Reading(device_id, name, value, unit, measured_ms, now_ms, number), appended_ms=appended_ms))
        if event == "repeat":
            log.append(log[len(log) // 2])
        # A kill makes records be read again, in the order of the topic: none that was ever read changes its place.
        if event == "swap" and len(log) - read > 1:
            log[-1], log[-2] = log[-2], log[-1]
        if event in ("batch", "checkpoint", "advance", "kill"):
            batches.feed(log[fed:])
            fed = read = len(log)
        if event == "advance":
            batches.advance()
        if event == "checkpoint":
            batches.checkpoint()
            committed = fed
        if event == "kill":
            batches.kill()
            fed = committed
    batches.feed(log[fed:])
    for one in log:
        single.process(one)
    expected, found = states(single, batches)
    assert decided(batches.alerts) == decided(single.alerts)
    assert found == expected


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
def test_long_streams_of_many_devices_are_judged_in_c_and_equal_single_readings(seed: int) -> None:
    single, batches = both()
    choose = random.Random(seed)
    devices = [f"device-{number}" for number in range(300)]
    at_ms = dict.fromkeys(devices, START_MS)
    number = dict.fromkeys(devices, 0)
    value = {device_id: choose.uniform(10, 25) for device_id in devices}
    log: list[Record] = []
    for _ in range(40):
        for device_id in choose.sample(devices, len(devices)):
            at_ms[device_id] += 9_000 + choose.randrange(2_000) + (200_000 if choose.random() < 0.002 else 0)
            number[device_id] += 1
            value[device_id] += choose.gauss(0, 0.4) + (25 if choose.random() < 0.001 else 0)
            now_ms = at_ms[device_id]
            reading = Reading(device_id, "t", value[device_id], "Cel", now_ms, now_ms, number[device_id])
            log.append(record(reading, {"room": "3"}))
    log.sort(key=lambda one: one.timestamp)
    for begin in range(0, len(log), 700):
        batches.feed(log[begin : begin + 700])
        batches.checkpoint()
        batches.kill()
    for one in log:
        single.process(one)
    expected, found = states(single, batches)
    assert decided(batches.alerts) == decided(single.alerts)
    assert found == expected
    assert batches.alerts
    assert batches.quiet > len(log) * 0.6


def test_a_changed_device_is_in_one_checkpoint_with_its_changelog_value_and_its_newest_state() -> None:
    single, batches = both()
    log = steady(20)
    batches.feed(log)
    for one in log:
        single.process(one)
    assert batches.table.changed == 1
    assert batches.table.checkpoint(10, LATEST_HEADER, NOW_MS) == []
    batches.table.begin_checkpoint(1)
    ((device_id, value, latest),) = batches.table.checkpoint(10, LATEST_HEADER, NOW_MS)
    assert batches.table.checkpoint(10, LATEST_HEADER, NOW_MS) == []
    state = single.states["attic"]
    assert device_id == b"attic"
    assert device_state.decode(value) == state
    assert device_state.due_of(value) == single.engine.due_ms(state, None)
    assert latest == ENCODE_LATEST(alert_records.state_record("attic", state, NOW_MS))


def test_a_device_that_is_due_comes_back_to_the_engine() -> None:
    _single, batches = both()
    batches.feed(steady(20))
    state = device_state.decode(batches.table.value(b"attic") or b"")
    due_ms = batches.engine.due_ms(state, None)
    assert due_ms is not None
    assert batches.table.pop_due(due_ms - 1) == []
    assert not batches.table.has_due(due_ms - 1)
    assert batches.table.pop_due(due_ms) == ["attic"]


def test_another_schema_and_records_that_are_no_readings_are_left_to_the_decoder() -> None:
    _single, batches = both()
    good = steady(3)
    foreign = good[1]._replace(value=b"\0" + (SCHEMA_ID + 1).to_bytes(4, "big") + good[1].value[5:])
    short, long = good[1]._replace(value=good[1].value[:-3]), good[1]._replace(value=good[1].value + b"\0")
    batches.feed(steady(2))
    for one in (foreign, short, long, good[1]._replace(value=b"")):
        rest, following = batches.table.judge(
            [one, good[2]],
            0,
            clock_ms=0,
            other_clocks_ms=NOW_MS,
            now_ms=NOW_MS,
            delay_ms=0,
            max_skew_ms=0,
            uses_append_time=False,
        )
        assert (rest, following) == ([(0, 0)], 1)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_no_bytes_can_break_the_reader(junk: bytes, cut: int) -> None:
    _single, batches = both()
    value = steady(1)[0].value
    mixed = record(Reading("attic", "t", 20.0, "Cel", START_MS, START_MS, 1))._replace(value=value[:cut] + junk)
    batches.table.judge(
        [mixed],
        0,
        clock_ms=0,
        other_clocks_ms=NOW_MS,
        now_ms=NOW_MS,
        delay_ms=0,
        max_skew_ms=0,
        uses_append_time=False,
    )
    header = bytes(16)
    batches.feed(steady(8))
    stored = batches.table.value(b"attic") or b""
    batches.table.restore(b"other", header + b"\1" + junk)
    batches.table.restore(b"other", stored[: cut + 16] + junk)


def test_the_newer_of_two_values_wins_and_is_written_again_behind_an_older_one() -> None:
    _single, batches = both()
    log = steady(12)
    batches.feed(log[:10])
    older = batches.table.value(b"attic") or b""
    batches.feed(log[10:])
    newer = batches.table.value(b"attic") or b""
    for values, rewrites in (((older, newer), []), ((newer, older), [("attic", newer)]), ((newer, older, newer), [])):
        batches.kill()
        for value in values:
            assert batches.table.restore(b"attic", value)
        assert batches.table.value(b"attic") == newer
        assert batches.table.pop_rewrites() == rewrites
        assert batches.table.pop_rewrites() == []


def test_devices_come_and_go_in_any_order() -> None:
    _single, batches = both()
    choose, held = random.Random(1), set[str]()
    for _ in range(6_000):
        name = f"device-{choose.randrange(2_500)}"
        if name in held:
            taken = batches.table.take(name)
            assert taken is not None
            assert taken[0].metrics["t"].value == float(name.removeprefix("device-"))
            held.remove(name)
        else:
            state = device_state.DeviceRuleState(1, last_seen_ms=START_MS)
            value = float(name.removeprefix("device-"))
            state.metrics["t"] = device_state.MetricState(START_MS, 1, value, "Cel", START_MS)
            bounds = batches.engine.quiet_bounds_of(state, None)
            assert bounds is not None
            assert batches.table.put(name, state, bounds, changed_in=choose.randrange(2))
            held.add(name)
        assert len(batches.table) == len(held)
    for name in [f"device-{number}" for number in range(2_500)]:
        assert (batches.table.take(name) is not None) == (name in held)


def test_more_names_than_there_is_place_for_stay_with_the_engine() -> None:
    _single, batches = both()
    state = device_state.DeviceRuleState(1, last_seen_ms=START_MS)
    state.metrics["t" * 256] = device_state.MetricState(START_MS, 1, 20.0, "Cel", START_MS)
    bounds = batches.engine.quiet_bounds_of(state, None)
    assert bounds is not None
    assert not batches.table.put("attic", state, bounds, changed_in=0)
    assert len(batches.table) == 0


def test_a_device_whose_metadata_has_changed_gets_its_new_bounds_or_the_engine() -> None:
    _single, batches = both()
    log = steady(30)
    batches.feed(log[:20])
    quiet = batches.quiet
    attributes: dict[str, Any] = {"home": None, "region": None, "model": None}
    batches.devices.put("attic", {**attributes, "thresholds": {"t.above": 15.0}})
    batches.table.replan("attic")
    batches.feed(log[20:])
    batches.advance()
    assert batches.quiet == quiet
    assert [one["rule"] for one in batches.alerts] == ["above"]


def test_a_checkpoint_writes_what_changed_before_it_and_the_next_one_the_rest() -> None:
    _single, batches = both()
    for name in ("attic", "cellar", "kitchen"):
        batches.feed(steady(12, device_id=name)[:10])
    table = batches.table
    table.begin_checkpoint(1)
    # One changes again before it is written, one is with the engine meanwhile, a new one comes.
    batches.feed(steady(12, device_id="attic")[10:])
    taken = table.take("cellar")
    assert taken is not None
    assert taken[1] == 1
    assert table.put("cellar", taken[0], batches.engine.quiet_bounds_of(taken[0], None) or [], changed_in=taken[1])
    batches.feed(steady(10, device_id="shed"))
    written = [key for key, _value, _latest in table.checkpoint(10, LATEST_HEADER, NOW_MS)]
    assert sorted(written) == [b"attic", b"cellar", b"kitchen"]
    assert (table.unwritten, table.changed) == (0, 1)
    # A change behind the checkpoint is for the next one.
    batches.feed(steady(13, device_id="attic")[12:])
    moved = table.take("attic")
    assert moved is not None
    assert moved[1] == 2
    table.begin_checkpoint(2)
    assert [key for key, _value, _latest in table.checkpoint(10, LATEST_HEADER, NOW_MS)] == [b"shed"]


def test_other_rules_count_from_the_next_reading_on_and_for_the_time_of_each_device() -> None:
    engine = rule_engine(RULES)
    current = [engine]
    table = compiled.QuietDevices(5_000, lambda _device, name: current[0].quiet_bounds(name, None))
    table.add_schema(SCHEMA_ID)
    _single, batches = both()
    batches.feed(steady(20))
    batches.feed(steady(20, device_id="cellar"))
    for name in ("attic", "cellar"):
        value = batches.table.value(name.encode())
        assert value is not None
        assert table.restore(name.encode(), value)
    assert table.replan_some(10) == 0
    current[0] = rule_engine([{"kind": "above", "metric": "t", "threshold": 22}, {"kind": "flat", "metric": "t"}])
    table.forget_plans()
    hot = steady(22)[21:]
    rest, _end = judged(table, hot)
    # The rate rule of its state is gone, so the engine needs the device.
    assert rest == [(0, 0)]
    assert table.replan_some(1) == 1
    assert table.replan_some(1) == 0
    assert sorted(table.pop_due(0)) == ["attic", "cellar"]


def judged(table: compiled.QuietDevices, records: list[Record]) -> tuple[list[tuple[int, int]], int]:
    return table.judge(
        records,
        0,
        clock_ms=0,
        other_clocks_ms=NOW_MS,
        now_ms=NOW_MS,
        delay_ms=0,
        max_skew_ms=0,
        uses_append_time=False,
    )

"""Silence that learns: irregular devices are seldom silent by mistake, deaths are told, and nothing flaps for ever."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from irregular_devices import KINDS, MAX_FALSE_SILENCES, MAX_MEDIAN_GAPS, Irregular, devices, judge

from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.settings import AlertsSettings

PUBLISH_DELAY_MS = 40_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def engine_of(forget_ms: int = 0, **silent: Any) -> RuleEngine:
    book = AlertsSettings.model_validate({"rules": [{"kind": "silent", **silent}]}).rule_book()
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, 5_000, forget_ms=forget_ms)


def reading(at_ms: int, metric: str = "t", sequence: int = 0, ingest_ms: int | None = None) -> Reading:
    return Reading("d", metric, 20.0, "Cel", at_ms, at_ms if ingest_ms is None else ingest_ms, sequence)


def lines(alerts: Iterable[AlertRecord] | None) -> list[tuple[str, str]]:
    return [(one["alert_id"], one["state"]) for one in alerts or []]


def test_a_thousand_irregular_devices_are_seldom_silent_by_mistake_and_every_death_is_told() -> None:
    bounds = engine_of().default_bounds["silent"]
    false: Counter[str] = Counter()
    slowest, readings = dict.fromkeys(KINDS, 0.0), 0
    for device in devices(1_000, seed=1, shortest_ms=120_000, longest_ms=1_200_000):
        judged = judge(device, bounds)
        false[device.kind] += judged.false_silences
        readings += len(device.times)
        slowest[device.kind] = max(slowest[device.kind], judged.told_after)
    sys.stdout.write(
        f"{readings} readings; false silences: {dict(false)}; deaths told after at most {slowest} median gaps\n"
    )
    assert false.total() <= MAX_FALSE_SILENCES
    assert max(slowest.values()) <= MAX_MEDIAN_GAPS


def lived(engine: RuleEngine, device: Irregular) -> tuple[int, int | None]:
    """Return how often the engine told that a living device is silent, and when (ms) it told its death."""
    state, false = DeviceRuleState(), 0
    for at_ms in device.times:
        found = engine.advance_time(state, "d", None, at_ms - PUBLISH_DELAY_MS) or []
        measured_ms = DAY_MS + device.clock_ms(at_ms)
        found += engine.apply(state, reading(measured_ms, ingest_ms=DAY_MS + at_ms), None) or []
        state.outbox.clear()
        false += sum(one["state"] == "opened" for one in found)
    due_ms = engine.due_ms(state, None)
    return false, None if due_ms is None else due_ms - DAY_MS + PUBLISH_DELAY_MS


def test_the_engine_tells_deaths_of_irregular_devices_whose_clocks_drift() -> None:
    engine, false = engine_of(), 0
    for device in devices(20, seed=8, shortest_ms=300_000, longest_ms=1_200_000):
        mistakes, alerted_ms = lived(engine, device)
        false += mistakes
        assert alerted_ms is not None
        assert alerted_ms - device.times[-1] <= MAX_MEDIAN_GAPS * device.median_gap_ms
    sys.stdout.write(f"false silences: {false}\n")
    assert false <= 1


@pytest.mark.parametrize(
    ("gaps_s", "alerts"),
    [
        ([1] * 20 + [300] * 288, 6),
        ([10] * 100 + [600] * 144, 6),
        (([10] * 40 + [900]) * 48, 8),
    ],
    ids=["connect burst", "another interval", "long pauses"],
)
def test_no_device_flaps_for_ever(gaps_s: list[int], alerts: int) -> None:
    engine, state, told, at_ms = engine_of(), DeviceRuleState(), 0, DAY_MS
    for number, gap_s in enumerate(gaps_s, 1):
        at_ms += gap_s * 1_000
        told += len(engine.apply(state, reading(at_ms, sequence=number), None) or [])
    assert told <= alerts


def both(engine: RuleEngine, state: DeviceRuleState, rounds: range, metrics: str, every_ms: int) -> list[AlertRecord]:
    found: list[AlertRecord] = []
    for number in rounds:
        for metric in metrics:
            found += engine.apply(state, reading(DAY_MS + number * every_ms, metric, number), None) or []
    return found


def test_a_metric_that_dies_while_another_lives_is_told_until_it_comes_back() -> None:
    engine, state = engine_of(cautious_intervals=5), DeviceRuleState()
    assert both(engine, state, range(1, 21), "th", 60_000) == []
    died_ms = DAY_MS + 20 * 60_000
    opened = both(engine, state, range(21, 60), "t", 60_000)
    assert lines(opened) == [(f"d/silent/h/{died_ms + 5 * 60_000}", "opened")]
    assert (opened[0]["metric"], opened[0]["message"]) == ("h", "no reading of h when one was due")
    closed = both(engine, state, range(60, 61), "th", 60_000)
    # Its number does not follow, so it waits.
    closed += engine.advance_time(state, "d", None, DAY_MS + 60 * 60_000 + 5_000) or []
    assert lines(closed) == [(f"d/silent/h/{died_ms + 5 * 60_000}", "closed")]


def test_a_metric_can_be_left_out_and_a_dead_device_is_one_alert() -> None:
    for per_metric in (False, True):
        engine, state = engine_of(cautious_intervals=5, per_metric=per_metric), DeviceRuleState()
        both(engine, state, range(1, 21), "th", 60_000)
        if not per_metric:
            assert both(engine, state, range(21, 60), "t", 60_000) == []
        told = engine.advance_time(state, "d", None, 2 * DAY_MS) or []
        assert [one["metric"] for one in told] == [None]


def test_a_device_with_a_record_that_never_reports_is_told_until_it_does() -> None:
    engine, state = engine_of(unreported_ms=HOUR_MS), DeviceRuleState()
    device = DeviceMetadata({}, engine.default_bounds, since_ms=DAY_MS)
    assert engine.due_ms(state, device) == DAY_MS + HOUR_MS
    assert engine.advance_time(state, "d", device, DAY_MS + HOUR_MS - 1) is None
    opened = engine.advance_time(state, "d", device, DAY_MS + 2 * HOUR_MS)
    assert lines(opened) == [(f"d/silent/{DAY_MS + HOUR_MS}", "opened")]
    assert engine.due_ms(state, device) is None
    closed = engine.apply(state, reading(DAY_MS + 3 * HOUR_MS, sequence=1), device)
    assert lines(closed) == [(f"d/silent/{DAY_MS + HOUR_MS}", "closed")]
    never = engine_of(unreported_ms=0)
    assert never.due_ms(DeviceRuleState(), DeviceMetadata({}, never.default_bounds, since_ms=DAY_MS)) is None


def test_a_device_whose_record_is_removed_closes_its_alerts_and_is_forgotten() -> None:
    engine, state = engine_of(cautious_intervals=5), DeviceRuleState()
    both(engine, state, range(1, 21), "t", 60_000)
    (opened,) = engine.advance_time(state, "d", None, 2 * DAY_MS) or []
    (closed,) = engine.remove(state, "d", 3 * DAY_MS)
    assert (closed["alert_id"], closed["closed_at"]) == (opened["alert_id"], 3 * DAY_MS)
    assert closed["message"] == "the record of the device was removed"
    assert (state.metrics, state.rules, state.is_forgotten) == ({}, {}, True)
    assert engine.due_ms(state, None) is None


def test_a_device_that_nobody_knows_is_forgotten_after_a_while() -> None:
    engine, state = engine_of(forget_ms=7 * DAY_MS, cautious_intervals=5), DeviceRuleState()
    known = DeviceMetadata({}, engine.default_bounds)
    both(engine, state, range(1, 21), "t", 60_000)
    last_ms = DAY_MS + 20 * 60_000
    assert engine.advance_time(state, "d", known, 30 * DAY_MS) is not None
    assert engine.due_ms(state, known) is None
    assert engine.advance_time(state, "d", None, last_ms + 7 * DAY_MS - 1) is None
    (closed,) = engine.advance_time(state, "d", None, last_ms + 7 * DAY_MS) or []
    assert (closed["state"], closed["closed_at"]) == ("closed", last_ms + 7 * DAY_MS)
    assert state.is_forgotten


@pytest.mark.parametrize("kind", ["numbered", "unnumbered", "lossy"])
def test_a_reading_decides_at_once_whatever_the_device_numbers_and_loses(kind: str) -> None:
    """Event time and a clock stand for the wait: an alert that needs neither a later reading nor time is at once."""
    book = AlertsSettings.model_validate({"rules": [{"kind": "above", "metric": "t", "threshold": 30}]}).rule_book()
    engine, state = RuleEngine(book, DeviceTable(book, {}).default_bounds, 5_000), DeviceRuleState()
    waited = 0
    for number in range(1, 2_001):
        if kind == "lossy" and number % 7 == 0:
            continue
        is_hot = number % 2
        one = Reading("d", "t", 20.0 + 20 * is_hot, "Cel", number * 60_000, number * 60_000, number)
        alerts = engine.apply(state, one if kind != "unnumbered" else one._replace(sequence=0), None) or []
        waited += bool(state.metrics["t"].buffered)
        state.outbox.clear()
        if number > 50:
            assert [alert["updated_at"] for alert in alerts][-1:] in ([number * 60_000], [])
            assert not state.metrics["t"].buffered
    assert waited <= 32


def test_one_reading_out_of_order_makes_the_next_ones_wait_and_a_repeat_does_not() -> None:
    engine, state = engine_of(), DeviceRuleState()
    for number in range(1, 60):
        engine.apply(state, reading(number * 60_000), None)
    assert not state.metrics["t"].buffered
    revision = state.revision
    assert engine.apply(state, reading(58 * 60_000), None) is None
    assert (state.revision, state.metrics["t"].in_order) == (revision, 32)
    assert engine.apply(state, reading(58 * 60_000 + 1), None) is None
    assert (state.revision, state.metrics["t"].in_order) == (revision + 1, 0)
    assert engine.apply(state, reading(58 * 60_000 + 1), None) is None
    assert state.revision == revision + 1
    engine.apply(state, reading(60 * 60_000), None)
    assert len(state.metrics["t"].buffered) == 1

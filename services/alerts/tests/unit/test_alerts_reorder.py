"""Readings are processed in the order of event time, and repetitions change nothing, in any order of arrival."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.alerts.engine import reorder
from isotherm.alerts.engine.device_state import (
    BufferedReading,
    DeviceRuleState,
    MetricState,
    decode,
    encode,
)
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings

WINDOW_MS = 1_000
RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 2, "hysteresis": 1, "for_ms": 300},
    {"kind": "below", "metric": "temperature", "threshold": -2},
    {"kind": "rate", "metric": "temperature", "threshold": 3, "window_ms": 1_000},
    {"kind": "flat", "metric": "temperature", "tolerance": 1, "for_ms": 500},
    {"kind": "silent", "intervals": 2, "min_ms": 1_000},
    {"kind": "unknown-device", "for_ms": 400},
]
BOOK = AlertsSettings.model_validate({"rules": RULES}).rule_book()
ENGINE = RuleEngine(BOOK, DeviceTable(BOOK, {}).default_bounds, WINDOW_MS)


@st.composite
def histories(draw: st.DrawFn) -> list[Reading]:
    """Readings of one device in order of event time, some of them numbered."""
    gaps = draw(st.lists(st.integers(1, 4_000), min_size=1, max_size=40))
    numbered = draw(st.booleans())
    values = draw(st.lists(st.integers(-4, 4), min_size=len(gaps), max_size=len(gaps)))
    found, at_ms = [], 0
    for index, (gap_ms, value) in enumerate(zip(gaps, values, strict=True)):
        at_ms += gap_ms
        found.append(Reading("d", "temperature", float(value), "Cel", at_ms, at_ms, index + 1 if numbered else 0))
    return found


def alerts_of(readings: list[Reading]) -> list[dict[str, object]]:
    """Every alert that follows from readings, and from the time after them."""
    state = DeviceRuleState()
    found: list[dict[str, object]] = []
    for reading in readings:
        found += ENGINE.apply(state, reading, None) or []
    found += ENGINE.advance_time(state, "d", None, readings[-1].event_time_ms + 1_000_000) or []
    return found


@given(histories(), st.randoms(use_true_random=False))
def test_disorder_within_the_window_changes_no_alert(readings: list[Reading], chance: object) -> None:
    shuffle = getattr(chance, "uniform")  # noqa: B009  # hypothesis gives an untyped source of chance
    # Unnumbered ones, so that nothing passes before its window; the first of all is the device's first.
    plain = [one._replace(sequence=0) for one in readings]
    late = sorted(plain, key=lambda one: one.event_time_ms + shuffle(0, WINDOW_MS - 1))
    assert alerts_of(late) == alerts_of(plain)


@given(histories(), st.data())
def test_what_was_taken_before_changes_nothing(readings: list[Reading], data: st.DataObject) -> None:
    order = data.draw(st.permutations(readings))
    state = DeviceRuleState()
    for reading in order:
        ENGINE.apply(state, reading, None)
    if data.draw(st.booleans()):
        ENGINE.advance_time(state, "d", None, data.draw(st.integers(0, 500_000)))
    before = copy.deepcopy(state)
    for reading in order:
        assert ENGINE.apply(state, reading, None) is None
    assert state == before


@given(histories(), st.data())
def test_a_crash_between_any_two_readings_changes_no_alert(readings: list[Reading], data: st.DataObject) -> None:
    stop = data.draw(st.integers(1, len(readings)))
    again = data.draw(st.integers(0, stop))
    state = DeviceRuleState()
    found = [alert for one in readings[:stop] for alert in ENGINE.apply(state, one, None) or []]
    state = decode(encode(state, None))
    state.outbox.clear()
    found += [alert for one in readings[again:] for alert in ENGINE.apply(state, one, None) or []]
    found += ENGINE.advance_time(state, "d", None, readings[-1].event_time_ms + 1_000_000) or []
    assert found == alerts_of(readings)


@given(histories())
@settings(max_examples=50)
def test_alerts_open_once_and_close_once(readings: list[Reading]) -> None:
    found = alerts_of(readings)
    states = [(one["alert_id"], one["state"]) for one in found]
    assert len(set(states)) == len(states)
    for alert_id, state in states:
        if state == "closed":
            assert states.index((alert_id, "opened")) < states.index((alert_id, "closed"))


@given(histories(), st.integers(0, 2**62 - 1) | st.none())
def test_a_memory_survives_the_changelog(readings: list[Reading], due_ms: int | None) -> None:
    state = DeviceRuleState()
    for reading in readings:
        ENGINE.apply(state, reading, None)
    assert decode(encode(state, due_ms)) == state


@given(st.permutations(range(1, 20)))
def test_numbered_readings_pass_in_order_and_none_waits_at_the_end(order: list[int]) -> None:
    metric, passed = MetricState(), []
    for number in order:
        # All within one window: only the numbers let them pass.
        assert reorder.offer(metric, BufferedReading(number, number, 0.0, "Cel"))
        while (one := reorder.release(metric, WINDOW_MS)) is not None:
            passed.append(one.sequence)
    assert passed == list(range(1, 20))
    assert metric.buffered == []


def test_no_more_than_a_few_wait() -> None:
    metric, passed = MetricState(), 0
    for number in range(2, 1_000):
        reorder.offer(metric, BufferedReading(number, number, 0.0, "Cel"))
        while reorder.release(metric, 1_000_000) is not None:
            passed += 1
        assert len(metric.buffered) <= reorder.MAX_BUFFERED
    assert passed > 900

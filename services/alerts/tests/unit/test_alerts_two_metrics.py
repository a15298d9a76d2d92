"""Devices with several metrics: each alert opens once and closes once; silence concerns the whole device."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.alerts.engine import reorder
from isotherm.alerts.engine.device_state import (
    AlertRecord,
    DeviceRuleState,
    decode,
    encode,
)
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.settings import AlertsSettings

REORDER_MS = 1_000
RULES = [
    {"kind": "above", "metric": "A", "threshold": 2, "hysteresis": 1},
    {"kind": "rate", "metric": "B", "threshold": 3, "window_ms": 2_000},
    {"kind": "silent", "intervals": 2, "min_ms": 1_000},
    {"kind": "unknown-device", "for_ms": 0},
]
BOOK = AlertsSettings.model_validate({"rules": RULES}).rule_book()
KNOWN = DeviceMetadata({}, BOOK.overridden([]))
SILENT = AlertsSettings.model_validate(
    {"rules": [{"kind": "silent", "interval_ms": 10_000, "intervals": 6, "min_ms": 1_000}]}
).rule_book()


def engine(reorder_ms: int) -> RuleEngine:
    return RuleEngine(SILENT, DeviceTable(SILENT, {}).default_bounds, reorder_ms)


def reading(metric: str, at_ms: int, sequence: int = 0, value: float = 1.0) -> Reading:
    return Reading("d", metric, value, "Cel", at_ms, at_ms, sequence)


def lines(alerts: list[AlertRecord] | None) -> list[tuple[str, str, int]]:
    return [(one["alert_id"], one["state"], one["updated_at"]) for one in alerts or []]


def test_an_old_reading_of_another_metric_ends_no_silence() -> None:
    silent, state = engine(0), DeviceRuleState()
    silent.apply(state, reading("A", 1_000_000, 1), None)
    assert lines(silent.advance_time(state, "d", None, 1_100_000)) == [("d/silent/1060000", "opened", 1_060_000)]
    assert silent.apply(state, reading("B", 500_000, 1), None) == []
    # Nor does one that was measured before the silence began, and given after it.
    assert silent.apply(state, reading("B", 1_050_000, 2), None) == []
    assert silent.advance_time(state, "d", None, 1_101_000) is None
    assert lines(silent.apply(state, reading("A", 1_200_000, 2), None)) == [("d/silent/1060000", "closed", 1_200_000)]


@pytest.mark.parametrize("ticks", [[], [1_045_000], [1_060_000]], ids=["none", "early", "late"])
def test_a_reading_that_waits_counts_as_heard(ticks: list[int]) -> None:
    silent, state = engine(5_000), DeviceRuleState()
    silent.apply(state, reading("A", 1_000_000, 1), None)
    silent.apply(state, reading("B", 1_040_000), None)
    found = [one for at_ms in ticks for one in silent.advance_time(state, "d", None, at_ms) or []]
    assert found + (silent.apply(state, reading("A", 1_090_000, 2), None) or []) == []


def test_the_silence_before_a_reading_that_waits_is_told() -> None:
    silent, state = engine(5_000), DeviceRuleState()
    silent.apply(state, reading("A", 1_000_000, 1), None)
    silent.apply(state, reading("B", 1_100_000), None)
    assert lines(silent.apply(state, reading("A", 1_110_000, 2), None)) == [
        ("d/silent/1060000", "opened", 1_060_000),
        ("d/silent/1060000", "closed", 1_100_000),
    ]


def test_what_is_remembered_of_a_device_has_an_end() -> None:
    silent, state = engine(86_400_000), DeviceRuleState()
    unit, at_ms = "\N{BUG}" * 256, 1_800_000_000_000
    for number in range(1, 3_000):
        one = reading(f"{number % 100}".ljust(256, "\N{BUG}"), at_ms + number)._replace(unit=unit)
        if silent.admits(state, one):
            silent.apply(state, one, None)
    assert len(state.metrics) == 64
    assert sum(len(one.buffered) for one in state.metrics.values()) == reorder.MAX_BUFFERED_OF_DEVICE
    assert state.last_seen_ms > at_ms, "the first of those that wait have passed"
    assert len(encode(state, None)) < 500_000
    assert decode(encode(state, None)) == state


@st.composite
def histories(draw: st.DrawFn) -> list[Reading]:
    """Readings of two metrics of a device, in any order."""
    found = []
    for metric in ("A", "B"):
        numbered, at_ms = draw(st.booleans()), 0
        for index, (gap_ms, value) in enumerate(draw(st.lists(st.tuples(st.integers(0, 4_000), st.integers(-4, 4))))):
            at_ms += gap_ms
            found.append(reading(metric, at_ms, index + 1 if numbered else 0, float(value)))
    return draw(st.permutations(found))


@given(histories(), st.data())
@example([reading("A", 1, 1, 3.0), reading("A", 1, 2, 0.0), reading("A", 1, 3, 3.0), reading("A", 2, 4, 0.0)], None)
def test_alerts_open_once_and_close_once_later(readings: list[Reading], data: st.DataObject | None) -> None:
    both, state, alerts = RuleEngine(BOOK, BOOK.overridden([]), REORDER_MS), DeviceRuleState(), list[AlertRecord]()
    for one in readings:
        device = data.draw(st.sampled_from([None, KNOWN])) if data else KNOWN
        alerts += both.apply(state, one, device) or []
        if data and data.draw(st.booleans()):
            alerts += (
                both.advance_time(state, "d", device, one.event_time_ms + data.draw(st.integers(-5_000, 20_000))) or []
            )
    opened = dict[str, AlertRecord]()
    for alert in alerts:
        if alert["state"] == "opened":
            assert alert["alert_id"] not in opened
            opened[alert["alert_id"]] = alert
        else:
            assert alert["closed_at"] > opened[alert["alert_id"]]["opened_at"]
            assert alert["closed_at"] >= opened[alert["alert_id"]]["updated_at"]
    closed = [alert["alert_id"] for alert in alerts if alert["state"] == "closed"]
    assert len(set(closed)) == len(closed)
    assert sorted(state.open_alerts("d")) == sorted(opened.keys() - set(closed))


@given(histories(), st.integers(0, 100_000), st.integers(0, 100_000))
def test_time_that_passes_in_two_steps_has_the_effects_of_one(readings: list[Reading], now_ms: int, more: int) -> None:
    both, alerts, states = RuleEngine(BOOK, BOOK.overridden([]), REORDER_MS), list[list[AlertRecord]](), []
    for steps in ([now_ms + more], [now_ms, now_ms + more]):
        state = DeviceRuleState()
        for one in readings:
            both.apply(state, one, None)
        alerts.append([alert for at_ms in steps for alert in both.advance_time(state, "d", None, at_ms) or []])
        state.revision = 0
        states.append(state)
    assert alerts[0] == alerts[1]
    assert states[0] == states[1]

"""The trend of a metric: correct for a steady change, bounded otherwise, stored and restored."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine import alert_records, trend
from isotherm.alerts.engine import device_state as states
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.rule_book import RuleBook

START_MS = 1_767_225_600_000
DISTANCES = st.lists(st.integers(1, trend.HOUR_MS), min_size=1, max_size=50)
VALUES = st.floats(allow_nan=False, allow_infinity=False)


@given(DISTANCES, st.floats(-1e6, 1e6))
def test_a_steady_change_becomes_the_trend_at_any_distance_of_the_readings(
    distances: list[int], per_hour: float
) -> None:
    at_ms, known = START_MS, None
    for distance_ms in distances:
        before = at_ms, per_hour * (at_ms - START_MS) / trend.HOUR_MS
        at_ms += distance_ms
        known = trend.followed(known, before, (at_ms, per_hour * (at_ms - START_MS) / trend.HOUR_MS))
    share = -math.expm1(-(at_ms - START_MS) / trend.TIME_CONSTANT_MS)
    assert known == pytest.approx(per_hour * share, rel=1e-3, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, trend.HOUR_MS), VALUES), min_size=1, max_size=50))
def test_the_trend_lies_between_the_changes_and_none_or_is_not_known(steps: list[tuple[int, float]]) -> None:
    known, before, changes = None, (-1, 0.0), [0.0]
    at_ms = START_MS
    for distance_ms, value in steps:
        at_ms += distance_ms
        now = (at_ms, value)
        known = trend.followed(known, before, now)
        if before[0] >= 0 and at_ms > before[0]:
            changes.append((value - before[1]) * trend.HOUR_MS / (at_ms - before[0]))
        before = now
        assert known is None or math.isfinite(known)
    if known is not None:
        slack = 1e-9 * max(map(abs, changes))
        assert min(changes) - slack <= known <= max(changes) + slack


def test_two_readings_within_a_millisecond_make_no_cliff() -> None:
    known = trend.followed(None, (START_MS, 20.0), (START_MS + 1, 20.1))
    assert known == pytest.approx(0.1 * trend.HOUR_MS / trend.TIME_CONSTANT_MS, rel=1e-3)


def test_a_change_of_ten_minutes_makes_two_thirds_of_the_trend() -> None:
    known: float | None = 6.0
    for second in range(0, 600, 10):
        known = trend.followed(known, (START_MS + second * 1_000, 20.0), (START_MS + second * 1_000 + 10_000, 20.0))
    assert known == pytest.approx(6.0 * math.exp(-1))


def test_it_is_remembered_and_told_in_the_order_of_event_time() -> None:
    engine, state = RuleEngine(RuleBook([]), {}, reorder_ms=60_000), DeviceRuleState()
    for minute, value in ((0, 20.0), (2, 20.2), (1, 20.1), (3, 20.3)):
        reading = Reading("dev-1", "temperature", value, "Cel", START_MS + minute * 60_000, START_MS, minute + 1)
        assert engine.apply(state, reading, None) is not None
    engine.advance_time(state, "dev-1", None, START_MS + trend.HOUR_MS)
    again = states.decode(states.encode(state, None))
    latest = alert_records.state_record("dev-1", again, START_MS)["latest"]["temperature"]
    assert latest["value"] == 20.3
    assert latest["trend_per_hour"] == pytest.approx(6.0 * -math.expm1(-180_000 / trend.TIME_CONSTANT_MS))

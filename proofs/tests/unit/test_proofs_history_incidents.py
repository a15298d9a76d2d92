"""The checker's incidents and the alerts service's engine agree, whatever the order, the repeats and the clock."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.kinds import RateRule, ThresholdRule
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.proofs.history.checking.collection import AlertInput
from isotherm.proofs.history.checking.incidents import incidents, turns
from isotherm.proofs.history.format import AlertRule

REORDER_MS = 50
START_MS = 1_000_000
RULES: dict[str, dict[str, Any]] = {
    "above": {"threshold": 30.0, "hysteresis": 2.0, "for_ms": 30},
    "below": {"threshold": 28.0, "hysteresis": 2.0, "for_ms": 30},
    "rate": {"threshold": 4.0, "hysteresis": 2.0, "window_ms": 1_000},
}

Step = tuple[int, int, int, int, int]
"""Time to the append of the next reading, delay of its event time, value, gap in the numbering, lag of the clock."""

steps = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.sampled_from([0, 0, 0, 5, 15, 40, 60, 120]),
        st.sampled_from([25, 27, 28, 29, 31, 33]),
        st.sampled_from([0, 1, 1, 1, 2]),
        st.sampled_from([0, 1, 30, 1_000]),
    ),
    max_size=40,
)


def readings(script: list[Step], *, numbered: bool) -> list[AlertInput]:
    found, now_ms, number = [], START_MS, 0
    for offset, (pause, delay, value, gap, _) in enumerate(script):
        now_ms += pause
        number += gap
        sequence = number if numbered else 0
        found.append(AlertInput(0, offset, now_ms - delay, sequence, float(value), "t", now_ms, offset + 1))
    return found


def by_engine(script: list[Step], inputs: list[AlertInput], kind: str) -> dict[tuple[int, str], int]:
    """Time of each state of an alert, by `opened_at` and state."""
    model = RateRule if kind == "rate" else ThresholdRule
    book = RuleBook([model.model_validate({"kind": kind, "metric": "t", **RULES[kind]})])
    engine = RuleEngine(book, book.overridden([]), REORDER_MS)
    state, found, clock_ms = DeviceRuleState(), [], 0
    for (*_, lag), one in zip(script, inputs, strict=True):
        clock_ms = max(clock_ms, one.appended - lag)
        found += engine.advance_time(state, "d", None, clock_ms) or []
        found += (
            engine.apply(state, Reading("d", "t", one.value, "", one.event_time, one.event_time, one.sequence), None)
            or []
        )
    return {(alert["opened_at"], alert["state"]): alert["updated_at"] for alert in found}


@settings(max_examples=150, deadline=None)
@given(script=steps, numbered=st.booleans(), kind=st.sampled_from(sorted(RULES)))
@example(script=[(10, 0, 31, 1, 1_000)] * 5, numbered=True, kind="above")
@example(script=[(1, 0, 25, 0, 0), (31, 0, 25, 1, 0), (39, 40, 25, 1, 0)], numbered=True, kind="below")
def test_incidents_are_those_of_the_engine(script: list[Step], numbered: bool, kind: str) -> None:
    inputs = readings(script, numbered=numbered)
    order = turns(inputs, REORDER_MS)
    expected = incidents(order, AlertRule("t", kind, "t", **RULES[kind])) if order is not None else None  # type: ignore[arg-type]  # one of the kinds
    if expected is None:
        return  # the clock decides, or the tolerance of a rate's window
    got = by_engine(script, inputs, kind)
    certain, possible = {}, {}
    for incident in expected:
        for state, turn in (("opened", incident.decided), ("closed", incident.closed)):
            if turn is not None:
                possible[incident.opened_at, state] = turn.event_time
                if turn.certain:
                    certain[incident.opened_at, state] = turn.event_time
    assert certain.items() <= got.items() <= possible.items()


def test_a_change_that_took_a_little_longer_than_the_window_is_not_compared() -> None:
    rule = AlertRule("t", "rate", "t", 4.0, window_ms=1_000)
    for pause, is_compared in ((1_000, True), (1_050, False), (1_100, True)):
        order = turns(readings([(20, 0, 20, 1, 1_000), (pause, 0, 25, 1, 1_000)], numbered=True), REORDER_MS)
        assert order is not None
        assert (incidents(order, rule) is not None) is is_compared


def test_readings_in_order_are_always_compared() -> None:
    script: list[Step] = [(20, 0, 31, 1, 1_000)] * 10
    for numbered in (True, False):
        assert turns(readings(script, numbered=numbered), REORDER_MS) is not None


def test_a_reading_that_the_clock_makes_stale_is_not_compared() -> None:
    # The second reading was measured before the first, which the clock may have let pass.
    script: list[Step] = [(20, 0, 31, 1, 0), (60, 70, 25, 1, 0)]
    assert turns(readings(script, numbered=False), REORDER_MS) is None

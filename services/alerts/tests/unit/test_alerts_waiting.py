"""How long a reading waits before rules see it: not at all where order was kept, within a bound where it was lost.

No test measures time: what decides is in the readings, and in the time that the caller passes on (ADR 150).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.alerts.engine import reorder
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings

REORDER_MS = 5_000
BOOK = AlertsSettings.model_validate({"rules": [{"kind": "above", "metric": "t", "threshold": 30}]}).rule_book()
ENGINE = RuleEngine(BOOK, DeviceTable(BOOK, {}).default_bounds, REORDER_MS)


def reading(at_ms: int, sequence: int, value: float = 20.0) -> Reading:
    return Reading("d", "t", value, "Cel", at_ms, at_ms, sequence)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Reading]:
    """Draw readings in their order of arrival: some numbered, some lost, some late, some twice."""
    kind = draw(st.sampled_from(["numbered", "unnumbered", "lossy"]))
    gaps = draw(st.lists(st.sampled_from([1, 700, 4_000, 60_000]), min_size=40, max_size=150))
    found, at_ms = [], 1_000_000
    for number, gap_ms in enumerate(gaps, 1):
        at_ms += gap_ms
        found.append(reading(at_ms, 0 if kind == "unnumbered" else number, draw(st.sampled_from([20.0, 35.0]))))
    if kind == "lossy":
        found = [one for one in found if one.sequence % 5]
    for at in draw(st.lists(st.integers(0, len(found) - 2), max_size=3)):
        found[at], found[at + 1] = found[at + 1], found[at]
    for at in draw(st.lists(st.integers(0, len(found) - 1), max_size=3)):
        found.insert(at, found[at])
    return found


@settings(deadline=None)
@given(arrivals())
def test_a_reading_waits_only_where_order_was_lost_and_then_within_the_bound(readings: list[Reading]) -> None:
    state, in_order, newest_ms = DeviceRuleState(), 0, -1
    seen: set[int] = set()
    for one in readings:
        ENGINE.apply(state, one, None)
        state.outbox.clear()
        if one.event_time_ms > newest_ms:
            in_order += 1
        elif one.event_time_ms not in seen:
            in_order = 0
        newest_ms = max(newest_ms, one.event_time_ms)
        seen.add(one.event_time_ms)
        waiting = [waits.event_time_ms for waits in state.metrics["t"].buffered]
        if in_order >= reorder.TRUSTED:
            assert waiting == []
        # A later reading of the device releases it, or time does.
        assert all(at_ms > newest_ms - REORDER_MS for at_ms in waiting)
        due_ms = ENGINE.due_ms(state, None)
        assert due_ms == (waiting[0] + REORDER_MS if waiting else None)
    ENGINE.advance_time(state, "d", None, newest_ms + REORDER_MS)
    assert state.metrics["t"].buffered == []
    assert state.metrics["t"].event_time_ms == newest_ms


@pytest.mark.parametrize(("kind", "waits"), [("numbered", 0), ("unnumbered", 31), ("lossy", 14)])
def test_a_new_device_waits_until_it_has_shown_its_order(kind: str, waits: int) -> None:
    """Numbered: never. Unnumbered: its first readings. Lossy: among its first readings, the two behind a gap."""
    state, waited, told = DeviceRuleState(), 0, list[dict[str, Any]]()
    for number in range(1, 200):
        if kind == "lossy" and number % 5 == 0:
            continue
        hot = 35.0 if number % 2 else 20.0
        told += ENGINE.apply(state, reading(number * 4_000, 0 if kind == "unnumbered" else number, hot), None) or []
        state.outbox.clear()
        is_waiting = bool(state.metrics["t"].buffered)
        waited += is_waiting
        if not is_waiting:
            assert told[-1]["state"] == ("opened" if number % 2 else "closed")
    assert waited == waits

"""Each rule on single devices, and thresholds for single devices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine.conditions import evaluate
from isotherm.alerts.engine.device_state import (
    AlertRecord,
    DeviceRuleState,
    MetricState,
    RuleState,
    decode,
    encode,
)
from isotherm.alerts.engine.reading import Reading, filter_reason
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.rules.kinds import RateRule
from isotherm.alerts.settings import AlertsSettings

MINUTE = 60_000
ABOVE = {"kind": "above", "metric": "temperature", "threshold": 30, "hysteresis": 1}


class Device:
    """One device that numbers its readings, one a minute."""

    def __init__(self, *rules: dict[str, Any], known: DeviceMetadata | None = None) -> None:
        book = AlertsSettings.model_validate({"rules": list(rules)}).rule_book()
        self.engine = RuleEngine(book, DeviceTable(book, {}).default_bounds, reorder_ms=5_000)
        self.state = DeviceRuleState()
        self.known = known
        self.minute = self.count = 0

    def read(self, *values: float) -> list[tuple[str, int, int]]:
        """The alerts that follow from values: state, minute of opening, minute of this state."""
        found: list[AlertRecord] = []
        for value in values:
            self.minute += 1
            self.count += 1
            at_ms = self.minute * MINUTE
            taken = Reading("d", "temperature", value, "Cel", at_ms, at_ms + 50, self.count)
            found += self.engine.apply(self.state, taken, self.known) or []
        return [(one["state"], one["opened_at"] // MINUTE, one["updated_at"] // MINUTE) for one in found]


def test_above_opens_at_once_and_closes_below_the_hysteresis() -> None:
    device = Device(ABOVE)
    assert device.read(29, 30, 30.5) == [("opened", 3, 3)]
    assert device.read(29.5, 31) == []
    assert device.read(29) == [("closed", 3, 6)]


def test_above_for_a_while_begins_where_it_began() -> None:
    device = Device(ABOVE | {"for_ms": 2 * MINUTE})
    assert device.read(31, 31, 29, 31, 31) == []
    assert device.read(31) == [("opened", 4, 6)]


def test_below_is_the_mirror_of_above() -> None:
    device = Device(ABOVE | {"kind": "below", "threshold": 10})
    assert device.read(10, 9.9) == [("opened", 2, 2)]
    assert device.read(10.9, 11) == [("closed", 2, 4)]


def test_a_rate_is_measured_over_its_window() -> None:
    rate = {"kind": "rate", "metric": "temperature", "threshold": 5, "hysteresis": 3, "window_ms": 3 * MINUTE}
    device = Device(rate)
    assert device.read(20, 22, 24, 25, 27, 29) == []
    assert device.read(32) == [("opened", 7, 7)]
    assert device.read(32, 32) == []
    assert device.read(32) == [("closed", 7, 10)]


RATE = {"kind": "rate", "metric": "temperature"}


def test_each_rate_looks_at_its_own_window() -> None:
    short = RATE | {"name": "minute", "threshold": 10, "window_ms": MINUTE}
    long = RATE | {"name": "hour", "threshold": 100, "window_ms": 60 * MINUTE}
    for rules in ([short], [short, long]):
        device = Device(*rules)
        assert device.read(*[20.0] * 59, 60) == [("opened", 60, 60)]
        assert device.read(60, 60) == [("closed", 60, 61)]


def test_a_swing_between_two_readings_of_the_window_is_not_missed() -> None:
    device = Device(RATE | {"threshold": 15, "window_ms": 60 * MINUTE})
    assert device.read(20, 20, 29, 11) == [("opened", 4, 4)]


@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(-9, 9)), min_size=1, max_size=80), st.integers(1_000, 20_000)
)
def test_a_rate_misses_no_change_of_its_window_and_remembers_little(
    steps: list[tuple[int, int]], window_ms: int
) -> None:
    bounds = {"threshold": 5.0, "hysteresis": 0.0, "window_ms": float(window_ms)}
    rule = RateRule(kind="rate", metric="t", threshold=5)
    rule_state, seen, at_ms = RuleState(), list[tuple[int, int]](), 0
    for gap_ms, value in steps:
        at_ms += gap_ms
        seen.append((at_ms, value))
        evaluate(rule, bounds, rule_state, MetricState(at_ms, value=value))

        def change_within(wide_ms: float, now_ms: int = at_ms, now: int = value) -> int:
            return max(abs(now - earlier) for earlier_ms, earlier in seen if earlier_ms >= now_ms - wide_ms)

        measured = max(rule_state.highest[0][1] - value, value - rule_state.lowest[0][1])
        # Exact to a sixteenth of the window.
        assert change_within(window_ms) <= measured <= change_within(window_ms * 17 / 16)
        assert max(len(rule_state.highest), len(rule_state.lowest)) <= 18


def test_a_rate_takes_over_what_an_earlier_version_remembered() -> None:
    device = Device(RATE | {"threshold": 15, "window_ms": 60 * MINUTE})
    written = (
        b'{"m":{"temperature":[60000,1,29.0,"Cel",60000,0,0,[],[[30000,20.0],[60000,29.0]]]},'
        b'"w":{"temperature.above":[1,2,null,"critical"]},"s":60000,"o":[]}'
    )
    state = decode(bytes(16) + written)
    assert state.rules["temperature.above"] == RuleState(1, 2, None, "critical")
    del state.rules["temperature.above"]
    device.state = decode(encode(state, None))
    device.minute = device.count = 1
    assert device.read(4) == [("opened", 2, 2)]
    assert device.state.metrics["temperature"].samples == []
    assert decode(encode(device.state, None)) == device.state


def test_a_flat_line_opens_where_it_became_flat() -> None:
    device = Device({"kind": "flat", "metric": "temperature", "tolerance": 0.1, "for_ms": 3 * MINUTE})
    assert device.read(20, 21, 21.05, 20.95) == []
    assert device.read(21) == [("opened", 2, 5)]
    assert device.read(21.2) == [("closed", 2, 6)]


def test_an_unknown_device_is_told_of_until_it_is_known() -> None:
    device = Device({"kind": "unknown-device", "for_ms": MINUTE})
    assert device.read(20, 20) == [("opened", 1, 2)]
    device.known = DeviceMetadata({}, device.engine.default_bounds)
    assert device.read(20) == [("closed", 1, 3)]
    assert device.read(20) == []


def test_silence_is_told_by_time_or_by_the_reading_that_ends_it() -> None:
    by_time = Device({"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000})
    by_reading = Device({"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000})
    for device in (by_time, by_reading):
        assert device.read(*[20.0] * 8) == []
    due_ms = by_time.engine.due_ms(by_time.state, None)
    assert due_ms == 11 * MINUTE + 50, "the readings come 50 ms after they were measured"
    assert by_time.engine.advance_time(by_time.state, "d", None, due_ms - 1) is None
    (opened,) = by_time.engine.advance_time(by_time.state, "d", None, due_ms) or []
    assert opened["opened_at"] == 11 * MINUTE
    assert by_time.engine.due_ms(by_time.state, None) is None
    for device in (by_time, by_reading):
        device.minute = 19
    assert by_time.read(20) == [("closed", 11, 20)]
    assert by_reading.read(20) == [("opened", 11, 11), ("closed", 11, 20)]


def test_nobody_is_silent_of_whom_the_interval_is_not_known() -> None:
    device = Device({"kind": "silent"})
    device.read(20, 20)
    assert device.engine.due_ms(device.state, None) is None


def test_an_alert_closes_when_its_rule_is_gone() -> None:
    device = Device(ABOVE)
    device.read(31)
    without = Device({"kind": "below", "metric": "temperature", "threshold": -50})
    without.state, without.minute, without.count = device.state, device.minute, device.count
    # At the time of the last reading, but after the begin, so that no other alert of the rule has the same id.
    assert without.read(31) == [("closed", 1, 1)]
    assert [(one["closed_at"], one["message"]) for one in device.state.outbox[1:]] == [(60_001, "the rule was removed")]
    assert device.state.open_alerts("d") == []


def test_the_id_says_what_happened_where_and_when() -> None:
    device = Device(ABOVE)
    device.read(31)
    assert device.state.open_alerts("d") == ["d/above/temperature/60000"]
    assert device.state.outbox[0]["message"] == "temperature 31 Cel is above 30.0 Cel"


@pytest.mark.parametrize(
    ("value", "ahead_ms", "reason"),
    [(20.0, 60_000, None), (20.0, 60_001, "future"), (float("nan"), 0, "not-finite"), (float("inf"), 0, "not-finite")],
)
def test_what_no_rule_may_see(value: float, ahead_ms: int, reason: str | None) -> None:
    assert filter_reason(Reading("d", "temperature", value, "Cel", 1_000_000 + ahead_ms, 1_000_000), 60_000) == reason


def known(**record: Any) -> DeviceMetadata:
    """A device with overrides for its model and its home."""
    book = AlertsSettings.model_validate({"rules": [ABOVE]}).rule_book()
    overrides = {
        "model": {"T9": {"temperature.above": 50.0, "temperature.above.hysteresis": 5.0}},
        "home": {"sauna": {"temperature.above.threshold": 90.0}},
    }
    devices = DeviceTable(book, overrides)
    empty: dict[str, Any] = {"home": None, "room": None, "region": None, "model": None, "thresholds": {}}
    devices.put("d", empty | record)
    found = devices.get("d")
    assert found is not None
    return found


def test_device_beats_home_beats_model_beats_default() -> None:
    def bounds(**record: Any) -> tuple[float, float]:
        found = known(**record).bounds["temperature.above"]
        return found["threshold"], found["hysteresis"]

    assert bounds() == (30, 1)
    assert bounds(model="T9") == (50, 5)
    assert bounds(model="T9", home="sauna") == (90, 5)
    assert bounds(model="T9", home="sauna", thresholds={"temperature.above": 12.0}) == (12, 5)


def test_thresholds_that_no_rule_has_are_told() -> None:
    book = AlertsSettings.model_validate({"rules": [ABOVE]}).rule_book()
    devices = DeviceTable(book, {})
    record = {"home": None, "region": None, "model": None, "thresholds": {"temperature.abvoe": 1.0}}
    assert [(one.key, one.reason) for one in devices.put("d", record)] == [("temperature.abvoe", "unknown")]
    assert devices.put("d", None) == []
    assert devices.get("d") is None

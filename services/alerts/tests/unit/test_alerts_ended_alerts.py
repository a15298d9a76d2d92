"""What a change of the rules leaves in the state of a device: ended alerts, what was pending, and histories."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from isotherm.alerts.engine import rule_changes
from isotherm.alerts.engine.combinations import find, time_of
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState, MetricState, RuleState, decode, encode
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.comparisons import CombinedRule
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.rule_book import RuleBook

MINUTE = 60_000
RULE: TypeAdapter[Rule] = TypeAdapter(Rule)
HOT: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 10, "name": "hot"}
COLD: dict[str, Any] = {"kind": "below", "metric": "t", "threshold": 90, "name": "low"}
SILENT: dict[str, Any] = {"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000}
WARM: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 20}


def engine_of(*rules: dict[str, Any]) -> RuleEngine:
    book = RuleBook([RULE.validate_python(one) for one in rules])
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, 0)


class Device:
    """The state of a device that passes the changelog, and what becomes of its readings."""

    def __init__(self) -> None:
        self.state, self.sequence = DeviceRuleState(), 0

    def read(
        self, engine: RuleEngine, at_ms: int, value: float = 50.0, metric: str = "t"
    ) -> list[tuple[str, str, int]]:
        self.sequence += 1
        found = engine.apply(self.state, Reading("d", metric, value, "", at_ms, at_ms, self.sequence), None)
        self.state = decode(encode(self.state, None))
        return lines(found)

    def end(self, engine: RuleEngine) -> list[tuple[str, str, int]]:
        assert engine.is_changed(self.state)
        return lines(engine.end_changed(self.state, "d"))


def lines(alerts: list[AlertRecord] | None) -> list[tuple[str, str, int]]:
    return [(one["alert_id"], one["state"], one["updated_at"]) for one in alerts or []]


def test_alerts_that_a_change_ends_are_closed_in_order_and_stored_with_their_state() -> None:
    device = Device()
    assert len(device.read(engine_of(HOT, COLD), 1_000)) == 2
    device.state.outbox, device.state.revision = [], 5
    ended = device.end(engine_of())
    assert ended == [("d/hot/t/1000", "closed", 1_001), ("d/low/t/1000", "closed", 1_001)]
    assert (lines(device.state.outbox), device.state.revision) == (ended, 6)
    assert not engine_of().is_changed(device.state)


def test_an_alert_ends_at_the_last_sign_of_life_of_its_device() -> None:
    device, engine = Device(), engine_of(HOT)
    device.read(engine, 1_000)
    device.read(engine, 7_000)
    assert device.end(engine_of(HOT | {"threshold": 70})) == [("d/hot/t/1000", "closed", 7_000)]


def test_ended_alerts_of_rules_that_are_gone_are_forgotten_with_the_next_reading() -> None:
    device = Device()
    device.read(engine_of(HOT, COLD), 1_000)
    device.end(engine_of(COLD))
    assert device.read(engine_of(COLD), 1_000) == [], "an alert that opened again now would have the same id"
    assert set(device.state.rules) == {"t.hot", "t.low"}
    assert device.read(engine_of(COLD), 1_001) == []
    assert set(device.state.rules) == {"t.low"}


def test_a_changed_rule_opens_no_alert_at_the_time_of_the_one_that_ended_but_others_do() -> None:
    device, changed = Device(), engine_of(HOT | {"threshold": 20}, COLD | {"threshold": 40})
    assert len(device.read(engine_of(HOT), 1_000)) == 1
    device.end(changed)
    assert device.read(changed, 1_000, 30.0) == [("d/low/t/1000", "opened", 1_000)]
    assert device.read(changed, 1_001, 30.0) == [("d/hot/t/1001", "opened", 1_001)]


def test_so_does_a_changed_combination() -> None:
    one, other = ({"kind": "any", "name": name, "conditions": [WARM]} for name in ("a-one", "b-other"))
    device, changed = Device(), engine_of(one | {"for_ms": 1}, other)
    assert len(device.read(engine_of(one), 1_000)) == 1
    device.end(changed)
    assert device.read(changed, 1_000) == [("d/b-other/1000", "opened", 1_000)]
    assert device.read(changed, 1_001) == []
    assert device.read(changed, 1_002) == [("d/a-one/1001", "opened", 1_002)]


def test_what_is_pending_begins_anew_under_a_changed_rule_and_ends_with_a_removed_one() -> None:
    pending = HOT | {"for_ms": 2 * MINUTE}
    device, changed = Device(), engine_of(pending | {"threshold": 20})
    device.read(engine_of(pending), MINUTE)
    assert device.end(changed) == []
    assert device.state.rules["t.hot"] == RuleState()
    assert device.read(changed, 2 * MINUTE) == []
    assert device.read(changed, 4 * MINUTE - 1) == []
    assert device.read(changed, 4 * MINUTE) == [(f"d/hot/t/{2 * MINUTE}", "opened", 4 * MINUTE)]
    device = Device()
    device.read(engine_of(pending), MINUTE)
    assert device.end(engine_of()) == []
    assert device.state.rules == {}


def test_a_history_goes_on_under_a_changed_rule_of_its_kind_and_ends_under_another_kind() -> None:
    flat = {"kind": "flat", "metric": "t", "for_ms": 5_000, "tolerance": 1, "name": "hot"}
    rate = {"kind": "rate", "metric": "t", "threshold": 20, "window_ms": 9_000, "name": "hot"}
    device = Device()
    device.read(engine_of(flat), 1_000)
    assert not engine_of(flat | {"for_ms": 4_000}).is_changed(device.state)
    assert device.read(engine_of(flat | {"for_ms": 4_000}), 5_000) == [("d/hot/t/1000", "opened", 5_000)]
    device = Device()
    device.read(engine_of(rate), 1_000, 10.0)
    assert not engine_of(rate | {"threshold": 30}).is_changed(device.state)
    assert device.read(engine_of(rate | {"threshold": 30}), 2_000, 45.0) == [("d/hot/t/2000", "opened", 2_000)]
    slow = engine_of(HOT | {"for_ms": 3_000})
    for former in (flat, rate):
        device = Device()
        device.read(engine_of(former), 1_000)
        assert device.read(slow, 2_000) == []
        assert device.read(slow, 4_999) == []
        assert device.state.rules["t.hot"].highest == device.state.rules["t.hot"].lowest == []
        assert device.read(slow, 5_000) == [("d/hot/t/2000", "opened", 5_000)]
        assert device.read(slow, 6_000, 1.0) == [("d/hot/t/2000", "closed", 6_000)]
        assert device.state.rules == {}


def test_an_alert_that_an_earlier_release_opened_goes_on() -> None:
    device = Device()
    device.read(engine_of(HOT), 1_000)
    device.state.rules["t.hot"].version = ""
    assert not engine_of(HOT | {"threshold": 70}).is_changed(device.state)
    device.state.rules["t.hot"].version = "another"
    assert engine_of(HOT).is_changed(device.state)


def test_an_unknown_device_goes_on_under_a_changed_rule() -> None:
    device, unknown = Device(), {"kind": "unknown-device", "for_ms": 0}
    assert len(device.read(engine_of(unknown), 1_000)) == 1
    assert not engine_of(unknown | {"for_ms": 9}).is_changed(device.state)
    assert device.end(engine_of()) == [("d/unknown-device/1000", "closed", 1_001)]
    assert device.read(engine_of(unknown), 1_000) == [], "at the time of the one that ended"
    assert device.read(engine_of(unknown), 1_001) == [("d/unknown-device/1001", "opened", 1_001)]


def silent_metric() -> Device:
    """A device whose metric `h` is silent since 22,000, while `t` goes on to 29,000."""
    device, engine, told = Device(), engine_of(SILENT), []
    for number in range(1, 30):
        for metric in "th" if number < 20 else "t":
            told += device.read(engine, number * 1_000, metric=metric)
    assert told == [("d/silent/h/22000", "opened", 22_000)]
    return device


def test_the_silence_of_a_metric_goes_on_under_a_changed_rule_and_ends_when_it_is_removed() -> None:
    device = silent_metric()
    assert not engine_of(SILENT | {"intervals": 4}).is_changed(device.state)
    assert device.end(engine_of(SILENT | {"per_metric": False})) == [("d/silent/h/22000", "closed", 29_000)]
    device = silent_metric()
    assert device.end(engine_of()) == [("d/silent/h/22000", "closed", 29_000)]
    # The rule comes back. Only a reading of the metric begins its silence anew, whatever the other one gives.
    for at_ms in range(30_000, 40_000, 1_000):
        assert device.read(engine_of() if at_ms < 35_000 else engine_of(SILENT), at_ms) == []
    device.read(engine_of(SILENT), 40_000, metric="h")
    assert "h.silent" not in device.state.rules
    told = [one for at_ms in range(41_000, 99_000, 1_000) for one in device.read(engine_of(SILENT), at_ms)]
    assert [one[1] for one in told] == ["opened"]


def test_an_ended_alert_is_held_until_a_later_reading() -> None:
    ended = RuleState(since_ms=5, version=rule_changes.ENDED)
    assert [rule_changes.is_held(ended, at_ms) for at_ms in (4, 5, 6)] == [True, True, False]
    assert not rule_changes.is_held(RuleState(since_ms=5, version="v"), 5)
    assert not rule_changes.is_held(RuleState(version=rule_changes.ENDED), 5)


@pytest.mark.parametrize(
    ("event_ms", "at_ms", "counts"), [(0, 0, True), (-1, 0, False), (5, 1_005, True), (5, 1_006, False)]
)
def test_a_combination_counts_values_that_were_applied_and_are_not_too_old(
    event_ms: int, at_ms: int, counts: bool
) -> None:
    combined = RULE.validate_python({"kind": "all", "name": "one", "conditions": [WARM], "max_age_ms": 1_000})
    assert isinstance(combined, CombinedRule)
    metrics = {"t": MetricState(event_ms, value=50.0)}
    assert find(combined, metrics, at_ms).breaking is counts
    assert time_of(combined, metrics) == event_ms
    assert time_of(combined, {"other": MetricState(7)}) == -1

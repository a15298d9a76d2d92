"""What a device's life does to its state: late and early clocks, disorder, silences of metrics, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.alerts.engine import quiet, reorder
from isotherm.alerts.engine.device_state import (
    AlertRecord,
    BufferedReading,
    DeviceRuleState,
    MetricState,
    RuleState,
)
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceMetadata, DeviceTable
from isotherm.alerts.settings import AlertsSettings

SILENT: dict[str, Any] = {"kind": "silent", "interval_ms": 1_000, "intervals": 3, "min_ms": 1_000}
HOT: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 30}


def engine_of(*rules: dict[str, Any], reorder_ms: int = 0, forget_ms: int = 0) -> RuleEngine:
    book = AlertsSettings.model_validate({"rules": list(rules)}).rule_book()
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, reorder_ms, forget_ms=forget_ms)


def reading(at_ms: int, sequence: int = 0, value: float = 20.0, *, metric: str = "t", lag_ms: int = 0) -> Reading:
    return Reading("d", metric, value, "Cel", at_ms, at_ms + lag_ms, sequence)


def lines(alerts: list[AlertRecord] | None) -> list[tuple[str, str, int]]:
    return [(one["alert_id"], one["state"], one["updated_at"]) for one in alerts or []]


@pytest.mark.parametrize(("lag_ms", "due_ms"), [(0, 4_000), (700, 4_700), (-500, 4_000)])
def test_a_device_is_silent_by_its_own_clock_and_never_before_its_readings_could_come(lag_ms: int, due_ms: int) -> None:
    engine, state = engine_of(SILENT), DeviceRuleState()
    engine.apply(state, reading(1_000, 1, lag_ms=lag_ms), None)
    assert engine.due_ms(state, None) == due_ms
    assert engine.advance_time(state, "d", None, due_ms - 1) is None
    assert lines(engine.advance_time(state, "d", None, due_ms)) == [("d/silent/4000", "opened", 4_000)]


def test_the_newest_reading_of_all_metrics_tells_how_long_readings_take() -> None:
    engine, state = engine_of(SILENT, reorder_ms=100), DeviceRuleState()
    engine.apply(state, reading(2_000, 1, lag_ms=10), None)
    engine.apply(state, reading(1_500, 1, metric="h", lag_ms=900), None)
    engine.apply(state, reading(1_950, 0, lag_ms=800), None)
    assert engine.due_ms(state, None) == 5_010


def test_only_the_first_disorder_of_a_reading_changes_the_state() -> None:
    """So the changelog gets it, and a repetition after a crash gets nothing."""
    engine, state = engine_of(HOT), DeviceRuleState()
    for number in range(1, 7):
        engine.apply(state, reading(number * 1_000, number), None)
    metric = state.metrics["t"]
    assert (state.revision, metric.in_order, metric.recent) == (6, 6, [3_000, 4_000, 5_000, 6_000])
    for at_ms in (6_000, 3_000, 1_500, 2_999):
        assert engine.apply(state, reading(at_ms, 1), None) is None, "known, or too old to be known"
        assert (state.revision, metric.in_order) == (6, 6)
    assert engine.apply(state, reading(3_001, 1), None) is None
    assert (state.revision, metric.in_order, metric.recent) == (7, 0, [3_001, 4_000, 5_000, 6_000])
    assert engine.apply(state, reading(3_001, 1), None) is None
    assert state.revision == 7


def test_readings_of_one_time_are_in_order_by_their_numbers() -> None:
    metric = MetricState()
    for sequence in (1, 2, 3):
        assert reorder.offer(metric, BufferedReading(10, sequence, 0.0, ""))
    assert (metric.in_order, metric.recent) == (3, [10])
    assert reorder.offer(metric, BufferedReading(9, 1, 0.0, ""))
    assert metric.in_order == 0


def test_of_too_many_readings_that_wait_the_earliest_of_the_device_is_judged_first() -> None:
    engine, state = engine_of(HOT, reorder_ms=1_000_000), DeviceRuleState()
    for place, metric in enumerate("tabcd"):
        # Backwards, so that none is trusted to be in order.
        for number in reversed(range(51 + (metric == "t"))):
            engine.apply(state, reading(1_000 + 10 * number + place + 1, 0, metric=metric), None)
    assert sum(len(one.buffered) for one in state.metrics.values()) == reorder.MAX_BUFFERED_OF_DEVICE
    assert engine.apply(state, reading(900, 0, 35.0, metric="b"), None) == []
    assert {name: one.event_time_ms for name, one in state.metrics.items()} == dict.fromkeys("tacd", -1) | {"b": 900}
    alerts = engine.apply(state, reading(950, 0, 35.0), None) or []
    assert [(one["metric"], one["opened_at"]) for one in alerts] == [("t", 950)]
    assert state.outbox == alerts


def test_a_gap_is_learned_from_the_first_reading_on_wherever_time_begins() -> None:
    engine, state = engine_of(SILENT), DeviceRuleState()
    for at_ms in (0, 400):
        engine.apply(state, reading(at_ms), None)
    assert (state.metrics["t"].interval_ms, state.metrics["t"].intervals_seen) == (400, 1)


def test_a_device_without_a_record_is_forgotten_after_its_last_sign_of_life() -> None:
    engine, state = engine_of(HOT, reorder_ms=50, forget_ms=1_000), DeviceRuleState()
    assert engine.due_ms(state, None) is None, "it has never given a reading"
    engine.apply(state, reading(0, 1, 35.0, lag_ms=5), None)
    assert engine.due_ms(state, None) == 1_005
    assert engine.due_ms(state, DeviceMetadata({}, engine.default_bounds)) is None
    engine.apply(state, reading(40, 9, 35.0, lag_ms=7), None)
    assert engine.advance_time(state, "d", None, 90) == []
    engine.apply(state, reading(100, 99, 35.0), None)
    state.metrics["t"].buffered.clear()
    assert engine.due_ms(state, None) == 1_100, "what waited counts, too"
    revision = state.revision
    (closed,) = engine.advance_time(state, "d", None, 1_100) or []
    assert lines([closed]) == [("d/above/t/0", "closed", 1_100)]
    assert closed["message"] == "the device is forgotten: it has no record, and has given no reading for a long time"
    assert state == DeviceRuleState(revision + 1, outbox=state.outbox, is_forgotten=True)
    assert engine.due_ms(state, None) is None
    assert engine.apply(state, reading(2_000, 1), None) == []
    assert not state.is_forgotten


def test_a_forgotten_device_was_silent_before() -> None:
    engine, state = engine_of(SILENT, forget_ms=9_000), DeviceRuleState()
    engine.apply(state, reading(1_000, 1), None)
    assert lines(engine.advance_time(state, "d", None, 20_000)) == [
        ("d/silent/4000", "opened", 4_000),
        ("d/silent/4000", "closed", 10_000),
    ]


def test_a_removed_device_closes_its_alerts_in_order_and_after_their_begin() -> None:
    rules = (HOT, {"kind": "below", "metric": "t", "threshold": 40}, {"kind": "flat", "metric": "t", "for_ms": 9_000})
    engine, state = engine_of(*rules), DeviceRuleState()
    opened = engine.apply(state, reading(1_000, 1, 35.0), None) or []
    state.alive_since_ms, revision = 5, state.revision
    closed = engine.remove(state, "d", 500)
    assert lines(closed) == [("d/above/t/1000", "closed", 1_001), ("d/below/t/1000", "closed", 1_001)]
    assert {one["message"] for one in closed} == {"the record of the device was removed"}
    assert state == DeviceRuleState(revision + 1, outbox=[*opened, *closed], is_forgotten=True)


def test_a_device_that_never_reports_is_told_when_it_is_due_and_not_forgotten() -> None:
    engine, state = engine_of(SILENT | {"unreported_ms": 5_000}, forget_ms=1_000), DeviceRuleState()
    device = DeviceMetadata({"home": "h"}, engine.default_bounds, since_ms=100)
    assert engine.due_ms(state, device) == 5_100
    (opened,) = engine.advance_time(state, "d", device, 5_100) or []
    assert (opened["opened_at"], opened["message"]) == (5_100, "the device has a record, and has never given a reading")
    assert opened["attributes"] == {"home": "h"}
    assert engine.due_ms(state, device) is None


def test_a_device_has_its_own_limit_of_silence() -> None:
    book = AlertsSettings.model_validate({"rules": [SILENT]}).rule_book()
    table = DeviceTable(book, {})
    table.put("d", {"home": None, "region": None, "model": None, "thresholds": {"silent.interval_ms": 9_000.0}})
    engine, state = RuleEngine(book, table.default_bounds, 0), DeviceRuleState()
    engine.apply(state, reading(1_000, 1), table.get("d"))
    assert engine.due_ms(state, table.get("d")) == 28_000
    assert engine.due_ms(state, None) == 4_000


TEMPLATE = "{rule} {metric} {severity} {unit} {value} {threshold} {device} {home} {region} {model}"


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (HOT | {"severity": "info"}, "above t info Cel 35 30 d h r m"),
        (SILENT | {"severity": "critical"}, "silent - critical - - - d h r m"),
        ({"kind": "unknown-device", "for_ms": 0}, "unknown-device - warning - - - d - - -"),
        (
            {"kind": "all", "name": "both", "conditions": [{"kind": "above", "metric": "t", "threshold": 1}]},
            "both - warning - - - d h r m",
        ),
    ],
)
def test_the_text_of_an_alert_knows_all_that_the_alert_knows(rule: dict[str, Any], told: str) -> None:
    engine, state = engine_of(rule | {"text": TEMPLATE}), DeviceRuleState()
    device = DeviceMetadata({"home": "h", "region": "r", "model": "m"}, engine.default_bounds)
    known = None if rule["kind"] == "unknown-device" else device
    alerts = engine.apply(state, reading(1_000, 1, 35.0), known) or []
    alerts += engine.advance_time(state, "d", known, 99_000) or []
    assert [one["message"] for one in alerts] == [told]


def test_the_text_of_a_silent_metric_names_it() -> None:
    rule = {
        "kind": "silent",
        "intervals": 3,
        "cautious_intervals": 3,
        "min_ms": 1_000,
        "text": "{rule} {metric} {home}",
    }
    engine, state, alerts = engine_of(rule), DeviceRuleState(), list[AlertRecord]()
    device = DeviceMetadata({"home": "h"}, engine.default_bounds)
    for number in range(1, 40):
        for metric in "th" if number < 20 else "t":
            alerts += engine.apply(state, reading(number * 1_000, number, metric=metric), device) or []
    assert [one["message"] for one in alerts] == ["silent h h"]


def test_only_a_device_of_which_nothing_is_open_or_waiting_has_bounds_for_the_compiled_code() -> None:
    engine, state = engine_of(HOT, SILENT, reorder_ms=100, forget_ms=700), DeviceRuleState()
    known = DeviceMetadata({}, engine.default_bounds)
    assert engine.quiet_bounds_of(state, known) is None, "no reading was applied"
    engine.apply(state, reading(1_000, 1), known)
    (bounds,) = engine.quiet_bounds_of(state, known) or []
    assert (bounds.high, bounds.forget_ms) == (30, 0)
    assert bounds.silence == quiet.SilenceBounds(
        3, engine.default_bounds["silent"]["cautious_intervals"], *(1_000, 1_000), True
    )
    (unknown,) = engine.quiet_bounds_of(state, None) or []
    assert unknown.forget_ms == 700
    engine.apply(state, reading(1_050, 9), known)
    assert engine.quiet_bounds_of(state, known) is None, "a reading waits"
    engine.advance_time(state, "d", known, 1_150)
    assert engine.quiet_bounds_of(state, known) is not None
    state.rules["t.above"] = RuleState(since_ms=1_000)
    assert engine.quiet_bounds_of(state, known) is None, "an alert is pending"

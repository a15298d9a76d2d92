"""The rules, the buffer, the trend and the texts of alerts at their exact limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isotherm.alerts.engine import alert_records, reorder, trend
from isotherm.alerts.engine.conditions import Change, Finding, advance, evaluate
from isotherm.alerts.engine.device_state import (
    BufferedReading,
    DeviceRuleState,
    MetricState,
    RuleState,
    alert_id,
    decode,
    due_of,
    encode,
    revision_of,
)
from isotherm.alerts.engine.reading import Reading, filter_reason, reading_of, reading_of_window
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings

HOUR_MS = 3_600_000
RULES: list[dict[str, Any]] = [
    {"kind": "above", "metric": "t", "threshold": 5, "hysteresis": 2, "for_ms": 100},
    {"kind": "below", "metric": "t", "threshold": -5, "hysteresis": 2, "for_ms": 100},
    {"kind": "rate", "metric": "t", "threshold": 3, "hysteresis": 1, "window_ms": 1_600},
    {"kind": "flat", "metric": "t", "tolerance": 1, "for_ms": 100},
]


def engine_of(*rules: dict[str, Any], reorder_ms: int = 0, max_metrics: int = 3) -> RuleEngine:
    book = AlertsSettings.model_validate({"rules": list(rules)}).rule_book()
    return RuleEngine(book, DeviceTable(book, {}).default_bounds, reorder_ms, max_metrics)


def evaluated(kind: str, rule_state: RuleState, at_ms: int, value: float) -> Change | None:
    engine = engine_of(*RULES)
    (rule,) = (one for one in engine.rules.by_metric["t"] if one.kind == kind)
    return evaluate(rule, engine.default_bounds[rule.key], rule_state, MetricState(at_ms, value=value))


def reading(at_ms: int, value: float = 1.0, *, metric: str = "t", sequence: int = 0) -> Reading:
    return Reading("d", metric, value, "Cel", at_ms, at_ms, sequence)


@pytest.mark.parametrize(
    ("kind", "at_limit", "beyond", "not_cleared", "cleared"),
    [("above", 5.0, 5.1, 3.1, 3.0), ("below", -5.0, -5.1, -3.1, -3.0)],
)
def test_a_threshold_is_exceeded_beyond_it_and_cleared_at_the_hysteresis(
    kind: str, at_limit: float, beyond: float, not_cleared: float, cleared: float
) -> None:
    state = RuleState()
    assert evaluated(kind, state, 0, at_limit) is None
    assert state.since_ms is None
    assert evaluated(kind, state, 1_000, beyond) is None
    assert evaluated(kind, state, 1_099, beyond) is None
    opened = evaluated(kind, state, 1_100, beyond)
    threshold = 5.0 if kind == "above" else -5.0
    assert opened == Change("opened", 1_000, 1_100, Finding(True, False, beyond, threshold))
    assert evaluated(kind, state, 1_200, not_cleared) is None
    assert evaluated(kind, state, 1_000, cleared) is None, "it ends later than it began"
    closed = evaluated(kind, state, 1_300, cleared)
    assert closed == Change("closed", 1_000, 1_300, Finding(False, True, cleared, threshold))
    assert state == RuleState()


def test_an_interruption_begins_the_time_anew() -> None:
    state = RuleState()
    for at_ms, breaking in ((0, True), (60, False), (70, True), (169, True)):
        assert advance(state, at_ms, Finding(breaking, not breaking, None, None), 100) is None
    change = advance(state, 170, Finding(True, False, None, None), 100)
    assert change is not None
    assert change.opened_ms == 70


def test_a_rate_is_exceeded_beyond_its_threshold_and_cleared_at_the_hysteresis() -> None:
    state = RuleState()
    changes = [evaluated("rate", state, at_ms, value) for at_ms, value in ((0, 0.0), (100, 3.0), (200, 3.1))]
    assert changes == [None, None, Change("opened", 200, 200, Finding(True, False, 3.1, 3.0))]
    assert evaluated("rate", state, 1_700, 1.0) is None, "2.1 since 200"
    closed = evaluated("rate", state, 1_801, 3.0)
    assert closed == Change("closed", 200, 1_801, Finding(False, True, 2.0, 3.0))


def test_a_flat_line_moves_beyond_its_tolerance() -> None:
    state = RuleState()
    assert evaluated("flat", state, 0, 10.0) is None
    assert (state.anchor, state.since_ms) == (10.0, 0)
    assert evaluated("flat", state, 99, 11.0) is None
    assert evaluated("flat", state, 100, 9.0) == Change("opened", 0, 100, Finding(True, False, 9.0, 1.0))
    assert evaluated("flat", state, 200, 11.1) == Change("closed", 0, 200, Finding(False, True, 11.1, 1.0))
    assert (state.anchor, state.since_ms, state.opened_ms) == (11.1, 200, None)


@pytest.mark.parametrize(
    ("before", "now", "trend_per_hour"),
    [
        ((-1, 0.0), (HOUR_MS, 1.0), 5.0),
        ((7, 0.0), (7, 1.0), 5.0),
        ((8, 0.0), (7, 1.0), 5.0),
        ((0, 0.0), (600_000, 1.0), 5.0 * math.exp(-1) + 6.0 * (1 - math.exp(-1))),
        ((0, 2.0), (HOUR_MS, 1.0), 5.0 * math.exp(-6) - (1 - math.exp(-6))),
    ],
)
def test_a_trend_follows_the_last_change(
    before: tuple[int, float], now: tuple[int, float], trend_per_hour: float
) -> None:
    assert trend.followed(5.0, before, now) == pytest.approx(trend_per_hour)


def test_a_trend_begins_at_nothing_and_is_never_infinite() -> None:
    assert trend.followed(None, (-1, 0.0), (7, 1.0)) is None
    assert trend.followed(None, (0, 0.0), (600_000, 1.0)) == pytest.approx(6.0 * (1 - math.exp(-1)))
    assert trend.followed(1.0, (0, -1.7e308), (1, 1.7e308)) is None


@pytest.mark.parametrize(
    "state",
    [
        RuleState(since_ms=0),
        RuleState(opened_ms=0),
        RuleState(anchor=0.0),
        RuleState(highest=[(0, 0.0)]),
    ],
)
def test_a_state_that_says_something_is_stored(state: RuleState) -> None:
    assert not state.is_idle()
    assert RuleState(severity="critical").is_idle()
    whole = DeviceRuleState(3, {"t": MetricState(buffered=[BufferedReading(1, 2, 3.0, "u")])}, {"k": state}, 9, [])
    assert decode(encode(whole, 70)) == whole
    assert (revision_of(encode(whole, 70)), due_of(encode(whole, 70)), due_of(encode(whole, None))) == (3, 70, None)


def test_a_new_state_has_seen_nothing() -> None:
    metric, device = MetricState(), DeviceRuleState()
    assert (metric.event_time_ms, metric.sequence, metric.value, metric.newest_ms) == (-1, 0, 0.0, -1)
    assert (metric.interval_ms, metric.intervals_seen, metric.trend_per_hour) == (0, 0, None)
    assert (device.revision, device.last_seen_ms) == (0, -1)
    assert Reading("d", "t", 1.0, "", 5, 6).position == (5, 0)


def offered(*readings: tuple[int, int], applied: tuple[int, int] = (-1, 0)) -> tuple[MetricState, list[bool]]:
    metric = MetricState(*applied)
    accepted = [reorder.offer(metric, BufferedReading(at_ms, sequence, 0.0, "")) for at_ms, sequence in readings]
    return metric, accepted


def test_a_reading_is_offered_once_and_only_after_the_position() -> None:
    metric, accepted = offered((10, 5), (9, 9), (11, 0), (12, 3), (11, 0), (10, 6), applied=(10, 5))
    assert accepted == [False, False, True, True, False, True]
    assert [one[:2] for one in metric.buffered] == [(10, 6), (11, 0), (12, 3)]
    assert metric.newest_ms == 12


def test_of_the_revisions_of_a_window_the_highest_waits() -> None:
    metric, accepted = offered((10, -8), (20, -9), (10, -9), (10, -7), (20, -9), (0, -3))
    assert accepted == [True, True, False, True, False, True]
    assert [one[:2] for one in metric.buffered] == [(0, -3), (10, -7), (20, -9)]


@pytest.mark.parametrize(
    ("now_ms", "newest_ms", "sequence", "over_limit", "released"),
    [
        (None, 110, 5, False, True),
        (None, 109, 5, False, False),
        (110, 10, 5, False, True),
        (109, 10, 5, False, False),
        (None, 10, 3, False, True),
        (None, 10, 2, False, False),
        (None, 10, 5, True, True),
    ],
)
def test_a_reading_passes_in_its_turn_or_when_it_has_waited(
    now_ms: int | None, newest_ms: int, sequence: int, over_limit: bool, released: bool
) -> None:
    metric = MetricState(5, 2, newest_ms=newest_ms, buffered=[BufferedReading(10, sequence, 7.0, "u")])
    assert reorder.due_ms(metric, 100) == 110
    found = reorder.release(metric, 100, now_ms, over_limit=over_limit)
    if released:
        assert found == (10, sequence, 7.0, "u")
        assert (metric.event_time_ms, metric.sequence, metric.value, metric.unit) == found
        assert reorder.due_ms(metric, 100) is None
        assert reorder.release(metric, 100, 1_000) is None
    else:
        assert (found, metric.event_time_ms) == (None, 5)


def test_a_full_buffer_releases_its_first_reading() -> None:
    metric = MetricState(buffered=[BufferedReading(10 + number, 0, 0.0, "") for number in range(64)])
    assert reorder.release(metric, 10_000) is None
    metric.buffered.append(BufferedReading(100, 0, 0.0, ""))
    assert reorder.release(metric, 10_000) == (10, 0, 0.0, "")
    assert reorder.release(metric, 10_000) is None


def test_after_a_revision_no_other_one_is_newer() -> None:
    metric = MetricState(buffered=[BufferedReading(10, -3, 0.0, "")])
    assert reorder.release(metric, 0, 10) is not None
    assert metric.sequence == 0


@pytest.mark.parametrize(
    ("value", "ahead_ms", "reason"), [(1.0, 10, None), (1.0, 11, "future"), (math.nan, 0, "not-finite")]
)
def test_what_no_rule_may_see(value: float, ahead_ms: int, reason: str | None) -> None:
    assert filter_reason(Reading("d", "t", value, "", 100 + ahead_ms, 100), 10) == reason


def test_records_become_readings() -> None:
    record = {"device_id": "d", "metric": "t", "value": 1.5, "unit": "u", "event_time": 7, "ingest_time": 8}
    assert reading_of(record | {"sequence": 9}) == Reading("d", "t", 1.5, "u", 7, 8, 9)
    window = {"device_id": "d", "metric": "t", "mean": 1.5, "window_end": 7}
    of_window = [reading_of_window(window | {"revision": revision}, 8) for revision in (0, 1)]
    assert [one.sequence for one in of_window] == [-(2**62), 1 - 2**62]
    assert of_window[0][:6] == Reading("d", "t", 1.5, "", 7, 8)[:6]


SENTENCES = [
    ("above", "t 7.5 Cel is above 5.0 Cel", "t 7.5 Cel is no longer above 5.0 Cel"),
    ("below", "t 7.5 Cel is below 5.0 Cel", "t 7.5 Cel is no longer below 5.0 Cel"),
    ("rate", "t has changed by 7.5 Cel, more than 5.0 Cel", "t has changed by 7.5 Cel, no longer more than 5.0 Cel"),
    ("flat", "t has stayed at 7.5 Cel", "t moves again: 7.5 Cel"),
    ("silent", "no reading of t when one was due", "readings of t come again"),
    ("unknown-device", "the topic of devices has no record of this device", "the device is known now"),
    (
        "outside-schedule",
        "t 7.5 Cel at a time outside of the schedule",
        "t 7.5 Cel is no longer a matter of a time outside of the schedule",
    ),
    (
        "off-group-mean",
        "t is 7.5 Cel from the mean of its group, more than 5.0 Cel",
        "t is 7.5 Cel from the mean of its group, no longer more than 5.0 Cel",
    ),
    ("all", "the conditions hold together", "the conditions no longer hold together"),
    (
        "unreported",
        "the device has a record, and has never given a reading",
        "the device has a record, and has never given a reading",
    ),
    ("removed", "the record of the device was removed", "the record of the device was removed"),
]


@pytest.mark.parametrize(("kind", "opened", "closed"), SENTENCES)
def test_an_alert_says_what_happened(kind: str, opened: str, closed: str) -> None:
    for state, sentence in (("opened", opened), ("closed", closed)):
        change = Change(state, 10, 20, Finding(True, False, 7.5, 5.0))
        assert alert_records.record("d", "t.high", RuleState(severity="critical"), kind, change, "Cel") == {
            "alert_id": "d/high/t/10",
            "device_id": "d",
            "rule": "high",
            "severity": "critical",
            "state": state,
            "opened_at": 10,
            "updated_at": 20,
            "closed_at": 20 if state == "closed" else None,
            "metric": "t",
            "value": 7.5,
            "threshold": 5.0,
            "message": sentence,
            "attributes": None,
        }
    of_device = alert_records.record(
        "d", "silent", RuleState(), "silent", Change("opened", 1, 2, Finding(True, False, None, None)), ""
    )
    assert of_device["message"] == "no reading when one was due"
    no_metric = alert_records.record(
        "d", "silent", RuleState(), "above", Change("opened", 1, 2, Finding(True, False, 1.0, 2.0)), ""
    )
    assert (no_metric["metric"], no_metric["alert_id"]) == (None, "d/silent/1")
    assert no_metric["message"] == " 1.0 is above 2.0"


def test_the_state_of_a_device_is_its_newest_values_and_open_alerts() -> None:
    state = DeviceRuleState(rules={"t.high": RuleState(opened_ms=7), "a": RuleState(since_ms=1)})
    state.metrics = {
        "t": MetricState(5, 3, 1.5, "u", trend_per_hour=0.5),
        "first": MetricState(0),
        "none": MetricState(),
    }
    record = alert_records.state_record("d", state, 99)
    assert (record["device_id"], record["last_seen"], record["updated_at"]) == ("d", 0, 99)
    assert list(record["latest"]) == ["first", "t"]
    assert record["latest"]["t"] == {
        "value": 1.5,
        "unit": "u",
        "event_time": 5,
        "sequence": 3,
        "trend_per_hour": 0.5,
    }
    assert record["open_alerts"] == [alert_id("d", "t.high", 7)] == ["d/high/t/7"]
    state.last_seen_ms = 4
    assert alert_records.state_record("d", state, 99)["last_seen"] == 4


def test_a_device_has_a_bounded_number_of_metrics() -> None:
    engine, state = engine_of(*RULES, max_metrics=2), DeviceRuleState()
    for metric in ("t", "u"):
        assert engine.admits(state, reading(1, metric=metric))
        engine.apply(state, reading(1, metric=metric), None)
    assert not engine.admits(state, reading(2, metric="v"))
    assert engine.admits(state, reading(2, metric="u"))
    assert state.revision == 2
    assert engine.apply(state, reading(1), None) is None
    assert state.revision == 2


SILENT: dict[str, Any] = {"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000}


def test_a_device_is_silent_after_some_of_its_usual_intervals() -> None:
    engine, state = engine_of(SILENT), DeviceRuleState()
    for number in range(6):
        engine.apply(state, reading(1_000 + 400 * number), None)
        due_ms = engine.due_ms(state, None)
        assert due_ms == (None if number < 5 else 4_200), "five intervals tell what is usual"
    metric = state.metrics["t"]
    assert (metric.interval_ms, metric.intervals_seen) == (400, 5)
    assert engine.advance_time(state, "d", None, 4_199) is None
    revision = state.revision
    (opened,) = engine.advance_time(state, "d", None, 4_200) or []
    assert (opened["opened_at"], opened["state"], state.revision) == (4_200, "opened", revision + 1)
    assert state.outbox == [opened]
    assert engine.due_ms(state, None) is None
    assert engine.apply(state, reading(4_200), None) == [], "it ends later than it began"
    (closed,) = engine.apply(state, reading(4_250), None) or []
    assert (closed["state"], closed["closed_at"]) == ("closed", 4_250)


def test_a_gap_beyond_the_limit_counts_and_changes_the_usual_one_little() -> None:
    engine, state = engine_of(SILENT), DeviceRuleState()
    for number in range(6):
        engine.apply(state, reading(1_000 + 400 * number), None)
    alerts = engine.apply(state, reading(3_000 + 1_201), None) or []
    assert [one["state"] for one in alerts] == ["opened", "closed"]
    metric = state.metrics["t"]
    assert (metric.interval_ms, metric.intervals_seen) == (400 + 801 / 6, 6)
    assert (metric.pause_ms, metric.pause_at_ms, metric.accepted_ms) == (1_201, 4_201, 0)
    engine.apply(state, reading(4_601), None)
    assert (metric.interval_ms, metric.intervals_seen) == (533.5 - 133.5 / 7, 7), "the mean of the first ones"

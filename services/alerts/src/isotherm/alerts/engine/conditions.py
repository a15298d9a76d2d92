"""Evaluates a rule on a reading, and opens and closes its alert: functions on a rule's state."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.alerts.engine.device_state import MetricState, Point, RuleState
from isotherm.alerts.rules.catalog import MetricRule
from isotherm.alerts.rules.comparisons import OffGroupMeanRule, OutsideScheduleRule
from isotherm.alerts.rules.group_means import GroupMean
from isotherm.alerts.rules.kinds import Bounds, FlatRule, RateRule

_PARTS = 16
"""Parts of a rate's window. Each part keeps at most one highest and one lowest value, dated to the part's end."""


class Finding(NamedTuple):
    """The result of a rule's condition on one reading."""

    breaking: bool
    """The condition holds."""
    cleared: bool
    """An open alert can close."""
    measured: float | None
    threshold: float | None


class Change(NamedTuple):
    """An alert opens or closes."""

    state: str
    opened_ms: int
    at_ms: int
    finding: Finding


def advance(rule_state: RuleState, at_ms: int, finding: Finding, for_ms: float) -> Change | None:
    """Apply a finding at `at_ms` to the state of a rule with a minimum duration of `for_ms`; return the change.

    The incident begins when the condition began to hold without interruption. It ends later than it began. Otherwise
    another incident could begin within the same millisecond, and would have the same id.
    """
    if rule_state.opened_ms is not None:
        if not finding.cleared or at_ms <= rule_state.opened_ms:
            return None
        change = Change("closed", rule_state.opened_ms, at_ms, finding)
        rule_state.opened_ms = rule_state.since_ms = None
        return change
    if not finding.breaking:
        rule_state.since_ms = None
        return None
    if rule_state.since_ms is None:
        rule_state.since_ms = at_ms
    if at_ms - rule_state.since_ms < for_ms:
        return None
    rule_state.opened_ms = rule_state.since_ms
    return Change("opened", rule_state.opened_ms, at_ms, finding)


def evaluate(
    rule: MetricRule, bounds: Bounds, rule_state: RuleState, metric: MetricState, mean: GroupMean | None = None
) -> Change | None:
    """Evaluate a rule on the reading at the position of its metric; return the change of its alert.

    `mean` is that of the device's group, for a rule that compares with it; None while it is not known.
    """
    at_ms, value = metric.event_time_ms, metric.value
    if isinstance(rule, FlatRule):
        return _evaluate_flat(bounds, rule_state, at_ms, value)
    if isinstance(rule, RateRule):
        return advance(rule_state, at_ms, _rate(bounds, rule_state, metric), 0)
    if isinstance(rule, OffGroupMeanRule):
        finding = _off_mean(bounds, at_ms, value, mean)
    elif isinstance(rule, OutsideScheduleRule):
        finding = _beyond(rule.beyond, bounds["threshold"], bounds["hysteresis"], value)
        if rule.schedule.contains(at_ms):
            finding = finding._replace(breaking=False, cleared=True)
    else:
        finding = _beyond(rule.kind, bounds["threshold"], bounds["hysteresis"], value)
    return advance(rule_state, at_ms, finding, bounds["for_ms"])


def _beyond(direction: str, threshold: float, hysteresis: float, value: float) -> Finding:
    if direction == "above":
        return Finding(value > threshold, value <= threshold - hysteresis, value, threshold)
    return Finding(value < threshold, value >= threshold + hysteresis, value, threshold)


def _off_mean(bounds: Bounds, at_ms: int, value: float, mean: GroupMean | None) -> Finding:
    """Return whether a value is too far from the mean. Without a usable mean nothing opens and nothing closes."""
    threshold = bounds["threshold"]
    if (
        mean is None
        or mean.device_count < bounds["min_devices"]
        or abs(at_ms - mean.window_end_ms) > bounds["max_age_ms"]
    ):
        return Finding(False, False, None, threshold)
    distance = abs(value - mean.mean)
    return Finding(distance > threshold, distance <= threshold - bounds["hysteresis"], distance, threshold)


def _rate(bounds: Bounds, rule_state: RuleState, metric: MetricState) -> Finding:
    window_ms = bounds["window_ms"]
    if not rule_state.highest:
        for point in metric.samples:
            _add_point(rule_state, point, window_ms)
    _add_point(rule_state, (metric.event_time_ms, metric.value), window_ms)
    change = max(rule_state.highest[0][1] - metric.value, metric.value - rule_state.lowest[0][1])
    return Finding(
        change > bounds["threshold"], change <= bounds["threshold"] - bounds["hysteresis"], change, bounds["threshold"]
    )


def _add_point(rule_state: RuleState, point: Point, window_ms: float) -> None:
    """Keep a value for the changes that end later.

    No extreme of the window is lost: only a value that a later value exceeds is dropped. A value that shares a part of
    the window with another one counts for longer, by at most a sixteenth of the window.
    """
    at_ms, value = point
    part_ms = window_ms / _PARTS
    for points, sign in ((rule_state.highest, 1), (rule_state.lowest, -1)):
        while points and sign * points[-1][1] <= sign * value:
            points.pop()
        if points and points[-1][0] // part_ms == at_ms // part_ms:
            points[-1] = (at_ms, points[-1][1])
        else:
            points.append(point)
        while points[0][0] < at_ms - window_ms:
            del points[0]


def _evaluate_flat(bounds: Bounds, rule_state: RuleState, at_ms: int, value: float) -> Change | None:
    moved = rule_state.anchor is None or abs(value - rule_state.anchor) > bounds["tolerance"]
    finding = Finding(not moved, moved, value, bounds["tolerance"])
    if not moved:
        return advance(rule_state, at_ms, finding, bounds["for_ms"])
    change = advance(rule_state, at_ms, finding, 0)
    rule_state.anchor, rule_state.since_ms = value, at_ms
    return change

"""Evaluates combinations of conditions on the newest values of a device's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.alerts.engine.conditions import Finding
from isotherm.alerts.engine.device_state import MetricState
from isotherm.alerts.rules.comparisons import (
    CombinedRule,
    Condition,
    ConditionGroup,
    ScheduleCondition,
    ThresholdCondition,
    hold_together,
)

Metrics = Mapping[str, MetricState]


def time_of(rule: CombinedRule, metrics: Metrics) -> int:
    """Return the time (epoch ms) at which a combination is looked at: that of its newest metric, -1 without any.

    It never goes back, in whatever order the readings of different metrics come.
    """
    return max((metrics[name].event_time_ms for name in rule.metrics if name in metrics), default=-1)


def find(rule: CombinedRule, metrics: Metrics, at_ms: int) -> Finding:
    """Return whether the conditions hold together at a time, and whether an open alert of them can close.

    While an alert is open a condition counts until its value has returned by its hysteresis.
    """
    known = {
        name: one.value
        for name, one in metrics.items()
        if one.event_time_ms >= 0 and at_ms - one.event_time_ms <= rule.max_age_ms
    }
    breaking = hold_together(rule.kind, [_part(one, known, at_ms, relaxed=False) for one in rule.conditions])
    still = hold_together(rule.kind, [_part(one, known, at_ms, relaxed=True) for one in rule.conditions])
    return Finding(breaking, not still, None, None)


def _part(part: Condition | ConditionGroup, known: Mapping[str, float], at_ms: int, *, relaxed: bool) -> bool:
    if isinstance(part, ConditionGroup):
        return hold_together(part.kind, [_holds(one, known, at_ms, relaxed=relaxed) for one in part.conditions])
    return _holds(part, known, at_ms, relaxed=relaxed)


def _holds(condition: Condition, known: Mapping[str, float], at_ms: int, *, relaxed: bool) -> bool:
    if isinstance(condition, ScheduleCondition):
        return condition.schedule.contains(at_ms) == (condition.kind == "within-schedule")
    value = known.get(condition.metric)
    return value is not None and _is_beyond(condition, value, relaxed=relaxed)


def _is_beyond(condition: ThresholdCondition, value: float, *, relaxed: bool) -> bool:
    threshold, hysteresis = condition.threshold, condition.hysteresis
    if condition.kind == "above":
        return value > (threshold - hysteresis if relaxed else threshold)
    return value < (threshold + hysteresis if relaxed else threshold)

"""Whether a reading breaks a rule, and what becomes of the alert: pure functions on a rule's watch."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.alerts.engine.device_state import MetricMemory, Point, Watch
from isotherm.alerts.rules.rule_book import (
    Bounds,
    FlatRule,
    MetricRule,
    RateRule,
)

_PARTS = 16
"""Of a rate's window. Of each part at most one highest and one lowest value are kept, as if measured at its end."""


class Finding(NamedTuple):
    """What a rule says of one reading."""

    breaking: bool
    """The condition holds."""
    cleared: bool
    """The condition is over for an alert that is open."""
    measured: float | None
    threshold: float | None


class Change(NamedTuple):
    """An alert begins or ends."""

    state: str
    opened_ms: int
    at_ms: int
    finding: Finding


def step(watch: Watch, at_ms: int, finding: Finding, for_ms: float) -> Change | None:
    """Let a rule with hysteresis and minimum duration see one reading of its metric.

    The incident begins where the condition began to hold without a break. It ends later than it began: else another one
    could begin in the same millisecond, and have its id.
    """
    if watch.opened_ms is not None:
        if not finding.cleared or at_ms <= watch.opened_ms:
            return None
        change = Change("closed", watch.opened_ms, at_ms, finding)
        watch.opened_ms = watch.since_ms = None
        return change
    if not finding.breaking:
        watch.since_ms = None
        return None
    if watch.since_ms is None:
        watch.since_ms = at_ms
    if at_ms - watch.since_ms < for_ms:
        return None
    watch.opened_ms = watch.since_ms
    return Change("opened", watch.opened_ms, at_ms, finding)


def see(rule: MetricRule, bounds: Bounds, watch: Watch, metric: MetricMemory) -> Change | None:
    """Let a rule see the reading that has just become the position of its metric."""
    at_ms, value = metric.event_time_ms, metric.value
    if isinstance(rule, FlatRule):
        return _see_flat(bounds, watch, at_ms, value)
    if isinstance(rule, RateRule):
        return step(watch, at_ms, _rate(bounds, watch, metric), 0)
    threshold, hysteresis = bounds["threshold"], bounds["hysteresis"]
    if rule.kind == "above":
        finding = Finding(value > threshold, value <= threshold - hysteresis, value, threshold)
    else:
        finding = Finding(value < threshold, value >= threshold + hysteresis, value, threshold)
    return step(watch, at_ms, finding, bounds["for_ms"])


def _rate(bounds: Bounds, watch: Watch, metric: MetricMemory) -> Finding:
    window_ms = bounds["window_ms"]
    if not watch.highest:
        for point in metric.samples:
            _remember(watch, point, window_ms)
    _remember(watch, (metric.event_time_ms, metric.value), window_ms)
    change = max(watch.highest[0][1] - metric.value, metric.value - watch.lowest[0][1])
    return Finding(
        change > bounds["threshold"], change <= bounds["threshold"] - bounds["hysteresis"], change, bounds["threshold"]
    )


def _remember(watch: Watch, point: Point, window_ms: float) -> None:
    """Keep a value for the changes that end later.

    No value of the window is missed: only one that a later value exceeds is forgotten, and one that has to share a part
    of the window counts for longer, by a sixteenth of the window at most.
    """
    at_ms, value = point
    part_ms = window_ms / _PARTS
    for points, sign in ((watch.highest, 1), (watch.lowest, -1)):
        while points and sign * points[-1][1] <= sign * value:
            points.pop()
        if points and points[-1][0] // part_ms == at_ms // part_ms:
            points[-1] = (at_ms, points[-1][1])
        else:
            points.append(point)
        while points[0][0] < at_ms - window_ms:
            del points[0]


def _see_flat(bounds: Bounds, watch: Watch, at_ms: int, value: float) -> Change | None:
    moved = watch.anchor is None or abs(value - watch.anchor) > bounds["tolerance"]
    finding = Finding(not moved, moved, value, bounds["tolerance"])
    if not moved:
        return step(watch, at_ms, finding, bounds["for_ms"])
    change = step(watch, at_ms, finding, 0)
    watch.anchor, watch.since_ms = value, at_ms
    return change

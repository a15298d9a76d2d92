"""Whether a reading breaks a rule, and what becomes of the alert: pure functions on a rule's watch."""

from __future__ import annotations

from typing import NamedTuple

from alerts.memory import MetricMemory, Watch
from alerts.rules import Bounds, FlatRule, MetricRule, RateRule

_SAMPLES = 8
"""Earlier values that a rate of change is measured by, evenly over its window."""


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

    The incident begins where the condition began to hold without a break.
    """
    if watch.opened_ms is not None:
        if not finding.cleared:
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
        return step(watch, at_ms, _rate(bounds, metric), 0)
    threshold, hysteresis = bounds["threshold"], bounds["hysteresis"]
    if rule.kind == "above":
        finding = Finding(value > threshold, value <= threshold - hysteresis, value, threshold)
    else:
        finding = Finding(value < threshold, value >= threshold + hysteresis, value, threshold)
    return step(watch, at_ms, finding, bounds["for_ms"])


def remember(metric: MetricMemory, window_ms: float) -> None:
    """Keep the reading that has just been seen as an earlier value for rates of change over `window_ms`."""
    samples = metric.samples
    if not samples or metric.event_time_ms - samples[-1][0] >= window_ms / _SAMPLES:
        samples.append((metric.event_time_ms, metric.value))
    while samples and samples[0][0] < metric.event_time_ms - window_ms:
        del samples[0]


def _rate(bounds: Bounds, metric: MetricMemory) -> Finding:
    oldest_ms = metric.event_time_ms - bounds["window_ms"]
    earlier = [value for at_ms, value in metric.samples if at_ms >= oldest_ms]
    change = max((abs(metric.value - value) for value in earlier), default=0.0)
    return Finding(
        change > bounds["threshold"], change <= bounds["threshold"] - bounds["hysteresis"], change, bounds["threshold"]
    )


def _see_flat(bounds: Bounds, watch: Watch, at_ms: int, value: float) -> Change | None:
    moved = watch.anchor is None or abs(value - watch.anchor) > bounds["tolerance"]
    finding = Finding(not moved, moved, value, bounds["tolerance"])
    if not moved:
        return step(watch, at_ms, finding, bounds["for_ms"])
    change = step(watch, at_ms, finding, 0)
    watch.anchor, watch.since_ms = value, at_ms
    return change

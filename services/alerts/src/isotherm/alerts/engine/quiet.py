"""What a device must keep to so that a reading changes nothing but numbers: the seam to the compiled code (ADR 129).

All that the compiled code knows of rules are these bounds. A rule whose every reading needs the engine makes
`quiet_bounds` return None; then the engine judges each reading of the metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from isotherm.alerts.engine.device_state import DeviceRuleState, RuleState
from isotherm.alerts.rules.comparisons import OutsideScheduleRule, conditions_it_needs
from isotherm.alerts.rules.device_table import DeviceMetadata
from isotherm.alerts.rules.kinds import Bounds, FlatRule, RateRule, ThresholdRule
from isotherm.alerts.rules.rule_book import RuleBook


class FlatBounds(NamedTuple):
    """A flat rule: the value may stay within `tolerance` of its anchor for less than `for_ms`."""

    key: str
    tolerance: float
    for_ms: float


class RateBounds(NamedTuple):
    """A rate rule: the value may change by at most `threshold` within `window_ms`."""

    key: str
    threshold: float
    window_ms: float


class SilenceBounds(NamedTuple):
    """The bounds of the rule `silent` (`rhythm`). `per_metric`: a metric can be silent while others are not."""

    intervals: float
    cautious_intervals: float
    min_ms: int
    interval_ms: int
    per_metric: bool


class QuietBounds(NamedTuple):
    """A reading within all of these bounds opens and closes nothing, when nothing is open."""

    low: float
    high: float
    flat: FlatBounds | None
    rate: RateBounds | None
    silence: SilenceBounds | None
    forget_ms: int
    """After how long without a reading the device is forgotten; 0 for never."""


def quiet_bounds(
    rules: RuleBook, default_bounds: Mapping[str, Bounds], metric: str, device: DeviceMetadata | None, forget_ms: int
) -> QuietBounds | None:
    """Return the bounds of a metric of a device; None when a rule needs every reading.

    `forget_ms` is after how long without a reading the device is forgotten, 0 for never.
    """
    if device is None and rules.unknown_device is not None:
        return None
    bounds = device.bounds if device else default_bounds
    low, high = -math.inf, math.inf
    for combined in rules.combined.get(metric, ()):
        conditions = conditions_it_needs(combined, metric)
        if not conditions:
            return None
        low = max([low, *(one.threshold for one in conditions if one.kind == "below")])
        high = min([high, *(one.threshold for one in conditions if one.kind == "above")])
    flat: FlatBounds | None = None
    rate: RateBounds | None = None
    for rule in rules.by_metric.get(metric, ()):
        values = bounds[rule.key]
        if isinstance(rule, (ThresholdRule, OutsideScheduleRule)):
            # Outside of its schedule or not: a value that is not beyond the threshold breaks no rule.
            direction = rule.beyond if isinstance(rule, OutsideScheduleRule) else rule.kind
            if direction == "above":
                high = min(high, values["threshold"])
            else:
                low = max(low, values["threshold"])
        elif isinstance(rule, FlatRule) and flat is None:
            flat = FlatBounds(rule.key, values["tolerance"], values["for_ms"])
        elif isinstance(rule, RateRule) and rate is None:
            rate = RateBounds(rule.key, values["threshold"], values["window_ms"])
        else:
            # The compiled code keeps the history of one rule of these kinds.
            return None
    silence = None
    if rules.silent is not None:
        values = bounds[rules.silent.key]
        silence = SilenceBounds(
            values["intervals"],
            values["cautious_intervals"],
            int(values["min_ms"]),
            int(values["interval_ms"]),
            rules.silent.per_metric,
        )
    return QuietBounds(low, high, flat, rate, silence, forget_ms)


def is_settled(state: DeviceRuleState) -> bool:
    """Return whether a device may be quiet: nothing of it waits, for order or for Kafka."""
    if state.outbox or not state.metrics or state.alive_since_ms >= 0 or state.is_forgotten:
        return False
    return all(one.event_time_ms >= 0 and not one.buffered and not one.samples for one in state.metrics.values())


def is_quiet(state: DeviceRuleState, bounds: Mapping[str, QuietBounds | None]) -> bool:
    """Return whether nothing of a settled device is open or pending; `bounds` are those of its metrics."""
    histories: set[str] = set()
    for of_metric in bounds.values():
        if of_metric is None:
            return False
        if of_metric.flat is not None and _is_anchored(state.rules.get(of_metric.flat.key)):
            histories.add(of_metric.flat.key)
        if of_metric.rate is not None and _is_steady(state.rules.get(of_metric.rate.key)):
            histories.add(of_metric.rate.key)
    return state.rules.keys() <= histories


def _is_anchored(state: RuleState | None) -> bool:
    return (
        state is not None
        and state.opened_ms is None
        and state.anchor is not None
        and state.since_ms is not None
        and not state.highest
    )


def _is_steady(state: RuleState | None) -> bool:
    return (
        state is not None
        and state.opened_ms is None
        and state.since_ms is None
        and state.anchor is None
        and bool(state.highest)
        and bool(state.lowest)
    )

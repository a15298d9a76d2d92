"""Rules that compare a metric with a schedule, with the mean of the device's group, or with other metrics."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from isotherm.alerts.rules.kinds import MAX_TIME_MS, BaseMetricRule, BaseRule
from isotherm.alerts.rules.schedule import Schedule
from isotherm.servicekit.settings import Settings

Attribute = Literal["home", "region", "model"]

MAX_CONDITIONS = 16
"""Most conditions of one combination or of one group in it."""
_RESERVED = ("silent", "unknown-device")
"""Names under which the state of a device has other things."""


class OutsideScheduleRule(BaseMetricRule):
    """The value is beyond a threshold at a time outside of the schedule; a time in it closes the alert, too."""

    bound_names = ("threshold", "hysteresis", "for_ms")
    main_bound = "threshold"

    kind: Literal["outside-schedule"]
    schedule: Schedule
    beyond: Literal["above", "below"] = "above"
    threshold: float = Field(allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(0, ge=0, le=MAX_TIME_MS)


class OffGroupMeanRule(BaseMetricRule):
    """The value is further than `threshold` from the mean of the device's group for `for_ms`."""

    bound_names = ("threshold", "hysteresis", "for_ms", "min_devices", "max_age_ms")
    main_bound = "threshold"

    kind: Literal["off-group-mean"]
    group: Attribute = Field(description="The attribute that the devices of a group share.")
    threshold: float = Field(gt=0, allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(0, ge=0, le=MAX_TIME_MS)
    min_devices: int = Field(3, ge=1, le=1_000_000, description="A mean of fewer devices says nothing.")
    max_age_ms: int = Field(3_600_000, ge=1_000, le=MAX_TIME_MS, description="Nor does a mean that is older than this.")

    @model_validator(mode="after")
    def _can_close(self) -> Self:
        # A distance is never below 0.
        if self.hysteresis >= self.threshold:
            raise ValueError(
                f"hysteresis = {self.hysteresis:g} is not allowed: must be below the threshold, {self.threshold:g}"
            )
        return self


class ThresholdCondition(Settings):
    """The newest value of a metric is beyond a threshold."""

    kind: Literal["above", "below"]
    metric: str = Field(min_length=1)
    threshold: float = Field(allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)


class ScheduleCondition(Settings):
    """The time is in the schedule, or outside of it."""

    kind: Literal["within-schedule", "outside-schedule"]
    schedule: Schedule


Condition = Annotated[ThresholdCondition | ScheduleCondition, Field(discriminator="kind")]


class ConditionGroup(Settings):
    """All of some conditions hold, or any of them."""

    kind: Literal["all", "any"]
    conditions: list[Condition] = Field(min_length=1, max_length=MAX_CONDITIONS)


Part = Annotated[ThresholdCondition | ScheduleCondition | ConditionGroup, Field(discriminator="kind")]


class CombinedRule(BaseRule):
    """All or any of some conditions hold together for `for_ms`."""

    bound_names = ("for_ms",)
    main_bound = "for_ms"

    kind: Literal["all", "any"]
    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    conditions: list[Part] = Field(min_length=1, max_length=MAX_CONDITIONS)
    for_ms: int = Field(0, ge=0, le=MAX_TIME_MS)
    max_age_ms: int = Field(
        3_600_000, ge=1_000, le=MAX_TIME_MS, description="A metric counts while its reading is not older than this."
    )

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of all conditions, each once."""
        flat = (one for part in self.conditions for one in _conditions_in(part))
        return tuple(dict.fromkeys(one.metric for one in flat if isinstance(one, ThresholdCondition)))

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if self.name in _RESERVED:
            raise ValueError(f"name = {self.name!r} is not allowed: it is the name of a kind")
        if not self.metrics:
            raise ValueError("conditions: at least one must be about a metric (above or below)")
        return self


def _conditions_in(part: ThresholdCondition | ScheduleCondition | ConditionGroup) -> list[Condition]:
    return part.conditions if isinstance(part, ConditionGroup) else [part]


def conditions_it_needs(rule: CombinedRule, metric: str) -> list[ThresholdCondition]:
    """Return the conditions about a metric, if a combination cannot hold while none of them does; else nothing.

    Whatever the time and the other metrics are: `all` with a condition about the metric, for example.
    """
    flat = [one for part in rule.conditions for one in _conditions_in(part)]
    conditions = [one for one in flat if isinstance(one, ThresholdCondition) and one.metric == metric]
    holds_without = hold_together(rule.kind, [_can_hold_without(part, metric) for part in rule.conditions])
    return [] if holds_without else conditions


def _can_hold_without(part: ThresholdCondition | ScheduleCondition | ConditionGroup, metric: str) -> bool:
    if isinstance(part, ConditionGroup):
        return hold_together(part.kind, [_can_hold_without(one, metric) for one in part.conditions])
    return not isinstance(part, ThresholdCondition) or part.metric != metric


def hold_together(kind: str, holding: list[bool]) -> bool:
    """Return whether `all` or `any` of some conditions hold."""
    return all(holding) if kind == "all" else any(holding)

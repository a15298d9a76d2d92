"""The kinds of rules as models of the settings, and the bounds of each kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from isotherm.alerts.rules import texts
from isotherm.servicekit.settings import Settings

Bounds = Mapping[str, float]
"""The numbers of one rule for one device, by name."""

Severity = Literal["info", "warning", "critical"]

Text = Annotated[str, Field(min_length=1, max_length=texts.MAX_TEMPLATE), AfterValidator(texts.verify)]
"""A template of an alert's text."""

MAX_TIME_MS = 366 * 86_400_000
"""Limit of every time span of a rule."""
_MAX_INTERVALS = 10_000


class BaseRule(Settings):
    """The part that all rules share."""

    bound_names: ClassVar[tuple[str, ...]]
    main_bound: ClassVar[str | None] = None
    """The bound that an override sets when it names only the rule."""

    kind: str
    severity: Severity = Field("warning", description="Severity of the alerts of this rule.")
    text: Text | None = Field(None, description="Template of the text of an alert that opens; empty: the kind's own.")

    @property
    def key(self) -> str:
        """The name of the rule in overrides and in the state of a device."""
        return self.kind

    @property
    def version(self) -> str:
        """A short text that differs for a rule with other values.

        Defaults are left out, so that a key that a later release adds changes no version.
        """
        return hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:8]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics whose readings the rule looks at; nothing for a rule about the device."""
        return ()

    def bounds(self) -> dict[str, float]:
        """Return the configured bounds."""
        return {name: float(getattr(self, name)) for name in self.bound_names}

    def override_keys(self) -> dict[str, str]:
        """Return the bounds of the rule by the keys that overrides may use for them."""
        keys = {f"{self.key}.{name}": name for name in self.bound_names}
        return keys if self.main_bound is None else {self.key: self.main_bound, **keys}


class BaseMetricRule(BaseRule):
    """The part that all rules about one metric share."""

    name: str | None = Field(None, pattern=r"^[a-z][a-z0-9-]*$", description="Empty: its kind.")
    metric: str = Field(min_length=1)

    @property
    def key(self) -> str:
        """Metric and name, such as `temperature.above`."""
        return f"{self.metric}.{self.name or self.kind}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of the rule."""
        return (self.metric,)


class ThresholdRule(BaseMetricRule):
    """The value is beyond a threshold for `for_ms`. The alert closes when the value has returned by the hysteresis."""

    bound_names = ("threshold", "hysteresis", "for_ms")
    main_bound = "threshold"

    kind: Literal["above", "below"]
    threshold: float = Field(allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(0, ge=0, le=MAX_TIME_MS)


class RateRule(BaseMetricRule):
    """The value has changed by more than `threshold` within `window_ms`.

    A change is never below 0, so an alert would never close with a hysteresis of the threshold or more.
    """

    bound_names = ("threshold", "hysteresis", "window_ms")
    main_bound = "threshold"

    kind: Literal["rate"]
    threshold: float = Field(gt=0, allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    window_ms: int = Field(600_000, ge=1_000, le=MAX_TIME_MS)

    @model_validator(mode="after")
    def _can_close(self) -> Self:
        problem = endless_rate(self.bounds())
        if problem is not None:
            raise ValueError(problem)
        return self


class FlatRule(BaseMetricRule):
    """The value has not moved by more than `tolerance` for `for_ms`: the sensor is stuck."""

    bound_names = ("tolerance", "for_ms")
    main_bound = "for_ms"

    kind: Literal["flat"]
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(21_600_000, ge=1, le=MAX_TIME_MS)


class SilentRule(BaseRule):
    """No reading for `intervals` times the usual gap between two readings, and at least for `min_ms`.

    A device that is new, or whose gaps are irregular, is silent later: after `cautious_intervals` at the latest.
    """

    bound_names = ("intervals", "cautious_intervals", "min_ms", "interval_ms", "unreported_ms")
    main_bound = "intervals"

    kind: Literal["silent"]
    intervals: float = Field(5.0, gt=1, le=_MAX_INTERVALS, allow_inf_nan=False)
    cautious_intervals: float = Field(
        21.0,
        gt=1,
        le=_MAX_INTERVALS,
        allow_inf_nan=False,
        description="A device whose gaps are irregular is silent after so many usual ones at most, and a new one, "
        "of which fewer than 64 gaps are known, after some more. With `intervals` or less every device is silent after "
        "`intervals`.",
    )
    min_ms: int = Field(60_000, ge=1_000, le=MAX_TIME_MS)
    interval_ms: int = Field(0, ge=0, le=MAX_TIME_MS, description="The usual gap; 0 learns it from the readings.")
    unreported_ms: int = Field(
        86_400_000,
        ge=0,
        le=MAX_TIME_MS,
        description="A device with a record that has given no reading for so long is silent; 0: never.",
    )
    per_metric: bool = Field(True, description="Tell also of a metric that is silent while others are not.")


class UnknownDeviceRule(BaseRule):
    """Readings arrive for `for_ms` from a device that is not in the topic `devices`."""

    bound_names = ("for_ms",)

    kind: Literal["unknown-device"]
    for_ms: int = Field(60_000, ge=0, le=MAX_TIME_MS)


def endless_rate(bounds: Bounds) -> str | None:
    """Return why an alert of a rate with these bounds would never close; None when it can close."""
    if bounds["hysteresis"] < bounds["threshold"]:
        return None
    hysteresis, threshold = bounds["hysteresis"], bounds["threshold"]
    return f"hysteresis = {hysteresis:g} is not allowed: must be below the threshold, {threshold:g}"

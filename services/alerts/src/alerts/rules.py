"""What a rule is, and what may be said differently for a device, a home, a region or a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from servicekit.settings import Settings

Bounds = Mapping[str, float]
"""The numbers of one rule for one device, by their names."""

Severity = Literal["info", "warning", "critical"]


class BaseRule(Settings):
    """What every rule has."""

    bound_names: ClassVar[tuple[str, ...]]
    main_bound: ClassVar[str | None] = None
    """The bound that is meant where an override names the rule alone."""

    kind: str
    severity: Severity = Field("warning", description="What an alert of this rule says of itself.")

    @property
    def key(self) -> str:
        """By which overrides and the memory of a device name it."""
        return self.kind

    def bounds(self) -> dict[str, float]:
        """Its numbers as configured."""
        return {name: float(getattr(self, name)) for name in self.bound_names}

    def override_keys(self) -> dict[str, str]:
        """Every key by which an override may name one of its bounds."""
        keys = {f"{self.key}.{name}": name for name in self.bound_names}
        return keys if self.main_bound is None else {self.key: self.main_bound, **keys}


class BaseMetricRule(BaseRule):
    """What every rule about one metric has."""

    name: str | None = Field(None, pattern=r"^[a-z][a-z0-9-]*$", description="Empty: its kind.")
    metric: str = Field(min_length=1)

    @property
    def key(self) -> str:
        """Metric and name: `temperature.above`."""
        return f"{self.metric}.{self.name or self.kind}"


class ThresholdRule(BaseMetricRule):
    """A value beyond a threshold, for a while; it ends only when the value has come back by the hysteresis."""

    bound_names = ("threshold", "hysteresis", "for_ms")
    main_bound = "threshold"

    kind: Literal["above", "below"]
    threshold: float = Field(allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(0, ge=0)


class RateRule(BaseMetricRule):
    """A value that has changed by more than `threshold` within `window_ms`."""

    bound_names = ("threshold", "hysteresis", "window_ms")
    main_bound = "threshold"

    kind: Literal["rate"]
    threshold: float = Field(gt=0, allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    window_ms: int = Field(600_000, ge=1_000)


class FlatRule(BaseMetricRule):
    """A value that has not moved by more than `tolerance` for `for_ms`: a sensor that is stuck."""

    bound_names = ("tolerance", "for_ms")
    main_bound = "for_ms"

    kind: Literal["flat"]
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(21_600_000, ge=1)


class SilentRule(BaseRule):
    """No reading for `intervals` times the device's usual interval, and for `min_ms` at least."""

    bound_names = ("intervals", "min_ms", "interval_ms")
    main_bound = "intervals"

    kind: Literal["silent"]
    intervals: float = Field(5.0, gt=1, allow_inf_nan=False)
    min_ms: int = Field(60_000, ge=1_000)
    interval_ms: int = Field(0, ge=0, description="The usual interval; 0 learns it from the readings.")


class UnknownDeviceRule(BaseRule):
    """Readings of a device of which `devices` says nothing, for `for_ms`."""

    bound_names = ("for_ms",)

    kind: Literal["unknown-device"]
    for_ms: int = Field(60_000, ge=0)


MetricRule = ThresholdRule | RateRule | FlatRule
Rule = Annotated[ThresholdRule | RateRule | FlatRule | SilentRule | UnknownDeviceRule, Field(discriminator="kind")]

DEFAULT_RULES: list[Rule] = [
    ThresholdRule(kind="above", metric="temperature", threshold=40, hysteresis=1, for_ms=60_000),
    ThresholdRule(kind="below", metric="temperature", threshold=0, hysteresis=1, for_ms=60_000),
    RateRule(kind="rate", metric="temperature", threshold=15, hysteresis=5),
    FlatRule(kind="flat", metric="temperature"),
    SilentRule(kind="silent"),
    UnknownDeviceRule(kind="unknown-device", severity="info"),
]


class RuleBook:
    """The rules, found by metric. Raises ValueError when two rules have one name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        keys = [rule.key for rule in rules]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"two rules are named {', '.join(twice)}; give one of them another name")
        self.by_metric: dict[str, tuple[MetricRule, ...]] = {}
        self.silent: SilentRule | None = None
        self.unknown_device: UnknownDeviceRule | None = None
        for rule in rules:
            if isinstance(rule, SilentRule):
                self.silent = rule
            elif isinstance(rule, UnknownDeviceRule):
                self.unknown_device = rule
            else:
                self.by_metric[rule.metric] = (*self.by_metric.get(rule.metric, ()), rule)
        self.keys = frozenset(keys)
        self.defaults: dict[str, dict[str, float]] = {rule.key: rule.bounds() for rule in rules}
        self.override_keys: dict[str, tuple[str, str]] = {
            key: (rule.key, bound) for rule in rules for key, bound in rule.override_keys().items()
        }

    def overridden(self, layers: Iterable[Mapping[str, float]]) -> dict[str, Bounds]:
        """The bounds of every rule, `layers` laid over the configured ones, the first layer lowest.

        Keys that name no bound of any rule are passed over (`unknown_keys` finds them).
        """
        bounds: dict[str, dict[str, float]] = {key: dict(values) for key, values in self.defaults.items()}
        for layer in layers:
            for key, value in layer.items():
                found = self.override_keys.get(key)
                if found is not None:
                    bounds[found[0]][found[1]] = value
        return dict(bounds)

    def unknown_keys(self, layer: Iterable[str]) -> list[str]:
        """The keys of `layer` that name no bound of any rule."""
        return sorted(key for key in layer if key not in self.override_keys)

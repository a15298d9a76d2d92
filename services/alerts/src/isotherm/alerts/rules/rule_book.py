"""What a rule is, and what may be said differently for a device, a home, a region or a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from isotherm.servicekit.settings import Settings

Bounds = Mapping[str, float]
"""The numbers of one rule for one device, by their names."""

Severity = Literal["info", "warning", "critical"]

_LONGEST_MS = 366 * 86_400_000
"""No rule looks further back, and none waits for longer."""
_MOST_INTERVALS = 10_000


class Refusal(NamedTuple):
    """A bound that an override cannot set."""

    key: str
    reason: str
    """`unknown`: no rule has such a bound; `not-allowed`: it cannot have such a value."""
    message: str
    """Names the key, the value and what is allowed."""


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
    for_ms: int = Field(0, ge=0, le=_LONGEST_MS)


class RateRule(BaseMetricRule):
    """A value that has changed by more than `threshold` within `window_ms`.

    A change is never below 0: with a hysteresis of the threshold or more an alert would never be over.
    """

    bound_names = ("threshold", "hysteresis", "window_ms")
    main_bound = "threshold"

    kind: Literal["rate"]
    threshold: float = Field(gt=0, allow_inf_nan=False)
    hysteresis: float = Field(0.0, ge=0, allow_inf_nan=False)
    window_ms: int = Field(600_000, ge=1_000, le=_LONGEST_MS)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        problem = _endless(self.bounds())
        if problem is not None:
            raise ValueError(problem)
        return self


class FlatRule(BaseMetricRule):
    """A value that has not moved by more than `tolerance` for `for_ms`: a sensor that is stuck."""

    bound_names = ("tolerance", "for_ms")
    main_bound = "for_ms"

    kind: Literal["flat"]
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    for_ms: int = Field(21_600_000, ge=1, le=_LONGEST_MS)


class SilentRule(BaseRule):
    """No reading for `intervals` times the device's usual interval, and for `min_ms` at least."""

    bound_names = ("intervals", "min_ms", "interval_ms")
    main_bound = "intervals"

    kind: Literal["silent"]
    intervals: float = Field(5.0, gt=1, le=_MOST_INTERVALS, allow_inf_nan=False)
    min_ms: int = Field(60_000, ge=1_000, le=_LONGEST_MS)
    interval_ms: int = Field(0, ge=0, le=_LONGEST_MS, description="The usual interval; 0 learns it from the readings.")


class UnknownDeviceRule(BaseRule):
    """Readings of a device of which `devices` says nothing, for `for_ms`."""

    bound_names = ("for_ms",)

    kind: Literal["unknown-device"]
    for_ms: int = Field(60_000, ge=0, le=_LONGEST_MS)


def _endless(bounds: Bounds) -> str | None:
    """Why an alert of a rate with these bounds would never be over; None when it can be."""
    if bounds["hysteresis"] < bounds["threshold"]:
        return None
    hysteresis, threshold = bounds["hysteresis"], bounds["threshold"]
    return f"hysteresis = {hysteresis:g} is not allowed: it has to be below the threshold, {threshold:g}"


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
        self._kinds: dict[str, type[BaseRule]] = {rule.key: type(rule) for rule in rules}

    def overridden(self, layers: Iterable[Mapping[str, float]]) -> dict[str, Bounds]:
        """The bounds of every rule, `layers` laid over the configured ones, the first layer lowest.

        What `refusals` finds in a layer is passed over. Where layers together leave a rate a hysteresis that would
        never let it end, half of its threshold is taken.
        """
        bounds: dict[str, dict[str, float]] = {key: dict(values) for key, values in self.defaults.items()}
        for layer in layers:
            for key, value in layer.items():
                if self._refusal(key, value) is None:
                    rule, bound = self.override_keys[key]
                    bounds[rule][bound] = value
        for rule, values in bounds.items():
            if self._kinds[rule] is RateRule and _endless(values) is not None:
                values["hysteresis"] = values["threshold"] / 2
        return dict(bounds)

    def refusals(self, layer: Mapping[str, float]) -> list[Refusal]:
        """What `layer` cannot set, sorted by key: a bound that no rule has, or a value that the bound cannot have."""
        found = (self._refusal(key, layer[key]) for key in sorted(layer))
        return [one for one in found if one is not None]

    def endless(self, layer: Mapping[str, float]) -> list[Refusal]:
        """The rates that could never end, were `layer` alone laid over what is configured."""
        found = []
        for rule in sorted({self.override_keys[key][0] for key in layer}):
            values = dict(self.defaults[rule])
            values.update(
                {self.override_keys[key][1]: layer[key] for key in layer if self.override_keys[key][0] == rule}
            )
            problem = _endless(values) if self._kinds[rule] is RateRule else None
            if problem is not None:
                found.append(Refusal(rule, "not-allowed", f"{rule!r}: {problem}"))
        return found

    def _refusal(self, key: str, value: float) -> Refusal | None:
        found = self.override_keys.get(key)
        if found is None:
            known = ", ".join(sorted(self.override_keys))
            return Refusal(key, "unknown", f"{key!r} is no bound of a rule; known: {known}")
        try:
            _allowed(self._kinds[found[0]], found[1]).validate_python(value)
        except ValidationError as error:
            return Refusal(key, "not-allowed", f"{key!r} = {value!r} is not allowed: {error.errors()[0]['msg']}")
        return None


@cache
def _allowed(rule: type[BaseRule], bound: str) -> TypeAdapter[Any]:
    """What checks a bound as the configuration of its rule does."""
    field = rule.model_fields[bound]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)

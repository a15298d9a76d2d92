"""The rule book: the rules by metric, and the bounds that follow from overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from isotherm.alerts.rules.catalog import MetricRule, Rule
from isotherm.alerts.rules.comparisons import CombinedRule, OffGroupMeanRule
from isotherm.alerts.rules.kinds import (
    BaseRule,
    Bounds,
    RateRule,
    SilentRule,
    UnknownDeviceRule,
    endless_rate,
)

_WITH_DISTANCE: tuple[type[BaseRule], ...] = (RateRule, OffGroupMeanRule)
"""Kinds that measure a distance, so that a hysteresis of the threshold or more would keep an alert open."""


class RejectedOverride(NamedTuple):
    """An override that has no effect."""

    key: str
    reason: str
    """`unknown`: no rule has such a bound; `not-allowed`: the bound cannot have this value."""
    message: str
    """Names the key, the value and what is allowed."""


class RuleBook:
    """The rules by metric. Raises ValueError when two rules have the same name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        keys = [rule.key for rule in rules]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"two rules are named {', '.join(twice)}; give one of them another name")
        self.rules: dict[str, Rule] = {rule.key: rule for rule in rules}
        self.by_metric: dict[str, tuple[MetricRule, ...]] = {}
        self.combined: dict[str, tuple[CombinedRule, ...]] = {}
        """By each of their metrics."""
        self.silent: SilentRule | None = None
        self.unknown_device: UnknownDeviceRule | None = None
        for rule in rules:
            if isinstance(rule, SilentRule):
                self.silent = rule
            elif isinstance(rule, UnknownDeviceRule):
                self.unknown_device = rule
            elif isinstance(rule, CombinedRule):
                for metric in rule.metrics:
                    self.combined[metric] = (*self.combined.get(metric, ()), rule)
            else:
                self.by_metric[rule.metric] = (*self.by_metric.get(rule.metric, ()), rule)
        clashing = sorted(key for key in keys if key.endswith(".silent"))
        if clashing and self.silent is not None and self.silent.per_metric:
            raise ValueError(
                f"the rule {clashing[0]} has the name of a silence of its metric, by the rule `silent`; "
                "give it another name, or set `per_metric = false`"
            )
        self.keys = frozenset(keys)
        self.versions: dict[str, str] = {rule.key: rule.version for rule in rules}
        self.defaults: dict[str, dict[str, float]] = {rule.key: rule.bounds() for rule in rules}
        self.override_keys: dict[str, tuple[str, str]] = {
            key: (rule.key, bound) for rule in rules for key, bound in rule.override_keys().items()
        }
        self._kinds: dict[str, type[BaseRule]] = {rule.key: type(rule) for rule in rules}

    def overridden(self, layers: Iterable[Mapping[str, float]]) -> dict[str, Bounds]:
        """Return the bounds of every rule: the configured ones, overridden by `layers` from first to last.

        Entries that `rejected_overrides` reports have no effect. When the layers together give a rate a hysteresis with
        which its alert would never close, the hysteresis becomes half of the threshold.
        """
        bounds: dict[str, dict[str, float]] = {key: dict(values) for key, values in self.defaults.items()}
        for layer in layers:
            for key, value in layer.items():
                if self._rejection(key, value) is None:
                    rule, bound = self.override_keys[key]
                    bounds[rule][bound] = value
        for rule, values in bounds.items():
            if self._kinds[rule] in _WITH_DISTANCE and endless_rate(values) is not None:
                values["hysteresis"] = values["threshold"] / 2
        return dict(bounds)

    def rejected_overrides(self, layer: Mapping[str, float]) -> list[RejectedOverride]:
        """Return the entries of `layer` without effect by key: unknown bounds, and values that are not allowed."""
        found = (self._rejection(key, layer[key]) for key in sorted(layer))
        return [one for one in found if one is not None]

    def endless_rates(self, layer: Mapping[str, float]) -> list[RejectedOverride]:
        """Return the rates whose alerts would never close with `layer` as the only override."""
        found = []
        for rule in sorted({self.override_keys[key][0] for key in layer}):
            values = dict(self.defaults[rule])
            values.update(
                {self.override_keys[key][1]: layer[key] for key in layer if self.override_keys[key][0] == rule}
            )
            problem = endless_rate(values) if self._kinds[rule] in _WITH_DISTANCE else None
            if problem is not None:
                found.append(RejectedOverride(rule, "not-allowed", f"{rule!r}: {problem}"))
        return found

    def _rejection(self, key: str, value: float) -> RejectedOverride | None:
        found = self.override_keys.get(key)
        if found is None:
            known = ", ".join(sorted(self.override_keys))
            return RejectedOverride(key, "unknown", f"{key!r} is not a bound of a rule; known: {known}")
        try:
            _allowed(self._kinds[found[0]], found[1]).validate_python(value)
        except ValidationError as error:
            return RejectedOverride(
                key, "not-allowed", f"{key!r} = {value!r} is not allowed: {error.errors()[0]['msg']}"
            )
        return None


@cache
def _allowed(rule: type[BaseRule], bound: str) -> TypeAdapter[Any]:
    """Return the validator of a bound, the same as for the rule's configuration."""
    field = rule.model_fields[bound]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)

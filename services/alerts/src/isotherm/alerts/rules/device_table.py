"""What is known of each device, and the bounds that follow from it: device before home, region, model, default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isotherm.alerts.rules.rule_book import Bounds, Refusal, RuleBook

LAYERS = ("model", "region", "home")
"""Attributes of a device whose overrides apply to it, the weakest first; the device's own thresholds beat them all."""

Overrides = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By attribute, then by its value: bounds by override key."""


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """One record of `devices`, with the bounds of every rule for it."""

    attributes: Mapping[str, str | None]
    bounds: Mapping[str, Bounds] = field(repr=False)


class KnownDevices:
    """The newest record of each device; a plain table in memory that one thread fills and another reads."""

    def __init__(self, rules: RuleBook, overrides: Overrides) -> None:
        self._rules = rules
        self._overrides = overrides
        self._devices: dict[str, KnownDevice] = {}
        self.default_bounds: Mapping[str, Bounds] = rules.overridden([])

    def __len__(self) -> int:
        return len(self._devices)

    def get(self, device_id: str) -> KnownDevice | None:
        """What is known of a device; None when nothing is."""
        return self._devices.get(device_id)

    def put(self, device_id: str, record: Mapping[str, Any] | None) -> list[Refusal]:
        """Take the newest record of a device, None removes it; returns its thresholds that have no effect, and why."""
        if record is None:
            self._devices.pop(device_id, None)
            return []
        attributes = {name: record[name] for name in LAYERS}
        thresholds: Mapping[str, float] = record["thresholds"]
        layers = [self._overrides.get(name, {}).get(value or "", {}) for name, value in attributes.items()]
        # Most devices have no bounds of their own: they share one object.
        changed = any(layers) or thresholds
        bounds = self._rules.overridden([*layers, thresholds]) if changed else self.default_bounds
        self._devices[device_id] = KnownDevice(attributes, bounds)
        return self._rules.refusals(thresholds)

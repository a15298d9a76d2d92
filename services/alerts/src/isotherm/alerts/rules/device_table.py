"""Device metadata in memory, and the bounds that follow from it: device over home, region, model and default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isotherm.alerts.rules.kinds import Bounds
from isotherm.alerts.rules.rule_book import RejectedOverride, RuleBook

LAYERS = ("model", "region", "home")
"""The attributes whose overrides apply to a device, weakest first. The device's own thresholds override them all."""

MAX_REMOVED = 100_000
"""Limit of the devices of which the table knows that their record was removed."""

_NO_ATTRIBUTES: Mapping[str, str | None] = dict.fromkeys(LAYERS)

Overrides = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Bounds by override key, by value of the attribute, by attribute."""


@dataclass(frozen=True, slots=True)
class DeviceMetadata:
    """One record of `devices`, with the bounds of every rule for that device."""

    attributes: Mapping[str, str | None]
    bounds: Mapping[str, Bounds] = field(repr=False)
    since_ms: int = -1
    """Time (epoch ms) of the first record that was read; -1 if unknown."""


class DeviceTable:
    """The newest record of each device. One thread writes the table and another reads it."""

    def __init__(self, rules: RuleBook, overrides: Overrides) -> None:
        self._rules = rules
        self._overrides = overrides
        self._devices: dict[str, DeviceMetadata] = {}
        self._removed: dict[str, int] = {}
        self.default_bounds: Mapping[str, Bounds] = rules.overridden([])

    def __len__(self) -> int:
        return len(self._devices)

    def get(self, device_id: str) -> DeviceMetadata | None:
        """Return the metadata of a device; None for a device without a record."""
        return self._devices.get(device_id)

    def attributes(self, device_id: str) -> Mapping[str, str | None]:
        """Return home, region and model of a device; nothing for a device without a record."""
        found = self._devices.get(device_id)
        return _NO_ATTRIBUTES if found is None else found.attributes

    def device_ids(self) -> list[str]:
        """Return the devices that have a record."""
        return list(self._devices)

    def removed_ids(self) -> list[str]:
        """Return the devices whose record was removed, the last `MAX_REMOVED` of them."""
        return list(self._removed)

    def removed_ms(self, device_id: str) -> int | None:
        """Return the time (epoch ms) at which the record of a device was removed; None when it was not."""
        return self._removed.get(device_id)

    def put(self, device_id: str, record: Mapping[str, Any] | None, at_ms: int = -1) -> list[RejectedOverride]:
        """Store the newest record of a device; None removes the device. Return its thresholds that have no effect.

        `at_ms` is the time of the record (epoch ms), -1 if unknown.
        """
        if record is None:
            self._devices.pop(device_id, None)
            self._removed.pop(device_id, None)
            self._removed[device_id] = at_ms
            if len(self._removed) > MAX_REMOVED:
                del self._removed[next(iter(self._removed))]
            return []
        self._removed.pop(device_id, None)
        known = self._devices.get(device_id)
        attributes = {name: record[name] for name in LAYERS}
        thresholds: Mapping[str, float] = record["thresholds"]
        layers = [self._overrides.get(name, {}).get(value or "", {}) for name, value in attributes.items()]
        # Most devices have no overrides. They share one object to save memory.
        has_overrides = any(layers) or thresholds
        bounds = self._rules.overridden([*layers, thresholds]) if has_overrides else self.default_bounds
        self._devices[device_id] = DeviceMetadata(attributes, bounds, at_ms if known is None else known.since_ms)
        return self._rules.rejected_overrides(thresholds)

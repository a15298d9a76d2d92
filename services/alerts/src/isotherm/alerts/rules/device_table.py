"""Device metadata in memory, and the bounds that follow from it: device over home, region, model and default."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    thresholds: Mapping[str, float] = field(default_factory=dict, repr=False)
    """The device's own, as they stand in its record."""


class DeviceTable:
    """The newest record of each device. One thread writes the table, another reads it and changes the rules."""

    def __init__(self, rules: RuleBook, overrides: Overrides) -> None:
        self._rules = rules
        self._overrides = overrides
        self._devices: dict[str, DeviceMetadata] = {}
        self._removed: dict[str, int] = {}
        self._lock = threading.Lock()
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
            with self._lock:
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
        with self._lock:
            bounds = self._bounds(self._rules, self.default_bounds, attributes, thresholds)
            since_ms = at_ms if known is None else known.since_ms
            self._devices[device_id] = DeviceMetadata(attributes, bounds, since_ms, thresholds)
            return self._rules.rejected_overrides(thresholds)

    def reload(self, rules: RuleBook) -> None:
        """Replace the rules, and with them the bounds of every device. No reading may be judged meanwhile."""
        with self._lock:
            default_bounds = rules.overridden([])
            for device_id, one in list(self._devices.items()):
                bounds = self._bounds(rules, default_bounds, one.attributes, one.thresholds)
                self._devices[device_id] = replace(one, bounds=bounds)
            self._rules, self.default_bounds = rules, default_bounds

    def metadata_under(self, rules: RuleBook, device_id: str) -> DeviceMetadata | None:
        """Return the metadata that a device would have with other rules; None for a device without a record."""
        known = self._devices.get(device_id)
        if known is None:
            return None
        bounds = self._bounds(rules, rules.overridden([]), known.attributes, known.thresholds)
        return replace(known, bounds=bounds)

    def _bounds(
        self,
        rules: RuleBook,
        default_bounds: Mapping[str, Bounds],
        attributes: Mapping[str, str | None],
        thresholds: Mapping[str, float],
    ) -> Mapping[str, Bounds]:
        layers = [self._overrides.get(name, {}).get(value or "", {}) for name, value in attributes.items()]
        # Most devices have no overrides. They share one object to save memory.
        return rules.overridden([*layers, thresholds]) if any(layers) or thresholds else default_bounds

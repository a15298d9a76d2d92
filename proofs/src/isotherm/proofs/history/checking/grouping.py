"""Groups of windows: the same numbers for all devices that share an attribute."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.proofs.history.checking.aggregation import TOLERANCE, WindowKey
from isotherm.proofs.history.format import GroupSettings

GroupKey = tuple[str, str, str, int, int]
"""Attribute, group, metric, start, end (epoch ms)."""


class PublishedGroup(NamedTuple):
    """One revision of a group in its topic; ordered by revision."""

    revision: int
    line: int
    numbers: Mapping[str, float]


@dataclass(slots=True)
class ExpectedGroup:
    """What the windows of a group's devices add up to."""

    first_line: int
    devices: int = 0
    readings: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    totals: array[float] = field(default_factory=lambda: array("d"))

    def add(self, values: array[float]) -> None:
        """Add a device's window."""
        self.devices += 1
        self.readings += len(values)
        self.lowest, self.highest = min(self.lowest, *values), max(self.highest, *values)
        self.totals.append(math.fsum(values))

    def difference(self, numbers: Mapping[str, float]) -> str | None:
        """The first of the published numbers that is wrong; None when all are right."""
        exact = {"device_count": self.devices, "count": self.readings, "min": self.lowest, "max": self.highest}
        for name, want in exact.items():
            if numbers[name] != want:
                return f"{name} is {numbers[name]}, not {want}"
        mean = math.fsum(self.totals) / self.readings
        if not math.isclose(numbers["mean"], mean, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"mean is {numbers['mean']}, not {mean}"
        return None


@dataclass
class Groups:
    """The groups that a run published and those that its windows make, over all shards of keys."""

    settings: GroupSettings | None
    devices: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    """The attributes of the devices that have a record in `devices`."""
    expected: dict[GroupKey, ExpectedGroup] = field(default_factory=dict)
    published: dict[GroupKey, list[PublishedGroup]] = field(default_factory=dict)

    def publish(self, line: int, value: Mapping[str, Any]) -> None:
        """Add a TemperatureGroup."""
        key = (value["attribute"], value["group"], value["metric"], value["window_start"], value["window_end"])
        self.published.setdefault(key, []).append(PublishedGroup(value["revision"], line, value))

    def expect(self, window: WindowKey, line: int, values: array[float]) -> None:
        """Add a device's window to the groups of the device."""
        device, metric, start, end = window
        for attribute in self.settings.attributes if self.settings is not None else ():
            unknown = self.settings.unknown_group if self.settings is not None else ""
            group = self.devices.get(device, {}).get(attribute) or unknown
            if group:
                key = (attribute, group, metric, start, end)
                self.expected.setdefault(key, ExpectedGroup(line)).add(values)

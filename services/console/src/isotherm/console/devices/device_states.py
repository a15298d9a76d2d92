"""The newest record of each device in a compacted topic (`devices.latest`, `devices`). Bounded; does no IO.

The cache keeps the encoded bytes and decodes them on demand: so 100,000 records take about 40 MB.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import isotherm.schemas
from isotherm.console.devices.provisioned import Provisioned
from isotherm.kcql.dates import epoch_ms

TOPIC = "devices.latest"
SCHEMA = isotherm.schemas.schema("DeviceState", 1)


class CachedRecord(NamedTuple):
    """The newest record of a device, encoded."""

    device_id: str
    value: bytes


class DeviceRecordCache:
    """A cache of the newest record of each device. Thread-safe."""

    def __init__(self, max_devices: int) -> None:
        """Keep at most `max_devices` devices; the ones that have been silent longest are dropped."""
        self._max_devices = max_devices
        self._lock = threading.Lock()
        self._records: OrderedDict[str, bytes] = OrderedDict()
        self.is_full = False
        """Whether a device was dropped."""

    def __len__(self) -> int:
        """Return the number of devices in the cache."""
        return len(self._records)

    def count_missing_in(self, other: DeviceRecordCache) -> int:
        """Return how many devices are in this cache and not in `other`."""
        with self._lock:
            return sum(1 for one in self._records if one not in other._records)

    def update(self, device_id: str, value: bytes | None) -> None:
        """Store the newest record of a device; None removes the device."""
        with self._lock:
            if value is None:
                self._records.pop(device_id, None)
                return
            self._records[device_id] = value
            self._records.move_to_end(device_id)
            if len(self._records) > self._max_devices:
                self._records.popitem(last=False)
                self.is_full = True

    def get(self, device_id: str) -> CachedRecord | None:
        """Return the newest record of a device; None when it is unknown."""
        value = self._records.get(device_id)
        return None if value is None else CachedRecord(device_id, value)

    def find(self, text: str, after: str, limit: int) -> list[CachedRecord]:
        """Return `limit` devices whose id contains `text` (case-insensitive) and sorts after `after`, sorted by id."""
        folded = text.casefold()
        with self._lock:
            ids = (one for one in self._records if one > after and folded in one.casefold())
            return [CachedRecord(one, self._records[one]) for one in heapq.nsmallest(limit, ids)]


class LatestReading(NamedTuple):
    """The newest reading of one metric."""

    metric: str
    value: float
    unit: str
    at_ms: int
    sequence: int


@dataclass(frozen=True)
class DeviceView:
    """A device with its newest state and its metadata. Times are epoch milliseconds."""

    device_id: str
    last_seen_ms: int = 0
    updated_at_ms: int = 0
    latest: tuple[LatestReading, ...] = ()
    open_alerts: tuple[str, ...] = ()
    has_reported: bool = True
    """Whether the device has ever sent a reading."""
    provisioned: Provisioned | None = None
    """The device's metadata; None if it is not provisioned."""
    problem: str = ""
    """Why the stored records cannot be decoded; empty when they can."""


def device_of(record: Mapping[str, Any]) -> DeviceView:
    """Read a decoded DeviceState record."""
    latest = [
        LatestReading(metric, one["value"], one["unit"], epoch_ms(one["event_time"]), one["sequence"])
        for metric, one in sorted(record["latest"].items())
    ]
    return DeviceView(
        record["device_id"],
        epoch_ms(record["last_seen"]),
        epoch_ms(record["updated_at"]),
        tuple(latest),
        tuple(record["open_alerts"]),
    )

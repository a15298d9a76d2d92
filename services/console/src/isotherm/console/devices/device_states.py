"""The newest record of each device in a compacted topic (`devices.latest`, `devices`): bytes by device, bounded. No IO.

Records are kept as they were written and decoded when somebody looks: a hundred thousand of them are some 40 MB so.
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


class State(NamedTuple):
    """A device and the newest record of it."""

    device_id: str
    value: bytes


class LatestStates:
    """The states that were read; safe to use from any thread."""

    def __init__(self, most: int) -> None:
        """Of more than `most` devices those are left out of which nothing was heard longest."""
        self._most = most
        self._lock = threading.Lock()
        self._states: OrderedDict[str, bytes] = OrderedDict()
        self.is_full = False
        """Whether a device was left out."""

    def __len__(self) -> int:
        """How many devices are kept."""
        return len(self._states)

    def count_beside(self, other: LatestStates) -> int:
        """How many devices are kept here and not in `other`."""
        with self._lock:
            return sum(1 for one in self._states if one not in other._states)

    def take(self, device_id: str, value: bytes | None) -> None:
        """The newest record of a device; None when there is none any more."""
        with self._lock:
            if value is None:
                self._states.pop(device_id, None)
                return
            self._states[device_id] = value
            self._states.move_to_end(device_id)
            if len(self._states) > self._most:
                self._states.popitem(last=False)
                self.is_full = True

    def get(self, device_id: str) -> State | None:
        """The state of a device."""
        value = self._states.get(device_id)
        return None if value is None else State(device_id, value)

    def find(self, text: str, after: str, limit: int) -> list[State]:
        """Devices whose id contains a text (upper and lower case are the same) and comes behind `after`, by id."""
        wanted = text.casefold()
        with self._lock:
            ids = (one for one in self._states if one > after and wanted in one.casefold())
            return [State(one, self._states[one]) for one in heapq.nsmallest(limit, ids)]


class Latest(NamedTuple):
    """The newest reading of one metric."""

    metric: str
    value: float
    unit: str
    at_ms: int
    sequence: int


@dataclass(frozen=True)
class DeviceView:
    """A device as its newest state tells it, and what was known before; times are epoch milliseconds."""

    device_id: str
    last_seen_ms: int = 0
    updated_at_ms: int = 0
    latest: tuple[Latest, ...] = ()
    open_alerts: tuple[str, ...] = ()
    has_reported: bool = True
    """Whether it has said anything, ever."""
    provisioned: Provisioned | None = None
    """None when nobody has made it known."""
    problem: str = ""
    """Why what is known of it cannot be read."""


def device_of(record: Mapping[str, Any]) -> DeviceView:
    """The device that a DeviceState record, decoded, tells of."""
    latest = [
        Latest(metric, one["value"], one["unit"], epoch_ms(one["event_time"]), one["sequence"])
        for metric, one in sorted(record["latest"].items())
    ]
    return DeviceView(
        record["device_id"],
        epoch_ms(record["last_seen"]),
        epoch_ms(record["updated_at"]),
        tuple(latest),
        tuple(record["open_alerts"]),
    )

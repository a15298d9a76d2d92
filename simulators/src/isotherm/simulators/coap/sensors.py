"""The sensors of the test server and their payloads. Pure functions of a seed and of time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from isotherm.simulators.mqtt.devices import Device, make_devices, measure

METRIC = "temperature"


@dataclass(frozen=True, slots=True)
class ResourceState:
    """The state of a resource: one reading of one of its sensors."""

    sensor_id: str
    event_time_ms: int
    temperature: float
    count: int
    """The number of readings of this sensor so far, with this one."""

    def payload(self) -> bytes:
        """Return the payload with the keys and the spelling of the documents' test server."""
        content = {
            "sensorId": self.sensor_id,
            "timestamp": self.event_time_ms,
            "temperature": self.temperature,
            "message": f"Sensor message {self.count}",
        }
        return json.dumps(content, separators=(",", ":")).encode()


class Sensors:
    """The sensors behind one resource; they measure in turn.

    The sensors of resource number `resource` are `Sensor<n>` with n from `resource * count + 1`.
    """

    def __init__(self, resource: int, count: int, seed: int) -> None:
        first = resource * count
        self._rooms: tuple[Device, ...] = make_devices(first + count, seed, {0: 1})[first:]
        self._ids = [f"Sensor{first + number + 1}" for number in range(count)]
        self._chance = random.Random(f"coap {seed} {resource}")
        self._turns = self._take_turns()
        self._last_ms = 0

    def measure(self, now_ms: int) -> ResourceState:
        """Return the next sensor's reading at `now_ms` (epoch); no two readings of a resource have the same time."""
        position, count = next(self._turns)
        self._last_ms = max(now_ms, self._last_ms + 1)
        value = measure(self._rooms[position], METRIC, self._last_ms, self._chance)
        return ResourceState(self._ids[position], self._last_ms, value, count)

    def _take_turns(self) -> Iterator[tuple[int, int]]:
        count = 0
        while True:
            count += 1
            for position in range(len(self._ids)):
                yield position, count

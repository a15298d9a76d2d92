"""The simulated devices and their measurements: pure functions of a seed, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

METRICS = ("temperature", "brightness")
_FIELD = {"temperature": "t", "brightness": "b"}
"""The payload's field for the value of each metric."""

_ROOMS = ("living", "kitchen", "bedroom", "bath", "office", "hall")
_REGIONS = ("north", "east", "south", "west")
_MODELS = ("thermo-1", "thermo-2", "thermo-pro")
_ROOMS_PER_HOME = 4
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Device:
    """One thermostat: where it is installed, how it publishes, and the climate of its room."""

    device_id: str
    home: str
    room: str
    region: str
    model: str
    qos: int
    base_celsius: float
    daily_swing_celsius: float
    """Half the difference between the warmest and the coldest time of day."""
    brightest_lux: float

    def record(self) -> dict[str, Any]:
        """Return the device as a record for `isotherm devices import`."""
        return {
            "device_id": self.device_id,
            "home": self.home,
            "room": self.room,
            "region": self.region,
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement that a device publishes."""

    device_id: str
    metric: str
    event_time_ms: int
    sequence: int
    value: float
    qos: int

    @property
    def topic(self) -> str:
        """The MQTT topic of the reading."""
        return f"devices/{self.device_id}/{self.metric}"

    def payload(self) -> dict[str, Any]:
        """Return the payload before its encoding as JSON."""
        return {
            "id": self.device_id,
            _FIELD[self.metric]: self.value,
            "ts": self.event_time_ms,
            "seq": self.sequence,
        }


@dataclass(frozen=True, slots=True)
class Disorder:
    """The shares of readings whose event time is older than their publishing time, and by how many ms."""

    out_of_order_share: float = 0.0
    out_of_order_by_ms: int = 3_000
    late_share: float = 0.0
    late_by_ms: int = 3_600_000

    def delay_ms(self, chance: random.Random) -> int:
        """Return by how many ms the next reading's event time is older than now."""
        drawn = chance.random()
        if drawn < self.late_share:
            return self.late_by_ms
        if drawn < self.late_share + self.out_of_order_share:
            return chance.randint(1, self.out_of_order_by_ms)
        return 0


def make_devices(count: int, seed: int, qos_weights: Mapping[int, int]) -> tuple[Device, ...]:
    """Return `count` devices; their QoS levels are distributed in proportion to the weights."""
    levels = [level for level, weight in sorted(qos_weights.items()) for _ in range(weight)]
    return tuple(_device(index, seed, levels[index % len(levels)]) for index in range(count))


def _device(index: int, seed: int, qos: int) -> Device:
    home = index // _ROOMS_PER_HOME
    # A text seed gives the same sequence on every Python; a hash does not.
    chance = random.Random(f"device {seed} {index}")
    return Device(
        device_id=f"dev-{index + 1:04d}",
        home=f"home-{home + 1:03d}",
        room=_ROOMS[index % len(_ROOMS)],
        region=_REGIONS[random.Random(f"home {seed} {home}").randrange(len(_REGIONS))],
        model=chance.choice(_MODELS),
        qos=qos,
        base_celsius=chance.uniform(18.0, 22.5),
        daily_swing_celsius=chance.uniform(0.5, 3.0),
        brightest_lux=chance.uniform(150.0, 900.0),
    )


def measure(device: Device, metric: str, time_ms: int, chance: random.Random) -> float:
    """Return the value of `device` at `time_ms` (epoch): a daily curve with noise.

    In UTC, rooms are warmest at 15:00 and coldest at 3:00; it is light from 6:00 to 20:00 and brightest at 13:00.
    """
    hour = time_ms % _DAY_MS / _HOUR_MS
    if metric == "temperature":
        swing = device.daily_swing_celsius * math.cos((hour - 15.0) / 24.0 * 2.0 * math.pi)
        return round(device.base_celsius + swing + chance.gauss(0.0, 0.15), 2)
    daylight = max(0.0, math.cos((hour - 13.0) / 14.0 * math.pi)) if 6.0 <= hour <= 20.0 else 0.0
    return round(max(0.0, device.brightest_lux * daylight * chance.uniform(0.8, 1.0) + chance.uniform(0.0, 2.0)), 1)


def readings(devices: Sequence[Device], seed: int, disorder: Disorder, times_ms: Iterator[int]) -> Iterator[Reading]:
    """Yield one reading for each of `times_ms`, from every device in turn with each metric in turn.

    Sequence numbers rise by one for each device and metric, so that no two readings have the same identity, whatever
    `disorder` does to their times.
    """
    chance = random.Random(f"readings {seed}")
    for number, now_ms in enumerate(times_ms):
        round_number, position = divmod(number, len(devices) * len(METRICS))
        device = devices[position // len(METRICS)]
        metric = METRICS[position % len(METRICS)]
        event_time_ms = now_ms - disorder.delay_ms(chance)
        yield Reading(
            device.device_id,
            metric,
            event_time_ms,
            round_number + 1,
            measure(device, metric, event_time_ms, chance),
            device.qos,
        )

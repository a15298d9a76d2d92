"""A scripted day of devices with twelve incidents whose begin and end are known, to test alert rules against.

Every device measures once in `interval_ms`; every second device numbers its readings. Some readings may come after
later ones, and some may come twice; the incidents stay the same. Times are epoch ms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000
UNKNOWN_DEVICE = "day-0499"
"""The topic `devices` has no record of it before noon. Its readings are neither late nor duplicated."""

Value = Callable[[int, float], float | None]
"""Maps the number of a reading and its normal value to its value, or to None when there is no reading."""


def temperature(device_id: str, value: float, at_ms: int, sequence: int, **more: Any) -> dict[str, Any]:
    """Return a SensorReading record; its ingest time is its event time unless `more` gives another."""
    return {
        "device_id": device_id,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": at_ms,
        "ingest_time": at_ms,
        "sequence": sequence,
        "attributes": {},
        **more,
    }


@dataclass(frozen=True, order=True)
class Incident:
    """One incident: the device, the rule that it breaks, and its begin and end (event time)."""

    device_id: str
    rule: str
    opened_ms: int
    closed_ms: int


@dataclass(frozen=True)
class ScriptedDay:
    """A day of `devices` devices. The same seed gives the same day."""

    devices: int = 500
    interval_ms: int = 600_000
    seed: int = 7
    late_share: float = 0.0
    """Share of the readings that come after one or two later ones of their device."""
    twice_share: float = 0.0
    """Share of the readings that come a second time."""
    incidents: list[Incident] = field(default_factory=list, init=False)

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules that the incidents break."""
        interval_ms = self.interval_ms
        return [
            {
                "kind": kind,
                "metric": "temperature",
                "threshold": threshold,
                "hysteresis": 1,
                "for_ms": 2 * interval_ms,
                "severity": "critical",
            }
            for kind, threshold in (("above", 30), ("below", 10))
        ] + [
            {"kind": "rate", "metric": "temperature", "threshold": 8, "hysteresis": 4, "window_ms": 3 * interval_ms},
            {"kind": "flat", "metric": "temperature", "tolerance": 0.01, "for_ms": 12 * interval_ms},
            {"kind": "silent", "intervals": 5, "cautious_intervals": 5, "min_ms": 1_000},
            {"kind": "unknown-device", "for_ms": 0, "severity": "info"},
        ]

    @property
    def reorder_ms(self) -> int:
        """The longest delay of a late reading."""
        return 3 * self.interval_ms

    @property
    def noon_ms(self) -> int:
        """From noon on the topic `devices` has every device."""
        return START_MS + 12 * HOUR_MS

    def devices_records(self, *, after_noon: bool) -> list[dict[str, Any]]:
        """Return the Device records before noon, or the one that comes at noon."""
        return [
            {"device_id": name, "home": f"home-{number:03}", "room": None, "region": "north", "model": "T1"}
            | {"thresholds": {}}
            for number, name in enumerate(self._names())
            if (name == UNKNOWN_DEVICE) is after_noon
        ]

    def readings(self) -> list[dict[str, Any]]:
        """Return SensorReading records in the order of ingestion; fill `incidents`."""
        self.incidents.clear()
        chance = random.Random(self.seed)
        found: list[dict[str, Any]] = []
        for number, name in enumerate(self._names()):
            begin_ms = START_MS + number * self.interval_ms // self.devices
            script, is_undisturbed = self._script(number, name, begin_ms), name == UNKNOWN_DEVICE
            for reading in self._of_device(number, name, begin_ms, script):
                found.append(reading)
                if is_undisturbed:
                    continue
                if chance.random() < self.late_share:
                    reading["ingest_time"] += int(chance.uniform(1.1, 2.5) * self.interval_ms)
                if chance.random() < self.twice_share:
                    again = chance.randrange(1, self.interval_ms)
                    found.append({**reading, "ingest_time": reading["ingest_time"] + again})
        found.sort(key=lambda reading: (reading["ingest_time"], reading["device_id"]))
        self.incidents.sort()
        return found

    def _names(self) -> list[str]:
        return [f"day-{number:04}" for number in range(self.devices)]

    def _of_device(self, number: int, name: str, begin_ms: int, script: Value) -> Iterator[dict[str, Any]]:
        for index in range(24 * HOUR_MS // self.interval_ms):
            normal = 20 + math.sin(index / 20 + number) + 0.3 * math.sin(index * 2.1 + number)
            value = script(index, normal)
            if value is None:
                continue
            at_ms = begin_ms + index * self.interval_ms
            sequence = index + 1 if number % 2 else 0
            yield temperature(name, round(value, 3), at_ms, sequence, ingest_time=at_ms + 100 + number % 50)

    def _script(self, number: int, name: str, begin_ms: int) -> Value:
        interval_ms = self.interval_ms
        per_hour = HOUR_MS // interval_ms
        first = (2 + number % 7) * per_hour
        """Number of the reading with which the incident begins."""

        def happened(rule: str, begin: int, end: int) -> None:
            times = [begin_ms + index * interval_ms for index in (begin, end)]
            self.incidents.append(Incident(name, rule, *times))

        scripts: Mapping[int, Callable[[], Value]] = {
            # Two thermostats that keep heating; one dips below the threshold, but by less than the hysteresis.
            10: lambda: _hill(happened, "above", first, [30.5, 31, 32, 31, 30.5]),
            51: lambda: _hill(happened, "above", first, [30.5, 31, 31.5, 29.5, 31, 29.8]),
            120: lambda: _hill(happened, "above", first, [31, 33, 35, 33, 31]),
            201: lambda: _hill(happened, "below", first, [9.5, 9, 8, 9.5]),
            202: lambda: _hill(happened, "below", first, [9, 8, 8.5, 9]),
            303: lambda: _leap(happened, first, 29),
            304: lambda: _leap(happened, first, 11),
            350: lambda: _stuck(happened, first, 20),
            351: lambda: _stuck(happened, first, 30),
            400: lambda: _silence(happened, first, 9),
            401: lambda: _silence(happened, first, 14),
            499: lambda: _unknown(happened, (self.noon_ms - begin_ms + interval_ms - 1) // interval_ms),
            # No incidents: too hot for too short a time; stuck for too short a time; late but not silent.
            11: lambda: _hill(None, "above", first, [30.5, 29.5, 30.5]),
            352: lambda: _stuck(None, first, 8),
            402: lambda: _silence(None, first, 3),
        }
        return scripts[number]() if number in scripts else _normal_day


Happened = Callable[[str, int, int], None]


def _hill(happened: Happened | None, rule: str, first: int, top: list[float]) -> Value:
    """Return a script that goes slowly to the first of `top`, through `top`, and slowly back."""
    # The steps are too small to break the rule about the rate of change.
    step = 2.0 if rule == "above" else -2.0
    ascent = [20 + step * index for index in range(1, 5)]
    values = {first - 5 + index: value for index, value in enumerate([*ascent, 20 + 4.5 * step, *top])}
    descent = [20 + step * 4.4, *reversed(ascent)]
    values |= {first + len(top) + index: value for index, value in enumerate(descent)}
    if happened is not None:
        happened(rule, first, first + len(top))
    return lambda index, normal: values.get(index, normal)


def _leap(happened: Happened, first: int, to: float) -> Value:
    """Return a script that jumps to `to`, stays for a while, and goes slowly back.

    The window of the rate rule is three intervals long.
    """
    back = {first + 6 + index: to + (20 - to) * (index + 1) / 5 for index in range(4)}
    happened("rate", first, first + 3)
    return lambda index, normal: to + (normal - 20) / 5 if first <= index < first + 6 else back.get(index, normal)


def _stuck(happened: Happened | None, first: int, times: int) -> Value:
    if happened is not None:
        happened("flat", first, first + times)
    return lambda index, normal: 19.777 if first <= index < first + times else normal


def _silence(happened: Happened | None, first: int, missing: int) -> Value:
    """Return a script without `missing` readings; a device counts as silent after five intervals."""
    if happened is not None:
        happened("silent", first - 1 + 5, first + missing)
    return lambda index, normal: None if first <= index < first + missing else normal


def _unknown(happened: Happened, known_from: int) -> Value:
    happened("unknown-device", 0, known_from)
    return _normal_day


def _normal_day(_index: int, normal: float) -> float:
    return normal

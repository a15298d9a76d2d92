"""Irregular devices from a seed: when each gives a reading, until it dies. Times are ms since the start."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.alerts.engine import rhythm
from isotherm.alerts.engine.device_state import MetricState
from isotherm.alerts.rules.kinds import Bounds

DAY_MS = 86_400_000
DAYS = 7
MIN_DRIFT_LAG_MS = 600_000
"""How far behind a drifting clock begins."""
MAX_FALSE_SILENCES = 10
"""Most silences of living devices, of a thousand that live for two to seven days."""
MAX_MEDIAN_GAPS = 30
"""Within so many of a device's median gaps after its last reading its death is told."""


@dataclass(frozen=True)
class Irregular:
    """One device: its kind, the times at which it measures, and how its clock runs."""

    kind: str
    times: list[int]
    clock_rate: float
    clock_lag_ms: int

    @property
    def median_gap_ms(self) -> float:
        """Return the median of its gaps."""
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return statistics.median(gaps)

    def clock_ms(self, at_ms: int) -> int:
        """Return what its clock shows at a time."""
        return int(at_ms * self.clock_rate) - self.clock_lag_ms


def _poisson(chance: random.Random, usual_ms: float) -> Iterator[float]:
    while True:
        yield chance.expovariate(1.0 / usual_ms)


def _bursts(chance: random.Random, usual_ms: float) -> Iterator[float]:
    """Yield two to six readings together, and a pause of four to fifteen of their gaps."""
    while True:
        for _ in range(chance.randint(1, 5)):
            yield usual_ms * chance.uniform(0.5, 1.5)
        yield usual_ms * chance.uniform(4.0, 15.0)


def _duty_cycle(chance: random.Random, usual_ms: float) -> Iterator[float]:
    """Yield ten to sixty regular readings, and a pause of five to fifteen of their gaps."""
    while True:
        for _ in range(chance.randint(10, 60)):
            yield usual_ms * chance.uniform(0.8, 1.2)
        yield usual_ms * chance.uniform(5.0, 15.0)


def _lossy(chance: random.Random, usual_ms: float) -> Iterator[float]:
    """Yield regular readings of which one in ten is lost."""
    while True:
        gap = usual_ms * chance.uniform(0.95, 1.05)
        while chance.random() < 0.1:
            gap += usual_ms * chance.uniform(0.95, 1.05)
        yield gap


KINDS: dict[str, Callable[[random.Random, float], Iterator[float]]] = {
    "poisson": _poisson,
    "bursts": _bursts,
    "duty cycle": _duty_cycle,
    "drifting clock": _lossy,
}


def devices(count: int, seed: int, shortest_ms: float, longest_ms: float) -> Iterator[Irregular]:
    """Yield devices of each kind in turn. Each lives for two to seven days; its usual gap lies within the limits."""
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        kind = list(KINDS)[number % len(KINDS)]
        usual_ms = math.exp(chance.uniform(math.log(shortest_ms), math.log(longest_ms)))
        end_ms = chance.uniform(2 * DAY_MS, DAYS * DAY_MS)
        times, at_ms = [], chance.uniform(0.0, usual_ms)
        for gap_ms in KINDS[kind](chance, usual_ms):
            times.append(int(at_ms))
            at_ms += max(gap_ms, 1.0)
            if at_ms > end_ms:
                break
        is_drifting = kind == "drifting clock"
        # A clock that runs ahead reaches the limit of `max_skew_ms`: it loses up to 1 %.
        rate, lag_ms = (1.0 - chance.uniform(0.0, 0.01), MIN_DRIFT_LAG_MS) if is_drifting else (1.0, 0)
        yield Irregular(kind, times, rate, lag_ms)


class Judged(NamedTuple):
    """How often a living device was silent by mistake, and when its death was told, in its median gaps."""

    false_silences: int
    told_after: float


def judge(device: Irregular, bounds: Bounds) -> Judged:
    """Judge each gap of a device by its rhythm, as the engine does, and its death."""
    metric, false = MetricState(event_time_ms=device.times[0]), 0
    for at_ms in device.times[1:]:
        gap_ms, limit_ms = at_ms - metric.event_time_ms, rhythm.limit_ms(metric, bounds)
        false += limit_ms is not None and gap_ms > limit_ms
        metric.event_time_ms = at_ms
        rhythm.learn(metric, gap_ms, limit_ms)
    limit_ms = rhythm.limit_ms(metric, bounds)
    return Judged(false, math.inf if limit_ms is None else limit_ms / device.median_gap_ms)

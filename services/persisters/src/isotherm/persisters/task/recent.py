"""Maximum and average of what was seen lately, as Kafka's own metrics give them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Sample:
    count: int = 0
    total: float = 0.0
    highest: float = 0.0


class Recent:
    """Values of the last one to two windows of `window_s` seconds; not safe for several threads."""

    def __init__(self, window_s: float = 30.0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock_s = clock_s
        self._begun_s = clock_s()
        self._now, self._before = _Sample(), _Sample()

    def observe(self, value: float) -> None:
        """Take one value."""
        self._turn()
        self._now.count += 1
        self._now.total += value
        self._now.highest = max(self._now.highest, value)

    @property
    def highest(self) -> float:
        """The highest value; 0 when there was none."""
        self._turn()
        return max(self._now.highest, self._before.highest)

    @property
    def average(self) -> float:
        """The average value; 0 when there was none."""
        self._turn()
        count = self._now.count + self._before.count
        return (self._now.total + self._before.total) / count if count else 0.0

    def _turn(self) -> None:
        passed = int((self._clock_s() - self._begun_s) // self._window_s)
        if passed:
            self._before = self._now if passed == 1 else _Sample()
            self._now = _Sample()
            self._begun_s += passed * self._window_s

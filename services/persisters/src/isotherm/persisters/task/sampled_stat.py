"""Maximum and average over the last samples, as Kafka's own metrics compute them (`SampledStat`: `Max`, `Avg`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Sample:
    count: int = 0
    total: float = 0.0
    highest: float = 0.0


class SampledStat:
    """Values of the last one to two windows of `window_s` seconds; not safe for several threads."""

    def __init__(self, window_s: float = 30.0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock_s = clock_s
        self._start_s = clock_s()
        self._current, self._previous = _Sample(), _Sample()

    def observe(self, value: float) -> None:
        """Add one value."""
        self._advance()
        self._current.count += 1
        self._current.total += value
        self._current.highest = max(self._current.highest, value)

    @property
    def highest(self) -> float:
        """The highest value; 0 without values."""
        self._advance()
        return max(self._current.highest, self._previous.highest)

    @property
    def average(self) -> float:
        """The average value; 0 without values."""
        self._advance()
        count = self._current.count + self._previous.count
        return (self._current.total + self._previous.total) / count if count else 0.0

    def _advance(self) -> None:
        windows = int((self._clock_s() - self._start_s) // self._window_s)
        if windows:
            self._previous = self._current if windows == 1 else _Sample()
            self._current = _Sample()
            self._start_s += windows * self._window_s

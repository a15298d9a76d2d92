"""Readings, windows and cells as reconciliation keeps them. Pure. Times are epoch milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from isotherm.console.trace.model import TopicPartitionOffset

Series = tuple[str, str]
"""Device and metric."""
Measurement = tuple[int, int]
"""Event time and sequence: with its series the identity of a reading."""

Content = tuple[int, int, int, float]
"""Event time, sequence, ingest time and value."""

_SUM_ERROR = 1e-9
"""How far a sum of doubles may be off, as a part of the sum of their magnitudes: the order of adding is not known."""


class StoredReading(NamedTuple):
    """A reading and the place of its record."""

    series: Series
    event_ms: int
    sequence: int
    value: float
    ingest_ms: int
    place: TopicPartitionOffset

    @property
    def measurement(self) -> Measurement:
        """What its copies have in common."""
        return self.event_ms, self.sequence

    @property
    def content(self) -> Content:
        """What its copy in the topic of late readings has too, and one that came at another time has not."""
        return self.event_ms, self.sequence, self.ingest_ms, self.value


class WindowRow(NamedTuple):
    """A published revision of a window."""

    series: Series
    start_ms: int
    end_ms: int
    revision: int
    readings: int
    total: float
    mean: float
    low: float
    high: float
    place: TopicPartitionOffset


class Sum(NamedTuple):
    """Readings as a window counts them."""

    readings: int
    total: float
    magnitude: float
    """The sum of the absolute values."""
    low: float = math.inf
    high: float = -math.inf

    def equals(self, row: WindowRow) -> bool:
        """Whether a window's numbers are these."""
        if self.readings != row.readings or not self.is_near(row.total):
            return False
        if not self.readings or not math.isfinite(self.magnitude):
            return True
        return (self.low, self.high) == (row.low, row.high) and self.is_near(row.mean * self.readings)

    def is_near(self, total: float) -> bool:
        """Whether a sum differs by no more than the order of adding explains."""
        if not math.isfinite(self.total):
            return repr(self.total) == repr(total)
        return abs(self.total - total) <= self.error

    @property
    def error(self) -> float:
        """How far a sum may be off."""
        return _SUM_ERROR * self.magnitude


def sum_of(values: Iterable[float]) -> Sum:
    """Add up."""
    given = list(values)
    bounds = min(given, default=math.inf), max(given, default=-math.inf)
    try:
        return Sum(len(given), math.fsum(given), math.fsum(map(abs, given)), *bounds)
    except (OverflowError, ValueError):
        # Infinite values of both signs, or a sum beyond the range of doubles.
        return Sum(len(given), sum(given), sum(map(abs, given)), *bounds)

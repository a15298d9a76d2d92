"""How many readings of a series lie in each cell of event time, their sum, and where their records are. Pure.

A cell is the longest span of which every window has whole ones: the window itself where windows do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from isotherm.console.reconciliation.readings import Series, Sum

T = TypeVar("T")
TopicPartition = tuple[str, int]
Spans = dict[TopicPartition, tuple[int, int]]
"""By topic and partition the offsets of the first and the last record."""


class Cell:
    """The readings of one series in one span of event time."""

    __slots__ = ("elsewhere", "first", "high", "last", "low", "magnitude", "partition", "readings", "total")

    def __init__(self, value: float, partition: TopicPartition, offset: int) -> None:
        self.readings, self.total, self.magnitude = 1, value, abs(value)
        self.low = self.high = value
        self.partition, self.first, self.last = partition, offset, offset
        self.elsewhere: Spans | None = None
        """Records on other partitions than the first one's: a device whose key was changed, or another topic."""

    def add(self, value: float, partition: TopicPartition, offset: int) -> None:
        """Add a reading."""
        self.readings += 1
        self.total += value
        self.magnitude += abs(value)
        if value < self.low:
            self.low = value
        elif value > self.high:
            self.high = value
        if partition is self.partition:
            self.last = offset
            return
        self.elsewhere = self.elsewhere or {}
        first, _ = self.elsewhere.get(partition, (offset, offset))
        self.elsewhere[partition] = (first, offset)

    @property
    def spans(self) -> Spans:
        """Where its records are."""
        return {self.partition: (self.first, self.last), **(self.elsewhere or {})}


class Cells:
    """All cells."""

    def __init__(self, cell_ms: int) -> None:
        self._cell_ms = cell_ms
        self._partitions: dict[TopicPartition, TopicPartition] = {}
        self._by_start: dict[int, dict[Series, Cell]] = {}

    def add(self, series: Series, event_ms: int, value: float, partition: TopicPartition, offset: int) -> None:
        """Add a reading. One tuple stands for each partition, so that cells can compare them by identity."""
        partition = self._partitions.setdefault(partition, partition)
        start_ms = event_ms - event_ms % self._cell_ms
        of_start = self._by_start.get(start_ms)
        if of_start is None:
            of_start = self._by_start[start_ms] = {}
        cell = of_start.get(series)
        if cell is None:
            of_start[series] = Cell(value, partition, offset)
        else:
            cell.add(value, partition, offset)

    def of(self, series: Series, start_ms: int, end_ms: int) -> list[Cell]:
        """Return the cells of a series in a span of whole cells."""
        found = (self._by_start.get(at, {}).get(series) for at in range(start_ms, end_ms, self._cell_ms))
        return [cell for cell in found if cell is not None]

    def series(self, start_ms: int, end_ms: int) -> Iterator[Series]:
        """Yield the series that have readings in a span of whole cells; one with several cells comes repeatedly."""
        for at in range(start_ms, end_ms, self._cell_ms):
            yield from self._by_start.get(at, ())

    def drop_before(self, time_ms: int, kept: Collection[tuple[int, Series]]) -> None:
        """Forget the cells that begin before a time, but for those of a start and a series that are kept."""
        drop_before(self._by_start, time_ms, kept)


def drop_before(of: dict[int, dict[Series, T]], time_ms: int, kept: Collection[tuple[int, Series]]) -> None:
    """Remove what begins before a time, but for a start and a series that are kept."""
    for start_ms in [one for one in of if one < time_ms]:
        left = {series: of[start_ms][series] for at, series in kept if at == start_ms and series in of[start_ms]}
        if left:
            of[start_ms] = left
        else:
            del of[start_ms]


def total(cells: Iterable[Cell]) -> Sum:
    """Add cells up."""
    given = list(cells)
    return Sum(
        sum(cell.readings for cell in given),
        sum(cell.total for cell in given),
        sum(cell.magnitude for cell in given),
        min((cell.low for cell in given), default=math.inf),
        max((cell.high for cell in given), default=-math.inf),
    )


def union(of: Iterable[Spans]) -> Spans:
    """Return the spans from the first to the last record of all."""
    found: Spans = {}
    for spans in of:
        for partition, (first, last) in spans.items():
            known_first, known_last = found.get(partition, (first, last))
            found[partition] = (min(first, known_first), max(last, known_last))
    return found

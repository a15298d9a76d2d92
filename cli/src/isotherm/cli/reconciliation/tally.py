"""What a span of topics holds: readings by series, windows by key, dead-letter records by origin. Pure.

Times are epoch milliseconds. Of a reading only numbers are kept, some 32 bytes: a span may have millions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.kcql.dates import epoch_ms

TopicPartitionOffset = tuple[str, int, int]
"""Topic, partition and offset."""
Series = tuple[str, str]
"""Device and metric."""


class Span(NamedTuple):
    """A span of event time: from its start until before its end."""

    start_ms: int
    end_ms: int

    def holds(self, time_ms: int) -> bool:
        """Whether a time is in it."""
        return self.start_ms <= time_ms < self.end_ms


class Measured(NamedTuple):
    """One reading of a series."""

    event_ms: int
    sequence: int
    value: float

    @property
    def identity(self) -> tuple[int, int]:
        """What its copies have in common."""
        return self.event_ms, self.sequence


@dataclass
class Readings:
    """The readings of one series; each may come more than once."""

    event_ms: array[int] = field(default_factory=lambda: array("q"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, event_ms: int, sequence: int, value: float) -> None:
        """Add a reading."""
        self.event_ms.append(event_ms)
        self.sequence.append(sequence)
        self.value.append(value)

    def in_order(self) -> list[Measured]:
        """Return the readings by event time, copies one behind the other."""
        return sorted(map(Measured, self.event_ms, self.sequence, self.value))

    def __len__(self) -> int:
        return len(self.event_ms)


class Window(NamedTuple):
    """The newest revision of a window."""

    start_ms: int
    end_ms: int
    revision: int
    readings: int
    total: float


@dataclass
class Tally:
    """Everything that was read for one span."""

    span: Span
    readings: dict[Series, Readings] = field(default_factory=lambda: defaultdict(Readings))
    late: dict[Series, Readings] = field(default_factory=lambda: defaultdict(Readings))
    windows: dict[Series, dict[tuple[int, int], Window]] = field(default_factory=dict)
    window_records: int = 0
    dead: dict[TopicPartitionOffset, set[str]] = field(default_factory=dict)
    """By the place of a record, who has refused it."""
    dead_readings: int = 0
    """Readings of the span that the aggregator has refused."""
    places: dict[tuple[str, int], array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    """By topic and partition, the offsets of the records of the span."""

    def add_dead_letter(self, origin: TopicPartitionOffset, refused_by: str) -> None:
        """Add a dead-letter record: its origin, and the connector or service that has written it."""
        self.dead.setdefault(origin, set()).add(refused_by)

    def add_reading(self, place: TopicPartitionOffset, record: Mapping[str, Any], aggregator: str) -> bool:
        """Add a decoded SensorReading, if it belongs to the span; return whether it does."""
        event_ms = epoch_ms(record["event_time"])
        if not self.span.holds(event_ms):
            return False
        self._note(place)
        if aggregator in self.dead.get(place, ()):
            self.dead_readings += 1
        else:
            series = (record["device_id"], record["metric"])
            self.readings[series].add(event_ms, record["sequence"], record["value"])
        return True

    def add_late(self, record: Mapping[str, Any]) -> None:
        """Add a decoded reading of the topic of late readings, if it belongs to the span."""
        event_ms = epoch_ms(record["event_time"])
        if self.span.holds(event_ms):
            series = (record["device_id"], record["metric"])
            self.late[series].add(event_ms, record["sequence"], record["value"])

    def add_window(self, place: TopicPartitionOffset, record: Mapping[str, Any]) -> None:
        """Add a decoded TemperatureAggregate that overlaps the span."""
        start_ms, end_ms = epoch_ms(record["window_start"]), epoch_ms(record["window_end"])
        if end_ms <= self.span.start_ms or start_ms >= self.span.end_ms:
            return
        self._note(place)
        self.window_records += 1
        of_series = self.windows.setdefault((record["device_id"], record["metric"]), {})
        known = of_series.get((start_ms, end_ms))
        if known is None or record["revision"] >= known.revision:
            window = Window(start_ms, end_ms, record["revision"], record["count"], record["sum"])
            of_series[start_ms, end_ms] = window

    @property
    def records(self) -> int:
        """The readings of the span as records, copies and refused ones among them."""
        return sum(map(len, self.readings.values())) + self.dead_readings

    def refusals(self, names: Iterable[str]) -> Counter[str]:
        """Count the records of the span that were refused by each of `names`."""
        wanted = set(names)
        return Counter(name for origin, by in self.dead.items() if self._has(origin) for name in by & wanted)

    def _has(self, place: TopicPartitionOffset) -> bool:
        topic, partition, offset = place
        offsets = self.places.get((topic, partition), ())
        # Offsets of a partition come in order.
        at = bisect_left(offsets, offset)
        return at < len(offsets) and offsets[at] == offset

    def _note(self, place: TopicPartitionOffset) -> None:
        topic, partition, offset = place
        self.places[topic, partition].append(offset)


def all_series(tally: Tally) -> list[Series]:
    """Return every series of which there is anything, once."""
    return sorted({*tally.readings, *tally.windows, *tally.late})

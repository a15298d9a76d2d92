"""Finds the published windows that a reading is in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from isotherm.console.devices import windows as window_topic
from isotherm.console.devices.windows import Window, key_prefix, window_of
from isotherm.console.records.decoding import decoded
from isotherm.console.records.record import Record
from isotherm.console.trace.model import Reading, State, Step, TopicPartitionOffset
from isotherm.console.trace.scan import Scanner
from isotherm.servicekit.avro import Decoder

_SAMPLE = 50
_LATE_READINGS = "aggregator.late_readings"
_MAX_REVISIONS = 50
_MAX_WINDOWS = 24
"""Of sliding windows a reading may be in thousands."""
_EARLIER_MS = 5_000


class Published(NamedTuple):
    """A published row of a window, with its record."""

    window: Window
    record: Record


class Spans(NamedTuple):
    """How long windows are, how far apart they begin, and how soon after their ends they were published, in ms."""

    length_ms: int
    slide_ms: int
    delay_ms: int = 0


class WindowFinder:
    """Finds windows. `decode` reads with the schema of TemperatureAggregate; methods raise UnavailableError."""

    def __init__(self, scanner: Scanner, decode: Decoder) -> None:
        self._scanner, self._decoded = scanner, decoded(decode, window_of)

    def rows(self, reading: Reading, since_ms: int, *, is_late: bool) -> list[list[Published]]:
        """Return for each window of a reading its rows from the first one that has the reading in it.

        Args:
            reading: the reading.
            since_ms: when its record was appended: of a late reading in the late topic, of another one in the input.
            is_late: whether it is late. Then only corrections have it.
        """
        found: list[list[Published]] = []
        for tried, (key, end_ms, delay_ms) in enumerate(self._keys(reading, since_ms)):
            if self._scanner.is_over or tried == _MAX_WINDOWS:
                self._scanner.notes.append("not every window that the reading may be in was looked for")
                break
            rows = self._rows(key, since_ms, end_ms, delay_ms, is_late=is_late)
            if rows:
                found.append(rows)
        return found

    def _keys(self, reading: Reading, since_ms: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield key, end and usual delay of the windows that a reading may be in, by what was published then."""
        begin_ms = max(since_ms, reading.event_time_ms)
        rows = self._scanner.sample(window_topic.TOPIC, self._published, _SAMPLE, begin_ms)
        seen = {(one.window.start_ms, one.window.end_ms) for one in rows}

        def others(record: Record) -> Published | None:
            row = self._published(record)
            return None if row is None or (row.window.start_ms, row.window.end_ms) in seen else row

        # One moment has windows of one start: how far starts are apart shows in the next ones.
        rows += self._scanner.sample(window_topic.TOPIC, others, _SAMPLE, begin_ms)
        for spans in spans_of(rows or self._scanner.sample(window_topic.TOPIC, self._published, _SAMPLE)):
            for key, end_ms in keys(reading, spans):
                yield key, end_ms, spans.delay_ms

    def _rows(self, key: bytes, since_ms: int, end_ms: int, delay_ms: int, *, is_late: bool) -> list[Published]:
        keep = self._correction if is_late else self._published
        # No window is published before its end, and few are sooner than others were then.
        earliest_ms = max(since_ms, end_ms) - _EARLIER_MS
        usual_ms = max(earliest_ms, end_ms + delay_ms - _EARLIER_MS)
        first = self._scanner.after(window_topic.TOPIC, key, usual_ms, keep, is_noted=usual_ms == earliest_ms)
        if usual_ms > earliest_ms:
            until_ms = None if not first else usual_ms
            first = self._scanner.after(window_topic.TOPIC, key, earliest_ms, keep, until_ms=until_ms) or first
        if not first:
            return []
        more = self._scanner.after(
            window_topic.TOPIC, key, first[0].record.timestamp_ms, self._published, limit=_MAX_REVISIONS
        )
        return first + [one for one in more if one.window.revision > first[0].window.revision]

    def _published(self, record: Record) -> Published | None:
        window = self._decoded(record)
        return None if window is None else Published(window, record)

    def _correction(self, record: Record) -> Published | None:
        row = self._published(record)
        return row if row is not None and is_correction(row) else None


def is_correction(published: Published) -> bool:
    """Whether late readings are merged into a row."""
    return any(name == _LATE_READINGS for name, _ in published.record.headers)


def steps_of(rows: list[Published], *, is_late: bool) -> Iterator[Step]:
    """Yield the step of a reading's first row, and that of the last revision where there is a later one."""
    first, last = rows[0], _last(rows)
    # A correction that was under way when the reading came may still be without it.
    yield _step(State.WINDOWED, first, "in this correction of the window, or the next" if is_late else "in the window")
    if last.window.revision > first.window.revision:
        yield _step(State.REVISED, last, "the window was published again")


def first_and_last(rows: list[Published]) -> list[Record]:
    """Return the records of a reading's first row and, if it is another one, of the last revision."""
    first, last = rows[0], _last(rows)
    return [first.record] if last.window.revision == first.window.revision else [first.record, last.record]


def _last(rows: list[Published]) -> Published:
    return max(rows, key=lambda one: one.window.revision)


def spans_of(rows: Iterable[Published]) -> list[Spans]:
    """Return the spans of published windows: of each length, and how far apart their starts are, as far as they show.

    Windows begin at multiples of that distance; without another start it is their length.
    """
    by_length: dict[int, list[Published]] = {}
    for row in rows:
        by_length.setdefault(row.window.end_ms - row.window.start_ms, []).append(row)
    return [
        Spans(
            length,
            _slide_ms(length, {one.window.start_ms for one in of}),
            max(0, min(one.record.timestamp_ms - one.window.end_ms for one in of)),
        )
        for length, of in sorted(by_length.items())
        if length > 0
    ]


def _slide_ms(length_ms: int, starts: Collection[int]) -> int:
    return min(length_ms, math.gcd(*starts)) or length_ms if len(starts) > 1 else length_ms


def keys(reading: Reading, spans: Spans) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of the windows that a reading's time is in, with their ends in epoch milliseconds."""
    at_ms = reading.event_time_ms
    prefix = key_prefix(reading.device_id) + key_prefix(reading.metric)
    last = at_ms // spans.slide_ms * spans.slide_ms
    for start_ms in range(last, at_ms - spans.length_ms, -spans.slide_ms):
        end_ms = start_ms + spans.length_ms
        yield prefix + f"{start_ms}|{end_ms}".encode(), end_ms


def _step(state: State, published: Published, words: str) -> Step:
    window, record = published
    text = f"{words}: {window.count} readings, mean {window.mean:g}, revision {window.revision}"
    details = {
        "window_start": str(window.start_ms),
        "window_end": str(window.end_ms),
        "revision": str(window.revision),
        "count": str(window.count),
    }
    return Step("aggregator", state, record.timestamp_ms, TopicPartitionOffset.of(record), text, details)

"""Finds the record of the reading that a question is about: by its time, its sequence or its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from isotherm.connector.config.dead_letter_topics import SUFFIX
from isotherm.console.errors import NotFoundError
from isotherm.console.records.decoding import decoded
from isotherm.console.records.paging import Bounds, SearchBudget, Span, TooLargeError, TopicReader
from isotherm.console.records.partitions import partition_of
from isotherm.console.records.record import Record
from isotherm.console.trace.fates import appended_ms
from isotherm.console.trace.model import (
    LATE_TOPIC,
    READING_TOPICS,
    Question,
    Reading,
    StoredReading,
    TopicPartitionOffset,
    reading_of,
)
from isotherm.console.trace.scan import Keep, Scanner
from isotherm.servicekit.avro import Decoder

_AROUND_MS = (-120_000, -5_000, -100, 1_000, 5_000, 15_000, 60_000, 300_000)
"""Bounds of the spans around an event time, in append time: few readings are stored long after they were measured, and
fewer before."""
_LIKELIEST_FIRST = (2, 3, 1, 4, 5, 0, 6)
_NEAR_MS = 600_000
"""How far a reading's time may be from the one that was asked for, to be the nearest one."""
_COPIES_SHARE = 0.1
_SEQUENCE_SHARE = 0.4
_MAX_SAME = 20
_MAX_PROBE_BYTES = 16 * 1024 * 1024
_REACH = 20_000
"""How far a probe reads at least before it takes the device to be absent there."""
_PROBE = 2_000
"""How many records a probe for a device's sequence reads at a time."""


class Locator:
    """Finds readings. `decode` reads with the schema `model.SCHEMA`; every method raises UnavailableError."""

    def __init__(self, scanner: Scanner, decode: Decoder) -> None:
        self._scanner, self._decoded = scanner, decoded(decode, reading_of)

    def find(self, question: Question) -> tuple[StoredReading, bool]:
        """Return the reading, and whether it is exactly the one that was asked for.

        The question must have a place, a time or a sequence. Raises NotFoundError.
        """
        if question.record is not None:
            return self._at(question, question.record), True
        if question.at_ms is not None:
            return self._at_time(question, question.at_ms)
        assert question.sequence is not None
        return self._by_sequence(question, question.sequence), True

    def copies(self, of: StoredReading) -> list[Record]:
        """Return the other records of the same reading that were appended up to a minute after it or 10 s before."""
        record = of.record

        def keep(other: Record) -> Record | None:
            return other if other.offset != record.offset and self._same(other, of.reading) else None

        since_ms, until_ms = record.timestamp_ms - 10_000, record.timestamp_ms + 60_000
        return self._scanner.after(
            record.topic, record.key, since_ms, keep, until_ms=until_ms, limit=_MAX_SAME, share=_COPIES_SHARE
        )

    def _stored(self, record: Record) -> StoredReading | None:
        reading = self._decoded(record)
        return None if reading is None else StoredReading(reading, record)

    def _same(self, record: Record, reading: Reading) -> StoredReading | None:
        """Return what a record holds if it is the same reading."""
        found = self._stored(record)
        return found if found is not None and found.reading.identity == reading.identity else None

    def _at(self, question: Question, place: TopicPartitionOffset) -> StoredReading:
        record = None if place.topic.endswith(SUFFIX) else self._scanner.record(*place)
        if record is None:
            raise NotFoundError(f"there is no record of a reading {place}")
        found = self._stored(record)
        if found is not None and place.topic == LATE_TOPIC:
            found = self._original(found) or found
        if found is None or not _is_wanted(found, question):
            raise NotFoundError(f"the record {place} is no such reading of {question.device_id}")
        return found

    def _at_time(self, question: Question, at_ms: int) -> tuple[StoredReading, bool]:
        nearest = _Nearest(self._stored, question, at_ms)
        found = self._around(question.device_id.encode(), at_ms, nearest.exact)
        if found is None:
            found = self._late(question, at_ms, nearest.exact)
        # A time with milliseconds is that of a reading somewhere, and none that somebody has thought of.
        if found is None and (nearest.found is None or at_ms % 1_000):
            found = self._stored_later(question, at_ms, nearest.exact)
        if found is not None:
            return found, True
        if nearest.found is not None:
            return nearest.found, False
        message = f"no reading of {question.device_id} was stored around this time"
        raise NotFoundError(self._scanner.with_notes(message))

    def _around(self, key: bytes, at_ms: int, exact: Keep[StoredReading]) -> StoredReading | None:
        """Return the reading of exactly this time that was stored around it; note it where there are several."""
        spans = list(pairwise(at_ms + bound for bound in _AROUND_MS))
        for since_ms, until_ms in (spans[one] for one in _LIKELIEST_FIRST):
            found: list[StoredReading] = []
            for topic in READING_TOPICS:
                found += self._scanner.after(topic, key, since_ms, exact, until_ms=until_ms, limit=_MAX_SAME)
            if len({one.reading.identity for one in found}) > 1:
                self._scanner.notes.append("several readings have this time: say metric and sequence")
            if found:
                return found[0]
        return None

    def _late(self, question: Question, at_ms: int, exact: Keep[StoredReading]) -> StoredReading | None:
        """Return a reading of which the late topic has a copy."""
        late = self._scanner.after(LATE_TOPIC, question.device_id.encode(), at_ms, exact)
        return self._original(late[0]) if late else None

    def _stored_later(self, question: Question, at_ms: int, exact: Keep[StoredReading]) -> StoredReading | None:
        """Return a reading that was stored long after it was measured, into a topic that nobody finds late ones in."""
        key = question.device_id.encode()
        if question.sequence and (found := self._with_sequence(question, question.sequence)) is not None:
            return found if found.reading.event_time_ms == at_ms else None
        for topic in READING_TOPICS:
            if stored := self._scanner.after(topic, key, at_ms + _AROUND_MS[-1], exact):
                return stored[0]
        return None

    def _original(self, late: StoredReading) -> StoredReading | None:
        """Return the record of the input that a late reading is a copy of."""
        since_ms = appended_ms(late.record) or late.reading.ingest_time_ms

        def keep(record: Record) -> StoredReading | None:
            return self._same(record, late.reading)

        for topic in READING_TOPICS:
            if found := self._scanner.after(topic, late.record.key, since_ms, keep, until_ms=since_ms + 60_000):
                return found[0]
        return None

    def _by_sequence(self, question: Question, wanted: int) -> StoredReading:
        found = self._with_sequence(question, wanted)
        if found is None:
            message = (
                f"no reading {wanted} of {question.device_id} was found: either there is none, or the device's numbers "
                "do not ascend; ask by time then, and by metric where each metric is numbered by itself"
            )
            raise NotFoundError(self._scanner.with_notes(message))
        return found

    def _with_sequence(self, question: Question, wanted: int) -> StoredReading | None:
        for topic in READING_TOPICS:
            with self._scanner.reading(topic) as reader:
                if reader is None:
                    continue
                partition = partition_of(question.device_id.encode(), len(reader.bounds))
                budget = self._scanner.budget(_SEQUENCE_SHARE)
                probe = _Probe(reader, partition, self._stored, question, budget)
                found = _interpolated(probe, reader.bounds[partition], wanted)
                if found is not None:
                    return found
                if probe.is_over:
                    self._scanner.notes.append(f"the search by sequence in {topic} had no time left")
        return None


def _interpolated(probe: _Probe, bounds: Bounds, wanted: int) -> StoredReading | None:
    """Search a partition in which the device's sequences ascend, where they would be if they did so evenly.

    Every second probe halves the span of offsets, so that an uneven device costs the logarithm of it, too. Where the
    device was silent for long, what is before that and what is after it are searched one after the other.
    """
    last = probe.last(bounds.low, bounds.high)
    if last is None:
        return None
    spans = [_Span(bounds.low, 0, last.record.offset + 1, last.reading.sequence)]
    halves = False
    while spans and not probe.is_over:
        span = spans.pop()
        if span.high - span.low <= _PROBE:
            found = next((one for one in probe.all(span.low, span.high) if one.reading.sequence == wanted), None)
            if found is not None:
                return found
            continue
        at = (span.low + span.high) // 2 if halves else span.guess(wanted)
        halves = not halves
        end = min(span.high, at + max(_REACH, 4 * span.gap))
        found = probe.first(at, end)
        if found is not None and found.reading.sequence == wanted:
            return found
        if found is not None and found.reading.sequence < wanted:
            spans.append(span._replace(low=found.record.offset + 1, low_sequence=found.reading.sequence))
        elif found is not None:
            spans.append(span._replace(high=at, high_sequence=found.reading.sequence))
        else:
            spans.append(span._replace(high=at))
            if end < span.high:
                spans.append(span._replace(low=end))
    return None


class _Span(NamedTuple):
    """Offsets between which a sequence is, with the sequences near them."""

    low: int
    low_sequence: int
    high: int
    high_sequence: int

    @property
    def gap(self) -> int:
        """How many offsets are between two readings of the device, if they ascended evenly."""
        return (self.high - self.low) // self._steps

    @property
    def _steps(self) -> int:
        return max(1, self.high_sequence - self.low_sequence)

    def guess(self, wanted: int) -> int:
        """Return the offset of a sequence if they ascended evenly; a little before it, but within the span."""
        at = self.low + (self.high - self.low) * (wanted - self.low_sequence) // self._steps - self.gap // 2
        return min(max(at, self.low), self.high - 1)


class _Probe:
    """Reads a device's readings of one partition, within a budget."""

    def __init__(
        self,
        reader: TopicReader,
        partition: int,
        stored: Keep[StoredReading],
        question: Question,
        budget: SearchBudget,
    ) -> None:
        self._reader, self._partition, self._stored, self._budget = reader, partition, stored, budget
        self._question = Question(question.device_id, question.metric)

    @property
    def is_over(self) -> bool:
        return self._budget.is_spent

    def first(self, start: int, end: int) -> StoredReading | None:
        return next(self.all(start, end), None)

    def last(self, start: int, end: int) -> StoredReading | None:
        """Return the last reading of a span: read backwards, in spans that grow."""
        step = _PROBE
        while end > start and not self.is_over:
            begin = max(start, end - step)
            found = list(self.all(begin, end))
            if found:
                return found[-1]
            end, step = begin, step * 2
        return None

    def all(self, start: int, end: int) -> Iterator[StoredReading]:
        key = self._question.device_id.encode()
        for at in range(start, end, _PROBE):
            if self.is_over:
                return
            try:
                fetched = self._reader.read({self._partition: Span(at, min(at + _PROBE, end))}, key, _MAX_PROBE_BYTES)
            except TooLargeError as error:
                # A device whose records are so large is found by its time.
                self._budget.spend(error.read_bytes)
                continue
            self._budget.spend(fetched.bytes)
            for found in map(self._stored, fetched.records.get(self._partition, ())):
                if found is not None and _is_wanted(found, self._question):
                    yield found


def _is_wanted(found: StoredReading, question: Question) -> bool:
    """Whether a reading is of the device, and where the question has them of the metric and sequence."""
    return (
        found.reading.device_id == question.device_id
        and question.metric in ("", found.reading.metric)
        and question.sequence in (None, found.reading.sequence)
    )


class _Nearest:
    """Remembers the reading that was measured nearest to a time; `exact` returns one that was measured just then."""

    def __init__(self, stored: Keep[StoredReading], question: Question, at_ms: int) -> None:
        self._stored, self._question, self._at_ms = stored, question, at_ms
        self.found: StoredReading | None = None

    def exact(self, record: Record) -> StoredReading | None:
        found = self._stored(record)
        if found is None or not _is_wanted(found, self._question):
            return None
        nearest_ms = _NEAR_MS if self.found is None else self._distance_ms(self.found)
        if self._distance_ms(found) < nearest_ms:
            self.found = found
        return found if found.reading.event_time_ms == self._at_ms else None

    def _distance_ms(self, of: StoredReading) -> int:
        return abs(of.reading.event_time_ms - self._at_ms)

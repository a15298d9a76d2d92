"""Pages of a topic's records, backwards from the end or forwards from an offset, merged by time. Pure.

A page is described by one offset for each partition: records before it are older, records from it on are newer. So
consecutive pages neither repeat nor omit a record, even while records are written, and the console keeps no state
between two requests.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from isotherm.console.records.record import NUMBER, Record

Positions = Mapping[int, int]
"""An offset for each partition."""
Item = TypeVar("Item")

_OFFSET = re.compile(r"[0-9]{1,19}")
_MAX_CHUNK = 20_000
_GROWTH = 4
_SHRINK = 8
_ROUND_BYTES = 16 * 1024 * 1024


class Bounds(NamedTuple):
    """The offsets of a partition: from `low` to before `high`."""

    low: int
    high: int


class Span(NamedTuple):
    """A range of offsets of one partition: from `start` to before `end`."""

    start: int
    end: int


class FetchedRecords(NamedTuple):
    """The records of some spans, by partition. Partitions whose span holds no record are left out."""

    records: Mapping[int, Sequence[Record]]
    """By offset, without the records whose key does not match."""
    first_ms: Mapping[int, int]
    """Timestamp of the first record, whether its key matches or not; epoch milliseconds."""
    last_ms: Mapping[int, int]
    records_read: int
    bytes: int


class TooLargeError(Exception):
    """Some spans hold more bytes than may be read at once."""

    def __init__(self, read_bytes: int) -> None:
        super().__init__(f"more than {read_bytes} bytes")
        self.read_bytes = read_bytes


class TopicReader(Protocol):
    """Reads one topic, as long as its context is open."""

    @property
    def bounds(self) -> Mapping[int, Bounds]:
        """Offsets of each partition at the time when the reader was opened."""

    def read(self, spans: Mapping[int, Span], key_prefix: bytes, max_bytes: int | None) -> FetchedRecords:
        """Read the records of spans whose key begins with `key_prefix`.

        Raises TooLargeError when all records take more than `max_bytes`, UnavailableError when Kafka does not answer.
        """

    def offsets_at(self, time_ms: int) -> Positions:
        """Return the offsets of the first records at `time_ms` or later; a partition's end where there is none.

        Raises UnavailableError.
        """


def record_at(reader: TopicReader, partition: int, offset: int) -> Record | None:
    """Return one record; None where there is none. Raises UnavailableError."""
    bounds = reader.bounds.get(partition)
    # A consumer that is told to begin behind the end would begin with the first record.
    if bounds is None or not bounds.low <= offset < bounds.high:
        return None
    found = reader.read({partition: Span(offset, offset + 1)}, b"", None).records.get(partition, ())
    return next((one for one in found if one.offset == offset), None)


class SearchBudget:
    """The time and bytes that a search may still take."""

    def __init__(self, clock_s: Callable[[], float], *, max_ms: int, max_bytes: int) -> None:
        self._clock_s, self._ends_s, self._bytes_left = clock_s, clock_s() + max_ms / 1000, max_bytes

    def spend(self, read_bytes: int) -> None:
        """Subtract bytes that were read."""
        self._bytes_left -= read_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the search must end."""
        return self._bytes_left <= 0 or self._clock_s() >= self._ends_s


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page of records, the newest first."""

    items: tuple[Item, ...]
    older: Positions
    """For each partition the offset before which the next older page ends."""
    newer: Positions
    """For each partition the offset at which the next newer page starts."""
    has_older: bool
    has_newer: bool
    is_cut: bool
    """Whether the search ran out of time or bytes before the page was full; it continues at `older` or `newer`."""
    records_read: int
    """How many records were read for it, matching or not."""
    reached_ms: int | None
    """Approximate time (epoch ms) at which the next page continues; None when there is no next page."""


class _Found(NamedTuple, Generic[Item]):
    offset: int
    time_ms: int
    item: Item


@dataclass
class _PartitionCursor(Generic[Item]):
    """The progress of a search in one partition."""

    partition: int
    reached: int
    """The search has read all offsets between its start and this one."""
    end: int
    time_ms: int | None = None
    """Timestamp of the record that was read last."""
    found: deque[_Found[Item]] = field(default_factory=deque)

    @property
    def is_exhausted(self) -> bool:
        return self.reached == self.end

    @property
    def next_ms(self) -> int | None:
        """Timestamp of the next record, as far as known; None at the end of the partition."""
        if self.found:
            return self.found[0].time_ms
        return None if self.is_exhausted else self.time_ms


class _Scan(NamedTuple, Generic[Item]):
    taken: list[Item]
    reached: Positions
    is_cut: bool
    time_ms: int | None


class Search(Generic[Item]):
    """A search for records of one topic, within a budget."""

    def __init__(
        self,
        reader: TopicReader,
        keep: Callable[[Record], Item | None],
        budget: SearchBudget,
        *,
        limit: int,
        key_prefix: bytes = b"",
        first_chunk: int | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            reader: reads the topic.
            keep: turns a record into an item of the page, or returns None for a record that does not match.
            budget: ends the search early.
            limit: how many items a page has at most.
            key_prefix: only records whose key begins with it are passed to `keep`.
            first_chunk: how many records of a partition are read first, `limit` if None. Later chunks are larger.
        """
        self._reader, self._keep, self._budget = reader, keep, budget
        self._limit, self._key_prefix = limit, key_prefix
        self._chunk, self._records_read, self._has_read = first_chunk or limit, 0, False

    def older(self, before: Positions, floor: Positions | None = None) -> Page[Item]:
        """Return the newest records before the offsets `before` and not before `floor`. Raises UnavailableError."""
        bounds = self._reader.bounds
        lows = {partition: of.low for partition, of in bounds.items()}
        ends = {partition: _clamp(bounds[partition], (floor or lows)[partition]) for partition in before}
        starts = {partition: max(ends[partition], _clamp(bounds[partition], at)) for partition, at in before.items()}
        scan = self._scan(starts, ends, forwards=False)
        return self._page(scan, scan.taken, older=scan.reached, newer=starts)

    def newer(self, after: Positions, ceiling: Positions | None = None) -> Page[Item]:
        """Return the oldest records from the offsets `after` on, and before `ceiling`. Raises UnavailableError."""
        bounds = self._reader.bounds
        starts = {partition: _clamp(bounds[partition], at) for partition, at in after.items()}
        highs = {partition: of.high for partition, of in bounds.items()}
        ends = {
            partition: max(start, _clamp(bounds[partition], (ceiling or highs)[partition]))
            for partition, start in starts.items()
        }
        scan = self._scan(starts, ends, forwards=True)
        return self._page(scan, scan.taken[::-1], older=starts, newer=scan.reached)

    def _page(self, scan: _Scan[Item], items: Sequence[Item], older: Positions, newer: Positions) -> Page[Item]:
        bounds = self._reader.bounds
        return Page(
            tuple(items),
            older,
            newer,
            has_older=any(at > bounds[partition].low for partition, at in older.items()),
            has_newer=any(at < bounds[partition].high for partition, at in newer.items()),
            is_cut=scan.is_cut,
            records_read=self._records_read,
            reached_ms=scan.time_ms,
        )

    def _scan(self, starts: Positions, ends: Positions, *, forwards: bool) -> _Scan[Item]:
        """Merge the partitions by time: take from the one that is behind, and read on where nothing is buffered."""
        cursors = [_PartitionCursor[Item](partition, start, ends[partition]) for partition, start in starts.items()]
        taken: list[Item] = []
        while len(taken) < self._limit:
            # Read at least one chunk whatever the budget is, so that every search makes progress.
            is_spent = self._has_read and self._budget.is_spent
            usable = [cursor for cursor in cursors if cursor.found or not (cursor.is_exhausted or is_spent)]
            if not usable:
                break
            cursor = min(usable, key=lambda one: _order(one, forwards=forwards))
            if cursor.found:
                taken.append(cursor.found.popleft().item)
            else:
                self._advance([one for one in cursors if not one.found and not one.is_exhausted], forwards=forwards)
        times = [time_ms for cursor in cursors if (time_ms := cursor.next_ms) is not None]
        return _Scan(
            taken,
            {cursor.partition: _resume_offset(cursor, forwards=forwards) for cursor in cursors},
            is_cut=len(taken) < self._limit and any(not cursor.is_exhausted for cursor in cursors),
            time_ms=(min(times) if forwards else max(times)) if times else None,
        )

    def _advance(self, cursors: Iterable[_PartitionCursor[Item]], *, forwards: bool) -> None:
        """Read the next chunk of each of these partitions; shrink the chunk when it holds too many bytes."""
        chosen = {cursor.partition: cursor for cursor in cursors}
        spans = {partition: _next_span(cursor, self._chunk, forwards=forwards) for partition, cursor in chosen.items()}
        try:
            # A single record is read whatever its size: otherwise no page could ever show it.
            fetched = self._reader.read(spans, self._key_prefix, _ROUND_BYTES if self._chunk > 1 else None)
        except TooLargeError as error:
            self._budget.spend(error.read_bytes)
            self._chunk = max(1, self._chunk // _SHRINK)
            return
        self._budget.spend(fetched.bytes)
        self._records_read, self._has_read = self._records_read + fetched.records_read, True
        if fetched.bytes * _GROWTH <= _ROUND_BYTES:
            self._chunk = min(self._chunk * _GROWTH, _MAX_CHUNK)
        times = fetched.last_ms if forwards else fetched.first_ms
        for partition, cursor in chosen.items():
            cursor.reached = spans[partition].end if forwards else spans[partition].start
            cursor.time_ms = times.get(partition, cursor.time_ms)
            records = fetched.records.get(partition, ())
            for record in records if forwards else reversed(records):
                item = self._keep(record)
                if item is not None:
                    cursor.found.append(_Found(record.offset, record.timestamp_ms, item))
                if len(cursor.found) == self._limit:
                    # No more records fit on the page, so no more are decoded and buffered.
                    cursor.reached = record.offset + 1 if forwards else record.offset
                    break


def _clamp(bounds: Bounds, offset: int) -> int:
    return min(max(offset, bounds.low), bounds.high)


def _order(cursor: _PartitionCursor[Item], *, forwards: bool) -> float:
    """Sort key of a partition: its progress in time. A partition that was not read yet comes first."""
    time_ms = cursor.next_ms
    if time_ms is None:
        return float("-inf")
    return time_ms if forwards else -time_ms


def _next_span(cursor: _PartitionCursor[Item], chunk: int, *, forwards: bool) -> Span:
    if forwards:
        return Span(cursor.reached, min(cursor.end, cursor.reached + chunk))
    return Span(max(cursor.end, cursor.reached - chunk), cursor.reached)


def _resume_offset(cursor: _PartitionCursor[Item], *, forwards: bool) -> int:
    """Return the offset where the next page continues; found records that were not taken belong to that page."""
    if not cursor.found:
        return cursor.reached
    return cursor.found[0].offset + (0 if forwards else 1)


def positions_of(text: str) -> Positions:
    """Parse positions of a link: `partition:offset` pairs separated by commas. Raises ValueError."""
    found = {}
    for part in text.split(","):
        partition, _, offset = part.partition(":")
        if not (NUMBER.fullmatch(partition) and _OFFSET.fullmatch(offset)):
            raise ValueError(f"{part[:100]!r} is not a position; expected partition:offset")
        found[int(partition)] = int(offset)
    return found


def positions_text(positions: Positions) -> str:
    """Format positions for a link."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))

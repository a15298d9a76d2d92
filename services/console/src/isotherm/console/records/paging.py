"""Pages of a topic, from its end backwards or from a place forwards, all partitions side by side by time. No IO.

A page is told by one offset for each partition: everything before them is older, everything from them on is newer. So
following pages neither repeat a record nor leave one out, whatever is written meanwhile, and nothing is kept between
two requests.
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
Shown = TypeVar("Shown")

_OFFSET = re.compile(r"[0-9]{1,19}")
_MOST_CHUNK = 20_000
_GROWTH = 4
_SHRINK = 8
_ROUND_BYTES = 16 * 1024 * 1024


class Bounds(NamedTuple):
    """What a partition holds: offsets from `low` to before `high`."""

    low: int
    high: int


class Span(NamedTuple):
    """Offsets of one partition from `start` to before `end`."""

    start: int
    end: int


class Fetched(NamedTuple):
    """What spans hold, partition by partition; a span without any record is not in it."""

    records: Mapping[int, Sequence[Record]]
    """By offset; without those whose key was not wanted."""
    first_ms: Mapping[int, int]
    """The first record's time, wanted or not; epoch milliseconds."""
    last_ms: Mapping[int, int]
    looked_at: int
    bytes: int


class TooLargeError(Exception):
    """Spans hold more bytes than were to be read."""

    def __init__(self, read_bytes: int) -> None:
        super().__init__(f"more than {read_bytes} bytes")
        self.read_bytes = read_bytes


class TopicReader(Protocol):
    """Reads one topic, while it is held."""

    @property
    def bounds(self) -> Mapping[int, Bounds]:
        """What each partition held when the reader was made."""

    def read(self, spans: Mapping[int, Span], key_prefix: bytes, most_bytes: int | None) -> Fetched:
        """The records of spans; those of other keys are only looked at.

        Raises TooLargeError, and UnavailableError when Kafka does not answer.
        """

    def at_time(self, time_ms: int) -> Positions:
        """The first records of that time or younger; the end where there is none. Raises UnavailableError."""


class Budget:
    """How long, and how many bytes, a search may take."""

    def __init__(self, clock_s: Callable[[], float], *, most_ms: int, most_bytes: int) -> None:
        self._clock_s, self._ends_s, self._bytes_left = clock_s, clock_s() + most_ms / 1000, most_bytes

    def spend(self, read_bytes: int) -> None:
        """So much was read."""
        self._bytes_left -= read_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the search has to end."""
        return self._bytes_left <= 0 or self._clock_s() >= self._ends_s


@dataclass(frozen=True)
class Page(Generic[Shown]):
    """Some records, the newest first."""

    items: tuple[Shown, ...]
    older: Positions
    """Ends before which the next older page lies."""
    newer: Positions
    """Starts from which the next newer page lies."""
    has_older: bool
    has_newer: bool
    is_cut: bool
    """Whether time or bytes ended the search before it was full; it goes on at `older` or `newer`."""
    looked_at: int
    """Records that were read for it, wanted or not."""
    reached_ms: int | None
    """About where in time (epoch ms) the next page goes on; None when there is none."""


class _Found(NamedTuple, Generic[Shown]):
    offset: int
    time_ms: int
    item: Shown


@dataclass
class _Lane(Generic[Shown]):
    """One partition on the way."""

    partition: int
    reached: int
    """From where the walk began to here all was looked at."""
    end: int
    time_ms: int | None = None
    """Of the record that was looked at last."""
    found: deque[_Found[Shown]] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        return self.reached == self.end

    @property
    def goes_on_ms(self) -> int | None:
        """The time of what comes next, as far as it is known; None where nothing does."""
        if self.found:
            return self.found[0].time_ms
        return None if self.is_over else self.time_ms


class _Walked(NamedTuple, Generic[Shown]):
    taken: list[Shown]
    reached: Positions
    is_cut: bool
    time_ms: int | None


class Search(Generic[Shown]):
    """What is looked for in a topic, and how far."""

    def __init__(
        self,
        reader: TopicReader,
        keep: Callable[[Record], Shown | None],
        budget: Budget,
        *,
        limit: int,
        key_prefix: bytes = b"",
    ) -> None:
        """`keep` makes of a record what the page has of it, None when it is not wanted; `limit` is of the page."""
        self._reader, self._keep, self._budget = reader, keep, budget
        self._limit, self._key_prefix = limit, key_prefix
        self._chunk, self._looked_at, self._has_read = limit, 0, False

    def older(self, before: Positions, floor: Positions | None = None) -> Page[Shown]:
        """The newest records before these offsets, and not before `floor`. Raises UnavailableError."""
        bounds = self._reader.bounds
        lows = {partition: of.low for partition, of in bounds.items()}
        ends = {partition: _within(bounds[partition], (floor or lows)[partition]) for partition in before}
        starts = {partition: max(ends[partition], _within(bounds[partition], at)) for partition, at in before.items()}
        walked = self._walk(starts, ends, forwards=False)
        return self._page(walked, walked.taken, older=walked.reached, newer=starts)

    def newer(self, after: Positions) -> Page[Shown]:
        """The oldest records from these offsets on. Raises UnavailableError."""
        bounds = self._reader.bounds
        starts = {partition: _within(bounds[partition], at) for partition, at in after.items()}
        ends = {partition: bounds[partition].high for partition in after}
        walked = self._walk(starts, ends, forwards=True)
        return self._page(walked, walked.taken[::-1], older=starts, newer=walked.reached)

    def _page(self, walked: _Walked[Shown], items: Sequence[Shown], older: Positions, newer: Positions) -> Page[Shown]:
        bounds = self._reader.bounds
        return Page(
            tuple(items),
            older,
            newer,
            has_older=any(at > bounds[partition].low for partition, at in older.items()),
            has_newer=any(at < bounds[partition].high for partition, at in newer.items()),
            is_cut=walked.is_cut,
            looked_at=self._looked_at,
            reached_ms=walked.time_ms,
        )

    def _walk(self, starts: Positions, ends: Positions, *, forwards: bool) -> _Walked[Shown]:
        """Take from the lane that has come least far in time, reading on where it has nothing in hand."""
        lanes = [_Lane[Shown](partition, start, ends[partition]) for partition, start in starts.items()]
        taken: list[Shown] = []
        while len(taken) < self._limit:
            # However little it may cost, a search comes a step further.
            is_spent = self._has_read and self._budget.is_spent
            usable = [lane for lane in lanes if lane.found or not (lane.is_over or is_spent)]
            if not usable:
                break
            lane = min(usable, key=lambda one: _order(one, forwards=forwards))
            if lane.found:
                taken.append(lane.found.popleft().item)
            else:
                self._advance([one for one in lanes if not one.found and not one.is_over], forwards=forwards)
        times = [time_ms for lane in lanes if (time_ms := lane.goes_on_ms) is not None]
        return _Walked(
            taken,
            {lane.partition: _place(lane, forwards=forwards) for lane in lanes},
            is_cut=len(taken) < self._limit and any(not lane.is_over for lane in lanes),
            time_ms=(min(times) if forwards else max(times)) if times else None,
        )

    def _advance(self, lanes: Iterable[_Lane[Shown]], *, forwards: bool) -> None:
        """Read the next chunk of each of these lanes; a smaller one when there is too much in it."""
        chosen = {lane.partition: lane for lane in lanes}
        spans = {partition: _next_span(lane, self._chunk, forwards=forwards) for partition, lane in chosen.items()}
        try:
            # One record is read whatever its size: it would never be seen else.
            fetched = self._reader.read(spans, self._key_prefix, _ROUND_BYTES if self._chunk > 1 else None)
        except TooLargeError as error:
            self._budget.spend(error.read_bytes)
            self._chunk = max(1, self._chunk // _SHRINK)
            return
        self._budget.spend(fetched.bytes)
        self._looked_at, self._has_read = self._looked_at + fetched.looked_at, True
        if fetched.bytes * _GROWTH <= _ROUND_BYTES:
            self._chunk = min(self._chunk * _GROWTH, _MOST_CHUNK)
        times = fetched.last_ms if forwards else fetched.first_ms
        for partition, lane in chosen.items():
            lane.reached = spans[partition].end if forwards else spans[partition].start
            lane.time_ms = times.get(partition, lane.time_ms)
            records = fetched.records.get(partition, ())
            for record in records if forwards else reversed(records):
                item = self._keep(record)
                if item is not None:
                    lane.found.append(_Found(record.offset, record.timestamp_ms, item))
                if len(lane.found) == self._limit:
                    # No more of it fits on the page, so no more of it is decoded and held.
                    lane.reached = record.offset + 1 if forwards else record.offset
                    break


def _within(bounds: Bounds, offset: int) -> int:
    return min(max(offset, bounds.low), bounds.high)


def _order(lane: _Lane[Shown], *, forwards: bool) -> float:
    """How far a lane has come in time; one that was not read yet comes first."""
    time_ms = lane.goes_on_ms
    if time_ms is None:
        return float("-inf")
    return time_ms if forwards else -time_ms


def _next_span(lane: _Lane[Shown], chunk: int, *, forwards: bool) -> Span:
    if forwards:
        return Span(lane.reached, min(lane.end, lane.reached + chunk))
    return Span(max(lane.end, lane.reached - chunk), lane.reached)


def _place(lane: _Lane[Shown], *, forwards: bool) -> int:
    """Where the next page goes on in a lane: what was found and not taken belongs to it."""
    if not lane.found:
        return lane.reached
    return lane.found[0].offset + (0 if forwards else 1)


def positions_of(text: str) -> Positions:
    """Positions as a link has them, `partition:offset` separated by commas. Raises ValueError."""
    found = {}
    for part in text.split(","):
        partition, _, offset = part.partition(":")
        if not (NUMBER.fullmatch(partition) and _OFFSET.fullmatch(offset)):
            raise ValueError(f"{part[:100]!r} is no position; expected partition:offset")
        found[int(partition)] = int(offset)
    return found


def positions_text(positions: Positions) -> str:
    """Positions for a link."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))

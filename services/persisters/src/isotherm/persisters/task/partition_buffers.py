"""Lanes: what happens to the records of each assigned partition, as a state machine without IO.

A lane holds the records that wait, at most one prepared batch, and at most one batch that is being written. Because
one batch at a time is written and batches follow each other in offset order, the position after the last finished
batch is always the highest contiguous one. See docs/adr/0040.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from isotherm.persisters.consuming.ownership import Lease, Ownership
from isotherm.persisters.task.accounting import Counts
from isotherm.persisters.task.in_flight_batch import Record, Work
from isotherm.servicekit.backoff import Backoff

Partition = tuple[str, int]

_partition_of: Callable[[Record], Partition] = attrgetter("topic", "partition")


@dataclass(frozen=True)
class Limits:
    """Bounds of the lanes of a task."""

    batch_records: int = 2_000
    batch_bytes: int = 4 * 1024 * 1024
    linger_ms: float = 0.0
    """How long records may wait for a batch to fill."""
    waiting_records: int = 20_000
    """Of all lanes together. A partition is paused when its share waits, and read again at half of that."""
    waiting_bytes: int = 32 * 1024 * 1024
    writing_bytes: int = 64 * 1024 * 1024
    """Of the records in all batches that are prepared or being written, together."""

    def shared_by(self, lanes: int, waiting: Share) -> Share:
        """What each of `lanes` lanes may let wait, of which `waiting` is there in all of them.

        A lane may let a whole batch wait, also where its part of the whole is smaller, as long as half of the whole is
        free. The other half is for all lanes alike, so that some that are stuck leave the others their part: a quarter
        of the whole is their shares, and a quarter what one read puts beyond a share.
        """
        parts = max(1, lanes)
        part = Share(self.waiting_records // parts, self.waiting_bytes // parts)
        is_ample = part.records >= self.batch_records and part.size_bytes >= self.batch_bytes
        is_free = 2 * waiting.records < self.waiting_records and 2 * waiting.size_bytes < self.waiting_bytes
        if is_ample or is_free:
            return Share(max(self.batch_records, part.records), max(self.batch_bytes, part.size_bytes))
        return Share(max(1, part.records // 4), max(1, part.size_bytes // 4))

    def batch_bytes_of(self, lanes: int, writing_bytes: int) -> int:
        """How large the next batch of one of `lanes` lanes may be while `writing_bytes` are in batches already.

        A lane has up to two batches. As for what waits, half of the whole is kept for all lanes alike.
        """
        is_ample = 2 * lanes * self.batch_bytes <= self.writing_bytes
        if is_ample or 2 * (writing_bytes + self.batch_bytes) <= self.writing_bytes:
            return self.batch_bytes
        return min(self.batch_bytes, max(1, self.writing_bytes // (4 * lanes)))


class Share(NamedTuple):
    """What one lane may let wait."""

    records: int
    size_bytes: int


class Gap(NamedTuple):
    """Offsets that are gone from the topic: what is read behind them begins at `first`."""

    first: int
    lost: int


@dataclass(eq=False)
class Lane:
    """One assigned partition."""

    partition: Partition
    counts: Counts
    backoff: Backoff
    ownership: Ownership = field(default_factory=Ownership)
    """Released when the lane ends: what was queued for it is not begun any more."""
    position: int | None = None
    """The offset to commit: everything before it is settled. None until the first batch is finished."""
    committed: int | None = None
    waiting: deque[Record] = field(default_factory=deque)
    waiting_bytes: int = 0
    _sizes: deque[int] = field(default_factory=deque)
    """Bytes of each record that waits."""
    oldest_ms: float = 0.0
    """When the lane last became non-empty."""
    prepared: Work | None = None
    retrying: Work | None = None
    """Comes before what is prepared."""
    in_flight: Work | None = None
    not_before_ms: float = 0.0
    """No attempt before this time: the lane waits for a server."""
    paused: bool = False
    halted: bool = False
    """The task ends here: nothing behind the last work is written, and the position stays before it."""
    taken: int = 0
    """Records of all works so far."""
    read: int = 0
    """Of `taken`, those before the position."""
    trouble: str | None = None
    """Why the lane waits, while it does."""
    end_of_partition: int | None = None
    """The offset at which the partition ended when its reader last reached the end."""
    high_watermark: int | None = None
    """The offset after the partition's last record, as far as the reader knows."""
    read_ms: float = 0.0
    """When records or the partition's end came in last."""
    _gap: Gap | None = None
    """Not counted yet, because records before it have no outcome yet."""

    @property
    def lag(self) -> int:
        """Records behind; 0 where the reader reached the end, since what is left there are transaction markers."""
        if self.high_watermark is None:
            return 0
        if self.is_settled and self.end_of_partition == self.high_watermark:
            return 0
        position = self.position if self.position is not None else self.committed or 0
        return max(0, self.high_watermark - position)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was read has its outcome."""
        return not (self.waiting or self.prepared or self.retrying or self.in_flight)

    @property
    def next_offset(self) -> int | None:
        """The offset behind the last record that was read; None when nothing was read or committed yet."""
        if self.waiting:
            return self.waiting[-1].offset + 1
        works = [work for work in (self.prepared, self.retrying, self.in_flight) if work is not None]
        if works:
            return max(work.records[-1].offset for work in works) + 1
        if self._gap is not None:
            return self._gap.first
        return self.position if self.position is not None else self.committed

    @property
    def lost(self) -> int:
        """Offsets that were gone from the topic before they were read."""
        return self.counts.lost + (0 if self._gap is None else self._gap.lost)

    def step_over(self, first: int, lost: int) -> None:
        """Go on at the offset `first`: the `lost` ones before it are gone from the topic."""
        if not self.is_settled:
            self._gap = Gap(first, lost)
        else:
            self.counts.lost += lost
            self.position = first

    def offer(self, records: Iterable[Record], now_ms: float) -> None:
        """Take records that were read, in offset order."""
        self.read_ms = now_ms
        if not self.waiting:
            self.oldest_ms = now_ms
        added = list(records)
        sizes = [record.size_bytes for record in added]
        self.waiting.extend(added)
        self._sizes.extend(sizes)
        self.waiting_bytes += sum(sizes)

    def is_full(self, share: Share) -> bool:
        """Whether the partition must not be read any further."""
        return len(self.waiting) >= share.records or self.waiting_bytes >= share.size_bytes

    def has_room(self, share: Share) -> bool:
        """Whether a paused partition can be read again."""
        return 2 * len(self.waiting) <= share.records and 2 * self.waiting_bytes <= share.size_bytes

    def wants_preparing(self, limits: Limits, now_ms: float) -> bool:
        """Whether the next batch should be decoded now."""
        if self.halted or self.prepared is not None or not self.waiting or now_ms < self.not_before_ms:
            return False
        # Of a partition that is paused nothing more comes, so that its batch does not get any larger.
        is_whole = self.paused or len(self.waiting) >= limits.batch_records or self.waiting_bytes >= limits.batch_bytes
        return is_whole or now_ms - self.oldest_ms >= limits.linger_ms

    def next_batch(self, limits: Limits, most_bytes: int | None = None) -> list[Record]:
        """The records of the next batch, at least one; they go on waiting until `accept`."""
        sums = list(accumulate(islice(self._sizes, limits.batch_records)))
        most = limits.batch_bytes if most_bytes is None else most_bytes
        return list(islice(self.waiting, max(1, bisect_right(sums, most))))

    @property
    def writing_bytes(self) -> int:
        """Bytes of the records in the lane's batches."""
        return sum(work.size_bytes for work in (self.prepared, self.retrying, self.in_flight) if work is not None)

    def accept(self, work: Work, now_ms: float) -> None:
        """`work` was prepared from the records that `next_batch` gave."""
        for _ in work.records:
            self.waiting.popleft()
            work.size_bytes += self._sizes.popleft()
        self.waiting_bytes -= work.size_bytes
        self.oldest_ms = now_ms
        self.taken += len(work.records)
        work.taken = self.taken
        self.prepared = work

    def start(self, now_ms: float) -> Work | None:
        """The work to be written now, if the lane is free and not waiting; it counts as in flight from here."""
        if self.halted or self.in_flight is not None or now_ms < self.not_before_ms:
            return None
        if self.retrying is not None:
            self.in_flight, self.retrying = self.retrying, None
        else:
            self.in_flight, self.prepared = self.prepared, None
        return self.in_flight

    def finished(self, trouble: str | None, now_ms: float, retry_after_ms: float | None = None) -> Counts | None:
        """The attempt at the work in flight is over.

        With nothing left to write, the position moves to the end of the work, and its counts are returned; a work that
        stops the task halts the lane there. Otherwise the work waits for its next attempt, because of `trouble`, at
        least `retry_after_ms`.
        """
        work = self.in_flight
        if work is None:
            raise ValueError("nothing is in flight")
        self.in_flight = None
        if work.rows or work.letters:
            self.wait(trouble or "rows were refused for now", now_ms, retry_after_ms)
            self.retrying = work
            return None
        self.trouble = None
        self.backoff.reset()
        self.position = work.end
        self.halted = work.stop is not None
        if self._gap is not None and work.end >= self._gap.first:
            self.counts.lost += self._gap.lost
            self._gap = None
        settled = work.settle()
        settled.read = work.taken - work.behind - self.read
        self.read += settled.read
        self.counts.add(settled)
        return settled

    def halt(self) -> None:
        """The attempt at the work in flight ended the task: its records have no outcome and are read again."""
        self.in_flight, self.halted = None, True

    def wait(self, trouble: str, now_ms: float, retry_after_ms: float | None = None) -> None:
        """A server is away: no attempt before the back-off is over."""
        self.trouble = trouble
        self.not_before_ms = now_ms + max(self.backoff.next_ms(), retry_after_ms or 0.0)


class Lanes:
    """All lanes of a task."""

    def __init__(self, limits: Limits, backoff: Callable[[], Backoff], lease: Lease | None = None) -> None:
        self.limits = limits
        self._backoff = backoff
        self._lease = lease
        self.by_partition: dict[Partition, Lane] = {}

    def assign(self, partition: Partition, committed: int | None, counts: Counts, now_ms: float = 0.0) -> None:
        """Begin a lane that goes on from what was committed."""
        self.forget(partition)
        self.by_partition[partition] = Lane(
            partition, counts, self._backoff(), Ownership(self._lease), committed=committed, read_ms=now_ms
        )

    def forget(self, partition: Partition) -> Lane | None:
        """End a lane; nothing more is begun for it, and the answer to what is in flight will be ignored."""
        lane = self.by_partition.pop(partition, None)
        if lane is not None:
            lane.ownership.release()
        return lane

    def offer(self, records: Sequence[Record], now_ms: float) -> None:
        """Take records of any partitions; those of partitions that are not assigned any more are dropped."""
        for partition, theirs in groupby(records, _partition_of):
            lane = self.by_partition.get(partition)
            if lane is not None:
                lane.offer(theirs, now_ms)

    def to_pause(self) -> list[Lane]:
        """Lanes that are full; they count as paused from here."""
        share = self._share()
        full = [lane for lane in self.by_partition.values() if not lane.paused and lane.is_full(share)]
        for lane in full:
            lane.paused = True
        return full

    def to_resume(self) -> list[Lane]:
        """Paused lanes that have room again; they count as resumed from here."""
        share = self._share()
        free = [lane for lane in self.by_partition.values() if lane.paused and lane.has_room(share)]
        for lane in free:
            lane.paused = False
        return free

    def next_batch(self, lane: Lane) -> list[Record]:
        """The records of a lane's next batch, at least one."""
        writing = sum(other.writing_bytes for other in self.by_partition.values())
        return lane.next_batch(self.limits, self.limits.batch_bytes_of(len(self.by_partition), writing))

    @property
    def most_read(self) -> int:
        """How many records may be read at once: no more than a lane's share, which it may put beyond that share."""
        return min(self.limits.batch_records, self._share().records)

    def _share(self) -> Share:
        lanes = self.by_partition.values()
        waiting = Share(sum(len(lane.waiting) for lane in lanes), sum(lane.waiting_bytes for lane in lanes))
        return self.limits.shared_by(len(lanes), waiting)

    def to_commit(self) -> list[Lane]:
        """Lanes whose position moved since it was last committed."""
        return [
            lane for lane in self.by_partition.values() if lane.position is not None and lane.position != lane.committed
        ]

    @property
    def in_flight(self) -> int:
        """How many lanes are being written."""
        return sum(1 for lane in self.by_partition.values() if lane.in_flight is not None)

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to write."""
        return any(lane.waiting or lane.prepared or lane.retrying for lane in self.by_partition.values())

    @property
    def is_sated(self) -> bool:
        """Whether more than half of its share waits in every lane."""
        share = self._share()
        return bool(self.by_partition) and not any(lane.has_room(share) for lane in self.by_partition.values())

    @property
    def all_full(self) -> bool:
        """Whether reading more would bring nothing: every lane is paused."""
        return bool(self.by_partition) and all(lane.paused for lane in self.by_partition.values())

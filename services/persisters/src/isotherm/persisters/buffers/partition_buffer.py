"""The buffer of one assigned partition: its waiting records, its batches, and its position.

A partition has at most one prepared batch and at most one batch that is being written. Because only one batch is
written at a time and batches follow each other in offset order, the position after the last finished batch is always
the highest contiguous one. See docs/adr/0040.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.record import Record, RecordRun
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits, Share
from isotherm.servicekit.backoff import Backoff

Partition = tuple[str, int]
"""Topic and number of a partition."""


class Gap(NamedTuple):
    """Offsets that are gone from the topic; the records after them begin at `first`."""

    first: int
    lost: int


@dataclass(eq=False)
class PartitionBuffer:
    """One assigned partition."""

    partition: Partition
    counts: Counts
    backoff: Backoff
    ownership: Ownership = field(default_factory=Ownership)
    """Released when the partition is revoked: no thread then begins a batch that it had queued."""
    position: int | None = None
    """The offset to commit: everything before it is settled. None until the first batch is finished."""
    committed: int | None = None
    waiting: list[Record] = field(default_factory=list)
    """A list, not a queue: its front is taken a batch at a time, and a slice costs nothing for each record."""
    waiting_bytes: int = 0
    _sizes: list[int] = field(default_factory=list)
    """Size of each waiting record in bytes."""
    oldest_ms: float = 0.0
    """When the buffer last became non-empty."""
    prepared: InFlightBatch | None = None
    retrying: InFlightBatch | None = None
    """Is written before `prepared`."""
    in_flight: InFlightBatch | None = None
    not_before_ms: float = 0.0
    """The back-off after a failed attempt ends at this time."""
    paused: bool = False
    halted: bool = False
    """The task ends at this partition: nothing after the last batch is written, and the position stays before it."""
    taken: int = 0
    """Records of all batches so far."""
    read: int = 0
    """How many of `taken` are before the position."""
    retry_reason: str | None = None
    """Why a batch is to be written again; None when none is."""
    end_of_partition: int | None = None
    """The offset at which the partition ended when the consumer last reached its end."""
    high_watermark: int | None = None
    """The offset after the partition's last record, as far as the consumer knows."""
    read_ms: float = 0.0
    """When the consumer last delivered records or the partition's end."""
    _gap: Gap | None = None
    """Not counted yet, because records before it have no outcome yet."""

    @property
    def lag(self) -> int:
        """Records behind; 0 at the end of the partition, because only transaction markers are left there."""
        if self.high_watermark is None:
            return 0
        if self.is_settled and self.end_of_partition == self.high_watermark:
            return 0
        position = self.position if self.position is not None else self.committed or 0
        return max(0, self.high_watermark - position)

    @property
    def is_settled(self) -> bool:
        """Whether every record that was read has its outcome."""
        return not (self.waiting or self.prepared or self.retrying or self.in_flight)

    @property
    def settled_to(self) -> int | None:
        """The offset before which everything is settled; None if nothing was read or committed yet."""
        if self.position is not None or self.committed is not None:
            return self.committed if self.position is None else self.position
        held = [batch.records[0].offset for batch in self._batches]
        return min([*held, self.waiting[0].offset] if self.waiting else held, default=None)

    def settled_before(self, batch: InFlightBatch) -> int:
        """Return the offset before which everything is settled while `batch` is in flight: at most its first record."""
        position = self.position if self.position is not None else self.committed
        return batch.records[0].offset if position is None else min(position, batch.records[0].offset)

    @property
    def next_offset(self) -> int | None:
        """The offset after the last record that was read; None if nothing was read or committed yet."""
        if self.waiting:
            return self.waiting[-1].offset + 1
        if batches := list(self._batches):
            return max(batch.records[-1].offset for batch in batches) + 1
        if self._gap is not None:
            return self._gap.first
        return self.position if self.position is not None else self.committed

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has reached the partition's end, and delivered nothing since."""
        if self.end_of_partition is None:
            return False
        expected = self.next_offset
        return expected is None or expected <= self.end_of_partition

    @property
    def unread(self) -> int | None:
        """Offsets that were not read yet, as far as the consumer knows; None before it knows the partition's end."""
        if self.high_watermark is None:
            return None
        if self.end_of_partition == self.high_watermark or (expected := self.next_offset) is None:
            return 0
        return max(0, self.high_watermark - expected)

    @property
    def lost(self) -> int:
        """Offsets that were gone from the topic before they were read."""
        return self.counts.lost + (0 if self._gap is None else self._gap.lost)

    def skip_gap(self, first: int, lost: int) -> None:
        """Continue at the offset `first`: the `lost` offsets before it are gone from the topic."""
        # It may be the end of a topic of the same name that was deleted.
        self.end_of_partition = None
        if self._gap is not None:
            # Not counted yet: the records between both gaps have no outcome, or there are none.
            lost += self._gap.lost
            self._gap = None
        if not self.is_settled:
            self._gap = Gap(first, lost)
        else:
            self.counts.lost += lost
            self.position = first

    def append(self, run: RecordRun, now_ms: float) -> None:
        """Add records that were read, in offset order."""
        self.read_ms = now_ms
        if not self.waiting:
            self.oldest_ms = now_ms
        self.waiting.extend(run.records)
        self._sizes.extend(run.sizes)
        self.waiting_bytes += sum(run.sizes)

    def is_full(self, share: Share, left: Share) -> bool:
        """Whether the buffer holds its share, and nothing is `left` of what it may hold beyond that."""
        is_full_of_records = len(self.waiting) >= share.records and left.records <= 0
        return is_full_of_records or (self.waiting_bytes >= share.size_bytes and left.size_bytes <= 0)

    def is_at_low_mark(self, share: Share) -> bool:
        """Whether a paused partition can be resumed: the buffer holds at most half of its share."""
        return 2 * len(self.waiting) <= share.records and 2 * self.waiting_bytes <= share.size_bytes

    def can_prepare(self, now_ms: float) -> bool:
        """Whether the next batch may be prepared now, though it may be better to wait for more records."""
        return not self.halted and self.prepared is None and bool(self.waiting) and now_ms >= self.not_before_ms

    def is_batch_full(self, limits: BufferLimits) -> bool:
        """Whether the next batch cannot grow: the records of one wait, or a paused partition, which gets no more."""
        return self.paused or self.holds_batch(limits)

    def holds_batch(self, limits: BufferLimits) -> bool:
        """Whether the records of a batch wait."""
        return len(self.waiting) >= limits.batch_records or self.waiting_bytes >= limits.batch_bytes

    def is_batch_due(self, limits: BufferLimits, now_ms: float) -> bool:
        """Whether the next batch should be prepared now, whatever the other partitions hold."""
        return self.can_prepare(now_ms) and now_ms >= self._due_ms(limits)

    def _due_ms(self, limits: BufferLimits) -> float:
        return self.oldest_ms + (0.0 if self.is_batch_full(limits) else limits.linger_ms)

    def next_start_ms(self, limits: BufferLimits) -> float | None:
        """Return when the next batch becomes due, or its next attempt; None if nothing waits for a time."""
        if self.halted or self.in_flight is not None:
            return None
        if self.prepared is not None or self.retrying is not None:
            return self.not_before_ms
        return max(self.not_before_ms, self._due_ms(limits)) if self.waiting else None

    def next_batch(self, most: Share) -> list[Record]:
        """Return the records of the next batch, at least one; they stay in the buffer until `accept`."""
        sizes = self._sizes[: most.records]
        fitting = len(sizes)
        if sum(sizes) > most.size_bytes:
            fitting = bisect_right(list(accumulate(sizes)), most.size_bytes)
        return self.waiting[: max(1, fitting)]

    @property
    def _batches(self) -> Iterator[InFlightBatch]:
        return (batch for batch in (self.prepared, self.retrying, self.in_flight) if batch is not None)

    @property
    def writing_records(self) -> int:
        """How many records are in the partition's batches."""
        return sum(len(batch.records) for batch in self._batches)

    @property
    def writing_bytes(self) -> int:
        """Size of the records in the partition's batches, in bytes."""
        return sum(batch.size_bytes for batch in self._batches)

    def accept(self, batch: InFlightBatch, now_ms: float) -> None:
        """Take the batch that was prepared from the records of `next_batch`."""
        taken = len(batch.records)
        batch.size_bytes += sum(self._sizes[:taken])
        del self.waiting[:taken], self._sizes[:taken]
        self.waiting_bytes -= batch.size_bytes
        self.oldest_ms = now_ms
        self.taken += taken
        batch.taken = self.taken
        self.prepared = batch

    def start(self, now_ms: float) -> InFlightBatch | None:
        """Return the batch to write now, which is in flight from here on; None if none may be written."""
        if self.halted or self.in_flight is not None or now_ms < self.not_before_ms:
            return None
        if self.retrying is not None:
            self.in_flight, self.retrying = self.retrying, None
        else:
            self.in_flight, self.prepared = self.prepared, None
        return self.in_flight

    def finish(self, retry_reason: str | None, now_ms: float, retry_after_ms: float | None = None) -> Counts | None:
        """End the attempt at the batch in flight.

        If nothing is left to write, the position moves to the end of the batch, and a batch that stops the task halts
        the partition there. Otherwise the batch waits for its next attempt.

        Args:
            retry_reason: why rows are left to write.
            now_ms: the time now.
            retry_after_ms: shortest wait before the next attempt, in milliseconds.

        Returns the outcomes of the batch's records, or None if it is to be written again. Raises ValueError if nothing
        is in flight.
        """
        batch = self.in_flight
        if batch is None:
            raise ValueError("nothing is in flight")
        self.in_flight = None
        if batch.rows or batch.dead_letters:
            self.back_off(retry_reason or "rows failed for now", now_ms, retry_after_ms)
            self.retrying = batch
            return None
        self.retry_reason = None
        self.backoff.reset()
        self.position = batch.end
        self.halted = batch.stopped_at is not None
        if self._gap is not None and batch.end >= self._gap.first:
            self.counts.lost += self._gap.lost
            self._gap = None
        settled = batch.count_outcomes()
        settled.read = batch.taken - batch.unsettled - self.read
        self.read += settled.read
        self.counts.add(settled)
        return settled

    def halt(self) -> None:
        """End the partition because the attempt in flight ended the task: its records are read again."""
        self.in_flight, self.halted = None, True

    def back_off(self, reason: str, now_ms: float, retry_after_ms: float | None = None) -> None:
        """Make no attempt before the back-off is over: a server does not answer."""
        self.retry_reason = reason
        self.not_before_ms = now_ms + max(self.backoff.next_ms(), retry_after_ms or 0.0)

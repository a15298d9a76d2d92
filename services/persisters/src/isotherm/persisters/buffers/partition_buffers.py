"""The buffers of all partitions that are assigned to a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from isotherm.persisters.api.ownership import Lease, Ownership
from isotherm.persisters.api.record import Record, RecordRun
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.limits import BufferLimits, Share
from isotherm.persisters.buffers.partition_buffer import Partition, PartitionBuffer
from isotherm.servicekit.backoff import Backoff

_MOST_RECORDS_PER_READ = 10_000
"""Messages of a larger read are not in the processor's cache any more when their records are made."""


class PartitionBuffers:
    """The buffers of a task, and the limits that they share."""

    def __init__(
        self,
        limits: BufferLimits,
        backoff: Callable[[], Backoff],
        lease: Lease | None = None,
        *,
        are_merged: bool = True,
    ) -> None:
        """Begin without any.

        Args:
            limits: what all of them share.
            backoff: makes the back-off of a new buffer.
            lease: what every ownership depends on.
            are_merged: whether batches of several partitions make one write.
        """
        self.limits = limits
        self._are_merged = are_merged
        self._backoff = backoff
        self._lease = lease
        self.by_partition: dict[Partition, PartitionBuffer] = {}

    def assign(self, partition: Partition, committed: int | None, counts: Counts, now_ms: float = 0.0) -> None:
        """Add an empty buffer that continues from the committed offset and its counts."""
        self.remove(partition)
        self.by_partition[partition] = PartitionBuffer(
            partition, counts, self._backoff(), Ownership(self._lease), committed=committed, read_ms=now_ms
        )

    def remove(self, partition: Partition) -> PartitionBuffer | None:
        """Remove a buffer: no batch of it is begun any more, and the answer to one in flight is ignored."""
        buffer = self.by_partition.pop(partition, None)
        if buffer is not None:
            buffer.ownership.release()
        return buffer

    def append(self, runs: Iterable[RecordRun], now_ms: float) -> None:
        """Add records of any partitions; those of partitions that are not assigned any more are dropped."""
        for run in runs:
            first = run.records[0]
            buffer = self.by_partition.get((first.topic, first.partition))
            if buffer is not None:
                buffer.append(run, now_ms)

    def pause_full(self) -> list[PartitionBuffer]:
        """Mark the buffers that may not hold more as paused, and return them."""
        full = self._full(self._share())
        for buffer in full:
            buffer.paused = True
        return full

    def resume_drained(self) -> list[PartitionBuffer]:
        """Mark the paused buffers at their low mark as resumed and return them."""
        share = self._share()
        drained = [buffer for buffer in self.by_partition.values() if buffer.paused and buffer.is_at_low_mark(share)]
        for buffer in drained:
            buffer.paused = False
        return drained

    def due(self, now_ms: float) -> set[PartitionBuffer]:
        """Return the buffers whose next batch should be prepared now.

        A buffer that holds a batch is due alone. The others are due together: once they hold a batch together, or once
        a record of one of them has waited for as long as records may, so that their parts make one write of a BulkSink.
        Any other sink writes each part by itself, so there each waits for its own.
        """
        if not self._are_merged:
            return {buffer for buffer in self.by_partition.values() if buffer.is_batch_due(self.limits, now_ms)}
        ready = [buffer for buffer in self.by_partition.values() if buffer.can_prepare(now_ms)]
        thin = [buffer for buffer in ready if not buffer.is_batch_full(self.limits)]
        is_together_due = (
            sum(len(buffer.waiting) for buffer in thin) >= self.limits.batch_records
            or sum(buffer.waiting_bytes for buffer in thin) >= self.limits.batch_bytes
            or any(buffer.is_batch_due(self.limits, now_ms) for buffer in thin)
        )
        return set(ready) if is_together_due else set(ready).difference(thin)

    def next_batch(self, buffer: PartitionBuffer) -> list[Record]:
        """Return the records of a buffer's next batch, at least one."""
        others = self.by_partition.values()
        writing = Share(sum(each.writing_records for each in others), sum(each.writing_bytes for each in others))
        return buffer.next_batch(self.limits.next_batch(len(others), writing))

    @property
    def max_records_per_read(self) -> int:
        """How many records may be read at once: at most a buffer's share, which a read may add to that share."""
        return min(self.limits.batch_records, self._share().records, _MOST_RECORDS_PER_READ)

    def _share(self) -> Share:
        buffers = self.by_partition.values()
        waiting = Share(sum(len(each.waiting) for each in buffers), sum(each.waiting_bytes for each in buffers))
        return self.limits.share_of_each(len(buffers), waiting)

    def _full(self, share: Share) -> list[PartitionBuffer]:
        """Return the unpaused buffers that hold their share, with nothing left of what all have in common."""
        buffers = self.by_partition.values()
        common = self.limits.common(len(buffers), share)
        records = sum(max(0, len(each.waiting) - share.records) for each in buffers)
        size_bytes = sum(max(0, each.waiting_bytes - share.size_bytes) for each in buffers)
        left = Share(common.records - records, common.size_bytes - size_bytes)
        return [each for each in buffers if not each.paused and each.is_full(share, left)]

    def _hold_enough(self, buffers: Iterable[PartitionBuffer]) -> bool:
        """Whether each of them holds the records of the next batch, or half of its share if that is smaller."""
        share, them = self._share(), list(buffers)
        if self.limits.is_batch(share):
            return bool(them) and all(each.holds_batch(self.limits) for each in them)
        return bool(them) and not any(each.is_at_low_mark(share) for each in them)

    def uncommitted(self) -> list[PartitionBuffer]:
        """Return the buffers whose position moved since it was last committed."""
        return [
            buffer
            for buffer in self.by_partition.values()
            if buffer.position is not None and buffer.position != buffer.committed
        ]

    def known(self) -> list[PartitionBuffer]:
        """Return a buffer whose position can be committed, though it may not have moved; nothing if there is none."""
        return [buffer for buffer in self.by_partition.values() if buffer.settled_to is not None][:1]

    @property
    def in_flight(self) -> int:
        """How many partitions are being written."""
        return sum(1 for buffer in self.by_partition.values() if buffer.in_flight is not None)

    def are_read(self, open_offsets: float) -> bool:
        """Whether everything that the partitions hold was read, but for `open_offsets` offsets of all of them."""
        return _are_read(self.by_partition.values(), open_offsets)

    def are_open_read(self, open_offsets: float) -> bool:
        """Whether everything was read that a read can bring: what paused partitions hold waits until they drain."""
        return _are_read((buffer for buffer in self.by_partition.values() if not buffer.paused), open_offsets)

    def next_start_ms(self) -> float | None:
        """Return when the next batch becomes due, or its next attempt; None if nothing waits for a time.

        Batches behind one that is being written are due when that is answered.
        """
        times = (buffer.next_start_ms(self.limits) for buffer in self.by_partition.values())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    @property
    def hold_enough(self) -> bool:
        """Whether no buffer needs more records for now."""
        return self._hold_enough(self.by_partition.values())

    @property
    def are_about_to_be_paused(self) -> bool:
        """Whether `pause_full` would pause a partition, although every one that has more records keeps its writer busy.

        Only where shares have room for a batch: smaller ones would stop reading with next to nothing to write.
        """
        share = self._share()
        if not self.limits.is_batch(share) or not self._full(share):
            return False
        return not any(buffer.is_settled and not buffer.is_at_end for buffer in self.by_partition.values())

    @property
    def unread_hold_enough(self) -> bool:
        """Whether no buffer needs more for now whose partition may deliver more, and there is one."""
        unread = (each for each in self.by_partition.values() if not each.is_at_end and not each.paused)
        return self._hold_enough(unread)

    @property
    def are_all_paused(self) -> bool:
        """Whether every partition is paused, so that reading brings nothing."""
        return bool(self.by_partition) and all(buffer.paused for buffer in self.by_partition.values())


def _are_read(buffers: Iterable[PartitionBuffer], open_offsets: float) -> bool:
    unread = [buffer.unread for buffer in buffers]
    return sum(each for each in unread if each is not None) <= open_offsets and None not in unread

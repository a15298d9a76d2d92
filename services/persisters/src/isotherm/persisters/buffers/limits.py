"""How much the partition buffers of a task may hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

_PARTITIONS = 4
"""Of how many partitions a task writes whole large batches; those of more are smaller while it catches up."""


class Share(NamedTuple):
    """How much one partition buffer may hold."""

    records: int
    size_bytes: int


@dataclass(frozen=True)
class BufferLimits:
    """Limits of the partition buffers of a task."""

    batch_records: int = 2_000
    batch_bytes: int = 4 * 1024 * 1024
    linger_ms: float = 0.0
    """How long records may wait for a batch to fill, in milliseconds."""
    waiting_records: int = 20_000
    """Of all buffers together. A partition is paused when its buffer holds its share and nothing is left of what all
    have in common, and resumed at half of its share."""
    waiting_bytes: int = 32 * 1024 * 1024
    writing_records: int = 32_000
    """Of all batches that are prepared or being written, together. A decoded record takes several times its size."""
    writing_bytes: int = 64 * 1024 * 1024
    """Size of the records in these batches, together."""

    def with_writers(self, writers: int) -> BufferLimits:
        """Return the limits with room for two batches of each of so many writers.

        One of each may wait, whatever the limit of their number says: a partition that is paused whenever it holds a
        batch is fetched anew after each.
        """
        most = 2 * writers
        return replace(
            self,
            waiting_records=max(self.waiting_records, writers * self.batch_records),
            writing_records=most * self.batch_records,
            writing_bytes=most * self.batch_bytes,
        )

    def with_large_batches(self) -> BufferLimits:
        """Return the limits for batches that are large and rare.

        One of each of four partitions, as many as declared topics have, may wait, whatever the limits say: a partition
        that is paused before makes a small one. Two of each may be in writing: one that is written and one that is
        prepared. Of batches that are full of large records, half as many may: memory counts more than large files then.
        """
        return replace(
            self,
            waiting_records=max(self.waiting_records, _PARTITIONS * self.batch_records),
            waiting_bytes=max(self.waiting_bytes, _PARTITIONS // 2 * self.batch_bytes),
            writing_records=2 * _PARTITIONS * self.batch_records,
            writing_bytes=_PARTITIONS * self.batch_bytes,
        )

    def share_of_each(self, buffers: int, waiting: Share) -> Share:
        """Return how much each of `buffers` buffers may hold while `waiting` is in all of them together.

        Where their parts of the total hold a batch, each has half of its part, or a batch, and they take the rest as
        they need it (`common`). Where the parts are smaller, each may hold a whole batch as long as half of the total
        is free. All buffers divide the other half, so that some that are stuck leave the others their part: a quarter
        of the total is their shares, and a quarter is what a single read adds to a share.
        """
        parts = max(1, buffers)
        part = Share(self.waiting_records // parts, self.waiting_bytes // parts)
        if self.is_batch(part):
            return Share(max(self.batch_records, part.records // 2), max(self.batch_bytes, part.size_bytes // 2))
        if 2 * waiting.records < self.waiting_records and 2 * waiting.size_bytes < self.waiting_bytes:
            return Share(max(self.batch_records, part.records), max(self.batch_bytes, part.size_bytes))
        return Share(max(1, part.records // 4), max(1, part.size_bytes // 4))

    def common(self, buffers: int, share: Share) -> Share:
        """Return how much `buffers` buffers may hold beyond their shares, all together.

        A fetch brings many records of one partition. Without this its buffer would be full although others are empty.
        """
        if not self.is_batch(share):
            return Share(0, 0)
        records = self.waiting_records - buffers * share.records
        return Share(max(0, records), max(0, self.waiting_bytes - buffers * share.size_bytes))

    def is_batch(self, share: Share) -> bool:
        """Return whether a share has room for a batch, however large its records are."""
        return share.records >= self.batch_records and share.size_bytes >= self.batch_bytes

    def next_batch(self, buffers: int, writing: Share) -> Share:
        """Return how large the next batch of one of `buffers` buffers may be.

        `writing` is in batches already. A partition has up to two batches. As for waiting records, half of the total is
        kept for all partitions alike.
        """
        return Share(
            _next(self.batch_records, self.writing_records, buffers, writing.records),
            _next(self.batch_bytes, self.writing_bytes, buffers, writing.size_bytes),
        )


def _next(batch: int, total: int, buffers: int, writing: int) -> int:
    if 2 * buffers * batch <= total or 2 * (writing + batch) <= total:
        return batch
    return min(batch, max(1, total // (4 * buffers)))

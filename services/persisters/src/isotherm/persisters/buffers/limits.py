"""How much the partition buffers of a task may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
    """Of all buffers together. A partition is paused at its share (high mark) and resumed at half of it (low mark)."""
    waiting_bytes: int = 32 * 1024 * 1024
    writing_bytes: int = 64 * 1024 * 1024
    """Size of the records in all batches that are prepared or being written, together."""

    def share_of_each(self, buffers: int, waiting: Share) -> Share:
        """Return how much each of `buffers` buffers may hold while `waiting` is in all of them together.

        A buffer may hold a whole batch even if its part of the total is smaller, as long as half of the total is free.
        All buffers divide the other half, so that some that are stuck leave the others their part: a quarter of the
        total is their shares, and a quarter is what a single read adds to a share.
        """
        parts = max(1, buffers)
        part = Share(self.waiting_records // parts, self.waiting_bytes // parts)
        is_ample = part.records >= self.batch_records and part.size_bytes >= self.batch_bytes
        is_half_free = 2 * waiting.records < self.waiting_records and 2 * waiting.size_bytes < self.waiting_bytes
        if is_ample or is_half_free:
            return Share(max(self.batch_records, part.records), max(self.batch_bytes, part.size_bytes))
        return Share(max(1, part.records // 4), max(1, part.size_bytes // 4))

    def next_batch_bytes(self, buffers: int, writing_bytes: int) -> int:
        """Return how large the next batch of one of `buffers` buffers may be, in bytes.

        `writing_bytes` are in batches already. A partition has up to two batches. As for waiting records, half of the
        total is kept for all partitions alike.
        """
        is_ample = 2 * buffers * self.batch_bytes <= self.writing_bytes
        if is_ample or 2 * (writing_bytes + self.batch_bytes) <= self.writing_bytes:
            return self.batch_bytes
        return min(self.batch_bytes, max(1, self.writing_bytes // (4 * buffers)))

"""Merges records of several partitions in the order in which they were written. Pure.

A service that is behind reads one partition far ahead of another. A device whose windows are on both partitions would
get the later windows first, and the earlier ones would be stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass
class _PartitionBuffer(Generic[T]):
    waiting: deque[tuple[int, int, T]] = field(default_factory=deque)
    """Timestamp (epoch ms), offset and record."""
    position: int | None = None
    end: int | None = None
    """The end offset of the partition, while no record after it was read."""


class TimeOrderedMerge(Generic[T]):
    """Holds records back until every partition has one, or is at its end; then the earliest record is next."""

    def __init__(self) -> None:
        self._buffers: dict[TopicPartition, _PartitionBuffer[T]] = {}
        self._popped: tuple[_PartitionBuffer[T], tuple[int, int, T], int | None] | None = None
        """The last popped entry, with its buffer and the position before it."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that are read from now on."""
        for partition in partitions:
            self._buffers.setdefault(partition, _PartitionBuffer())

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions, and drop their waiting records."""
        for partition in partitions:
            self._buffers.pop(partition, None)

    def add(self, partition: TopicPartition, offset: int, written_ms: int, record: T) -> None:
        """Add a record that was read. A record of a partition that is not assigned has no effect."""
        buffer = self._buffers.get(partition)
        if buffer is not None:
            buffer.waiting.append((written_ms, offset, record))
            buffer.end = None

    def mark_end(self, partition: TopicPartition, end: int) -> None:
        """Record that a partition was read up to its end offset `end`."""
        buffer = self._buffers.get(partition)
        if buffer is not None:
            buffer.end = end

    def pop(self) -> T | None:
        """Remove and return the earliest record; None while it is not known which record that is."""
        if any(not buffer.waiting and buffer.end is None for buffer in self._buffers.values()):
            return None
        buffers = [buffer for buffer in self._buffers.values() if buffer.waiting]
        if not buffers:
            return None
        buffer = min(buffers, key=lambda one: one.waiting[0][0])
        entry = buffer.waiting.popleft()
        self._popped = buffer, entry, buffer.position
        _, offset, record = entry
        buffer.position = offset + 1
        return record

    def restore_popped(self) -> None:
        """Put the last popped record back: `positions` does not count it."""
        if self._popped is not None:
            buffer, entry, position = self._popped
            buffer.waiting.appendleft(entry)
            buffer.position = position
            self._popped = None

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last popped record of each partition.

        Where no record waits it is the end offset, which may lie after transaction markers.
        """
        positions = {
            partition: buffer.end if buffer.end is not None and not buffer.waiting else buffer.position
            for partition, buffer in self._buffers.items()
        }
        return {partition: position for partition, position in positions.items() if position is not None}

    def above(self, limit: int) -> set[TopicPartition]:
        """Return the partitions with more than `limit` waiting records."""
        return {partition for partition, buffer in self._buffers.items() if len(buffer.waiting) > limit}

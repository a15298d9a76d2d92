"""The devices of the partitions that this process owns: their memories, their clocks, and who is due when.

A memory that was recovered stays in the changelog's bytes until its device is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import DeviceMemory


@dataclass
class Partition:
    """One partition's part of the fleet."""

    memories: dict[str, DeviceMemory | bytes] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    """By topic: up to here everything that was taken in has been read."""
    overtaken: set[str] = field(default_factory=set)
    """Devices of which another record than what is remembered stands last in the changelog."""
    _queue: list[tuple[int, str]] = field(default_factory=list)
    _scheduled: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.memories)

    def hear(self, topic: str, taken_in_ms: int) -> None:
        """A topic has been read up to readings that were taken in then; its clock never goes back."""
        if taken_in_ms > self.clocks.get(topic, 0):
            self.clocks[topic] = taken_in_ms

    def clock_ms(self) -> int:
        """Up to here all topics have been read."""
        return min(self.clocks.values(), default=0)

    def memory(self, device_id: str) -> DeviceMemory:
        """What is remembered of a device; a new memory for a new one."""
        found = self.memories.get(device_id)
        if isinstance(found, DeviceMemory):
            return found
        made = DeviceMemory() if found is None else changelog.decode(found)
        self.memories[device_id] = made
        return made

    def restore(self, device_id: str, value: bytes) -> None:
        """Take a value of the changelog, unless what is remembered is newer.

        A process that lost the partition may have written after the one that took it over: compaction keeps what it
        wrote. Then the device is overtaken until its memory is written anew.
        """
        known = self.memories.get(device_id)
        if known is None or _revision_of(known) < changelog.revision_of(value):
            self.memories[device_id] = value
            self.overtaken.discard(device_id)
        elif _is_value_of(known, value):
            self.overtaken.discard(device_id)
        else:
            self.overtaken.add(device_id)

    def forget(self, device_id: str) -> None:
        """Remember a device no more."""
        self.memories.pop(device_id, None)
        self.overtaken.discard(device_id)
        self._scheduled.pop(device_id, None)

    def schedule(self, device_id: str, due_ms: int | None) -> None:
        """Say when a device is due; `due` gives it back then at the latest.

        A later time than the one known takes effect when that comes: one entry a device is enough.
        """
        if due_ms is None:
            return
        known = self._scheduled.get(device_id)
        if known is None or due_ms < known:
            self._scheduled[device_id] = due_ms
            heapq.heappush(self._queue, (due_ms, device_id))

    def schedule_all(self) -> None:
        """Schedule every device that was recovered; those with alerts that may not have left are due at once."""
        for device_id, memory in self.memories.items():
            if isinstance(memory, bytes):
                self.schedule(device_id, changelog.due_of(memory))

    def due(self, now_ms: int) -> Iterator[str]:
        """The devices that were scheduled up to `now_ms`; each has to be scheduled anew."""
        while self._queue and self._queue[0][0] <= now_ms:
            due_ms, device_id = heapq.heappop(self._queue)
            if self._scheduled.get(device_id) == due_ms:
                del self._scheduled[device_id]
                yield device_id


class Fleet:
    """The partitions that this process owns."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        """`topics` are the ones that are read: as long as one of them has told no time, a partition's clock stands."""
        self.partitions: dict[int, Partition] = {}
        self._topics = tuple(topics)

    def __len__(self) -> int:
        return sum(len(partition) for partition in self.partitions.values())

    def restore(self, partition: int, device_id: str, value: bytes | None) -> None:
        """Take a record of the changelog; None forgets the device."""
        part = self.partitions.setdefault(partition, Partition())
        if value is None:
            part.forget(device_id)
        else:
            part.restore(device_id, value)

    def overtaken(self) -> Iterator[tuple[int, str, bytes]]:
        """The partition, device and value of what has to be written to the changelog anew; each is given once."""
        for number, partition in self.partitions.items():
            while partition.overtaken:
                device_id = partition.overtaken.pop()
                memory = partition.memories[device_id]
                # Who recovers it looks at once when it is due.
                yield number, device_id, memory if isinstance(memory, bytes) else changelog.encode(memory, 0)

    def own(self, partitions: Iterable[int]) -> None:
        """From now on these partitions are ours, and no others; what was recovered of them is scheduled."""
        self.partitions = {number: self.partitions.get(number, Partition()) for number in partitions}
        for partition in self.partitions.values():
            for topic in self._topics:
                partition.clocks.setdefault(topic, 0)
            partition.schedule_all()


def _revision_of(memory: DeviceMemory | bytes) -> int:
    return memory.revision if isinstance(memory, DeviceMemory) else changelog.revision_of(memory)


def _is_value_of(memory: DeviceMemory | bytes, value: bytes) -> bool:
    """Whether a value of the changelog, of no higher revision, is that of a memory."""
    if isinstance(memory, bytes):
        return memory == value
    return memory.revision == changelog.revision_of(value) and changelog.decode(value) == memory

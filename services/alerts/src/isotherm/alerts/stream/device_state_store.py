"""The states of the devices in the partitions of this process, their clocks, and which device is due when.

A recovered state stays in the bytes of the changelog until its device is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import DeviceRuleState


@dataclass
class PartitionStates:
    """The devices of one partition."""

    states: dict[str, DeviceRuleState | bytes] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    """By topic: the time (epoch ms) up to which everything that was appended has been read."""
    needs_rewrite: set[str] = field(default_factory=set)
    """Devices whose last record in the changelog is not their newest state."""
    _queue: list[tuple[int, str]] = field(default_factory=list)
    _scheduled: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.states)

    def advance_clock(self, topic: str, read_until_ms: int) -> None:
        """Advance the clock of a topic to `read_until_ms` (epoch ms). An earlier time has no effect."""
        if read_until_ms > self.clocks.get(topic, 0):
            self.clocks[topic] = read_until_ms

    def clock_ms(self) -> int:
        """Return the time (epoch ms) up to which all topics have been read."""
        return min(self.clocks.values(), default=0)

    def state(self, device_id: str) -> DeviceRuleState:
        """Return the state of a device; a new one for a new device."""
        found = self.states.get(device_id)
        if isinstance(found, DeviceRuleState):
            return found
        state = DeviceRuleState() if found is None else changelog.decode(found)
        self.states[device_id] = state
        return state

    def may_be_open(self, device_id: str) -> bool:
        """Return whether something of a device may be open or pending: in the compact form nothing is."""
        found = self.states.get(device_id)
        return found is not None and not (isinstance(found, bytes) and changelog.is_compact(found))

    def peek(self, device_id: str) -> DeviceRuleState:
        """Return the state of a known device to look at: a change of it may have no effect."""
        found = self.states[device_id]
        return found if isinstance(found, DeviceRuleState) else changelog.decode(found)

    def restore(self, device_id: str, value: bytes) -> None:
        """Take a value of the changelog, unless the state is newer.

        A process that lost the partition may have written after the process that took it over, and compaction keeps the
        last record. Such a device needs a rewrite until its newest state is the last record again.
        """
        known = self.states.get(device_id)
        if known is None or _revision_of(known) < changelog.revision_of(value):
            self.states[device_id] = value
            self.needs_rewrite.discard(device_id)
        elif _is_value_of(known, value):
            self.needs_rewrite.discard(device_id)
        else:
            self.needs_rewrite.add(device_id)

    def remove(self, device_id: str) -> None:
        """Remove the state of a device."""
        self.states.pop(device_id, None)
        self.needs_rewrite.discard(device_id)
        self._scheduled.pop(device_id, None)

    def schedule(self, device_id: str, due_ms: int | None) -> None:
        """Schedule a device for `due_ms` (epoch ms): `pop_due` returns it then at the latest.

        A time later than the scheduled one takes effect when the scheduled one comes, so one entry a device suffices.
        """
        if due_ms is None:
            return
        known = self._scheduled.get(device_id)
        if known is None or due_ms < known:
            self._scheduled[device_id] = due_ms
            heapq.heappush(self._queue, (due_ms, device_id))

    def schedule_all(self) -> None:
        """Schedule every recovered device. Devices with alerts that may not have been published are due at once."""
        for device_id, state in self.states.items():
            if isinstance(state, bytes):
                self.schedule(device_id, changelog.due_of(state))

    def has_due(self, now_ms: int) -> bool:
        """Return whether a device may be scheduled up to `now_ms` (epoch ms); False is certain."""
        return bool(self._queue) and self._queue[0][0] <= now_ms

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the devices that were scheduled up to `now_ms`. The caller has to schedule them again."""
        while self._queue and self._queue[0][0] <= now_ms:
            due_ms, device_id = heapq.heappop(self._queue)
            if self._scheduled.get(device_id) == due_ms:
                del self._scheduled[device_id]
                yield device_id


class DeviceStateStore:
    """The partitions that this process owns."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        """`topics` are the topics that are read. The clock of a partition stands still until each has shown a time."""
        self.partitions: dict[int, PartitionStates] = {}
        self._topics = tuple(topics)

    def __len__(self) -> int:
        return sum(len(partition) for partition in self.partitions.values())

    def restore(self, partition: int, device_id: str, value: bytes | None) -> None:
        """Take a record of the changelog; a tombstone (None) removes the device."""
        states = self.partitions.setdefault(partition, PartitionStates())
        if value is None:
            states.remove(device_id)
        else:
            states.restore(device_id, value)

    def pop_rewrites(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield partition, device and value of every state that has to be written to the changelog again, once each."""
        for number, partition in self.partitions.items():
            while partition.needs_rewrite:
                device_id = partition.needs_rewrite.pop()
                state = partition.states[device_id]
                # Due 0: the process that recovers the value finds out at once when the device is due.
                yield number, device_id, state if isinstance(state, bytes) else changelog.encode(state, 0)

    def own(self, partitions: Iterable[int]) -> None:
        """Own these partitions and no others from now on, and schedule their recovered devices."""
        self.partitions = {number: self.partitions.get(number, PartitionStates()) for number in partitions}
        for partition in self.partitions.values():
            for topic in self._topics:
                partition.clocks.setdefault(topic, 0)
            partition.schedule_all()


def _revision_of(state: DeviceRuleState | bytes) -> int:
    return state.revision if isinstance(state, DeviceRuleState) else changelog.revision_of(state)


def _is_value_of(state: DeviceRuleState | bytes, value: bytes) -> bool:
    """Return whether a value of the changelog, whose revision is not higher, holds this state."""
    if isinstance(state, bytes):
        return state == value
    return state.revision == changelog.revision_of(value) and changelog.decode(value) == state

"""The states of the devices in the partitions of this process, their clocks, and which device is due when.

A recovered state stays in the bytes of the changelog until its device is needed. With the compiled module the states of
quiet devices are in its table (`quiet`), and only the others here; a device is in one of the two places.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.quiet import is_settled

if TYPE_CHECKING:
    from isotherm.alerts.hotpath.compiled import QuietDevices

_NEVER_MS = 2**62
_FEW_ENTRIES = 64
"""So many outdated entries of the queue are kept whatever the number of devices."""


class ChangelogRecord(Protocol):
    """A record of the changelog."""

    @property
    def key(self) -> bytes | None:
        """The device."""

    @property
    def value(self) -> bytes | None:
        """Its state; None for a tombstone."""


@dataclass
class PartitionStates:
    """The devices of one partition."""

    quiet: QuietDevices | None = None
    """The table of quiet devices; None without the compiled module."""
    states: dict[str, DeviceRuleState | bytes] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    """By topic: the time (epoch ms) up to which everything that was appended has been read."""
    needs_rewrite: set[str] = field(default_factory=set)
    """Devices whose last record in the changelog is not their newest state."""
    _queue: list[tuple[int, str]] = field(default_factory=list)
    _scheduled: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.states) + (0 if self.quiet is None else len(self.quiet))

    def __contains__(self, device_id: str) -> bool:
        return device_id in self.states or (self.quiet is not None and device_id in self.quiet)

    def advance_clock(self, topic: str, read_until_ms: int) -> None:
        """Advance the clock of a topic to `read_until_ms` (epoch ms). An earlier time has no effect."""
        if read_until_ms > self.clocks.get(topic, 0):
            self.clocks[topic] = read_until_ms

    def clock_ms(self) -> int:
        """Return the time (epoch ms) up to which all topics have been read."""
        return min(self.clocks.values(), default=0)

    def other_clocks_ms(self, topic: str) -> int:
        """Return the time (epoch ms) up to which all topics but one have been read; never-ending without others."""
        return min((at_ms for name, at_ms in self.clocks.items() if name != topic), default=_NEVER_MS)

    def take_quiet(self, device_id: str) -> int | None:
        """Take a device over from the table of quiet devices.

        Returns the number of the checkpoint that has to write its state, 0 when none has to; None when it is not there.
        """
        taken = None if self.quiet is None or device_id in self.states else self.quiet.take(device_id)
        if taken is None:
            return None
        self.states[device_id] = taken[0]
        return taken[1]

    def state(self, device_id: str) -> DeviceRuleState:
        """Return the state of a device that is not in the table of quiet devices; a new one for a new device."""
        found = self.states.get(device_id)
        if isinstance(found, DeviceRuleState):
            return found
        state = DeviceRuleState() if found is None else changelog.decode(found)
        self.states[device_id] = state
        return state

    def restore_record(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the changelog; a tombstone (None) removes the device."""
        quiet = self.quiet
        if value is None:
            self.remove(key.decode())
        elif quiet is None:
            self.restore(key.decode(), value)
        elif not changelog.is_compact(value):
            known = quiet.value(key)
            if known is not None:
                # Here the two are compared.
                quiet.remove(key)
                self.states[key.decode()] = known
            self.restore(key.decode(), value)
        elif not (self._is_newer_than_known(key, value) and quiet.restore(key, value)):
            self.restore(key.decode(), value)

    def _is_newer_than_known(self, key: bytes, value: bytes) -> bool:
        """Return whether no state outside the table is as new as `value`; forget an older one."""
        known = self.states.get(key.decode()) if self.states else None
        if known is None:
            return True
        if _revision_of(known) >= changelog.revision_of(value):
            return False
        self.remove(key.decode())
        return True

    def peek(self, device_id: str) -> DeviceRuleState:
        """Return the state of a known device to look at: a change of it may have no effect."""
        found = self.states[device_id]
        return found if isinstance(found, DeviceRuleState) else changelog.decode(found)

    def restore(self, device_id: str, value: bytes) -> None:
        """Take a value of a device that is not in the table of quiet devices, unless its state is newer.

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
        if self.quiet is not None:
            self.quiet.remove(device_id.encode())
        self.leave(device_id)
        self._scheduled.pop(device_id, None)

    def leave(self, device_id: str) -> None:
        """Remove the state of a device that is in the table of quiet devices now.

        It stays scheduled: with an entry for each way into the table and back, the queue would grow with the readings.
        """
        self.states.pop(device_id, None)
        self.needs_rewrite.discard(device_id)

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
            if len(self._queue) > 2 * len(self._scheduled) + _FEW_ENTRIES:
                # An earlier time leaves the entry of the later one behind. `forget_after_ms` may be a month ahead.
                self._queue = [(at_ms, scheduled) for scheduled, at_ms in self._scheduled.items()]
                heapq.heapify(self._queue)

    def schedule_all(self) -> None:
        """Schedule every recovered device. Devices with alerts that may not have been published are due at once."""
        for device_id, state in self.states.items():
            if isinstance(state, bytes):
                self.schedule(device_id, changelog.due_of(state))

    def has_due(self, now_ms: int) -> bool:
        """Return whether a device may be scheduled up to `now_ms` (epoch ms); False is certain."""
        if self._queue and self._queue[0][0] <= now_ms:
            return True
        return self.quiet is not None and self.quiet.has_due(now_ms)

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the devices that were scheduled up to `now_ms`. The caller has to schedule them again.

        Quiet devices stay due until they are taken. They have times of their own, whatever was scheduled before.
        """
        if self.quiet is not None:
            yield from self.quiet.pop_due(now_ms)
        while self._queue and self._queue[0][0] <= now_ms:
            due_ms, device_id = heapq.heappop(self._queue)
            if self._scheduled.get(device_id) == due_ms:
                del self._scheduled[device_id]
                if self.quiet is None or device_id in self.states or device_id not in self.quiet:
                    yield device_id


class DeviceStateStore:
    """The partitions that this process owns."""

    def __init__(self, topics: Iterable[str] = (), new_table: Callable[[], QuietDevices] | None = None) -> None:
        """Make a store without partitions.

        Args:
            topics: the topics that are read. The clock of a partition stands still until each has shown a time.
            new_table: makes the table of quiet devices of a partition; None without the compiled module.
        """
        self.partitions: dict[int, PartitionStates] = {}
        self.checkpoint_number = 0
        self._topics, self._new_table = tuple(topics), new_table
        self._schemas: set[int] = set()

    @property
    def has_tables(self) -> bool:
        """Whether compiled code judges the readings of quiet devices."""
        return self._new_table is not None

    def __len__(self) -> int:
        return sum(len(partition) for partition in self.partitions.values())

    def restore(self, partition: int, device_id: str, value: bytes | None) -> None:
        """Take a record of the changelog; a tombstone (None) removes the device."""
        self._partition(partition).restore_record(device_id.encode(), value)

    def restore_all(self, partition: int, records: Iterable[ChangelogRecord]) -> None:
        """Take records of the changelog of a partition, in their order."""
        restore = self._partition(partition).restore_record
        for record in records:
            restore(record.key or b"", record.value)

    def add_schemas(self, schema_ids: Iterable[int]) -> None:
        """Let the tables of quiet devices read records of these schemas, whose fields are those of SensorReading."""
        for schema_id in set(schema_ids) - self._schemas:
            self._schemas.add(schema_id)
            for partition in self.partitions.values():
                if partition.quiet is not None:
                    partition.quiet.add_schema(schema_id)

    def begin_checkpoint(self) -> None:
        """Begin the next checkpoint of the quiet devices: it covers every change until now."""
        self.checkpoint_number += 1
        for table in self.tables():
            table.begin_checkpoint(self.checkpoint_number)

    def tables(self) -> list[QuietDevices]:
        """Return the tables of quiet devices."""
        return [partition.quiet for partition in self.partitions.values() if partition.quiet is not None]

    def in_work(self) -> Iterator[tuple[int, str]]:
        """Yield partition and device of the states in which something is open, pending or waiting."""
        for number, partition in self.partitions.items():
            for device_id, state in partition.states.items():
                if isinstance(state, bytes):
                    is_at_work = not changelog.is_compact(state)
                else:
                    is_at_work = not is_settled(state) or bool(state.open_alerts(device_id))
                if is_at_work:
                    yield number, device_id

    def _partition(self, number: int) -> PartitionStates:
        found = self.partitions.get(number)
        return self.partitions.setdefault(number, self._new_partition()) if found is None else found

    def _new_partition(self) -> PartitionStates:
        if self._new_table is None:
            return PartitionStates()
        table = self._new_table()
        table.begin_checkpoint(self.checkpoint_number)
        for schema_id in self._schemas:
            table.add_schema(schema_id)
        return PartitionStates(table)

    def pop_rewrites(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield partition, device and value of every state that has to be written to the changelog again, once each."""
        for number, partition in self.partitions.items():
            for device_id, value in [] if partition.quiet is None else partition.quiet.pop_rewrites():
                yield number, device_id, value
            while partition.needs_rewrite:
                device_id = partition.needs_rewrite.pop()
                state = partition.states[device_id]
                # Due 0: the process that recovers the value finds out at once when the device is due.
                yield number, device_id, state if isinstance(state, bytes) else changelog.encode(state, 0)

    def own(self, partitions: Iterable[int]) -> None:
        """Own these partitions and no others from now on, and schedule their recovered devices."""
        self.partitions = {number: self._partition(number) for number in partitions}
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

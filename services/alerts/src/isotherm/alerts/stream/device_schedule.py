"""Looks at devices again when something else than a reading changes what is due: their metadata, or the rules."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.stream.checkpoint import DeviceRef
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates
from isotherm.alerts.stream.outputs import Outputs

_LOOK_AT_ONCE = 5_000
"""So many devices a call of `go_on` looks at."""
_LOOKS_AT_ONCE = 50
"""After so many devices readings are processed meanwhile."""


class DeviceSchedule:
    """The schedules of the partitions of this process, for devices with and without a state."""

    def __init__(
        self,
        engine: Callable[[], RuleEngine],
        devices: DeviceTable,
        store: DeviceStateStore,
        partition_of: Callable[[str], int],
    ) -> None:
        """`engine` returns the one in force, `partition_of` the partition of a device that has given no reading."""
        self._engine, self._devices, self._store, self._partition_of = engine, devices, store, partition_of

    def reschedule(self, device_ids: Iterable[str], *, is_changed: bool) -> None:
        """Schedule devices again after their metadata has changed: they may be due at another time.

        With `is_changed` false only devices without a state are scheduled.
        """
        for device_id in device_ids:
            owners = [one for one in self._store.partitions.values() if device_id in one]
            if not owners:
                self._expect(device_id)
            for partition in owners if is_changed else ():
                _replan(partition, device_id)

    def _expect(self, device_id: str) -> None:
        """Schedule a device that has a record and no state for the time at which its first reading must be here."""
        due_ms = self._engine().due_ms(DeviceRuleState(), self._devices.get(device_id))
        partition = None if due_ms is None else self._store.partitions.get(self._partition_of(device_id))
        if partition is not None:
            partition.schedule(device_id, due_ms)


def _replan(partition: PartitionStates, device_id: str) -> None:
    """Let the next look at due devices find out when a device is due."""
    if partition.quiet is not None:
        partition.quiet.replan(device_id)
    if device_id in partition.states:
        partition.schedule(device_id, 0)


class RuleSweep:
    """The sweep over all devices that follows a change of the rules, a recovery included (ADR 152).

    It holds the devices that may have alerts of rules that are gone, or may be due at another time, until each was
    looked at. One in the table of quiet devices has nothing open or pending; `replan_some` finds out when it is due.
    """

    def __init__(
        self,
        store: DeviceStateStore,
        outputs: Outputs,
        turn: asyncio.Lock,
        look_at: Callable[[PartitionStates, DeviceRef], None],
    ) -> None:
        """`look_at` is called for each device outside the tables, with `turn` held and room for records."""
        self._store, self._outputs, self._turn, self._look_at = store, outputs, turn, look_at
        self._left: deque[DeviceRef] = deque()

    def begin(self) -> None:
        """Look at all devices, from the next `go_on` on; drop the bounds of quiet ones at once."""
        for table in self._store.tables():
            table.forget_plans()
        partitions = self._store.partitions.items()
        self._left = deque(DeviceRef(number, one) for number, of in partitions for one in of.states)

    async def go_on(self, is_open: Callable[[], bool]) -> None:
        """Look at some more devices, while `is_open`. Raises OutputRefusedError."""
        for count in range(min(len(self._left), _LOOK_AT_ONCE)):
            if count % _LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            await self._outputs.wait_for_room()
            async with self._turn:
                if not self._left or not is_open():
                    return
                ref = self._left.popleft()
                partition = self._store.partitions.get(ref.partition)
                if partition is not None and ref.device_id in partition.states:
                    self._look_at(partition, ref)

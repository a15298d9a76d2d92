"""Schedules devices again when something else than a reading changes when they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates


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

"""The sweep over all devices that follows a change of the rules, a recovery included (ADR 152)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from isotherm.alerts.stream.checkpoint import DeviceRef
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates
from isotherm.alerts.stream.outputs import Outputs

_LOOK_AT_ONCE = 5_000
"""So many devices a call of `go_on` looks at."""
_LOOKS_AT_ONCE = 50
"""After so many devices readings are processed meanwhile."""


class RuleSweep:
    """The devices that may have alerts of rules that are gone, or may be due at another time, until each was looked at.

    A device in the table of quiet devices has nothing open or pending, and `replan_some` finds out when it is due.
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

"""Checkpoints: the states that are not in Kafka yet, and the offsets that may be committed when they are (ADR 147).

A checkpoint covers everything that was processed before it began. When Kafka has all of that, the offsets of that time
may be committed. States are written little by little. Some thousands a second are always written, so few devices have
their newest states and their commit within a second. A state that decides an alert is written at once, by others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from faust.types import TP

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates
from isotherm.alerts.stream.outputs import Outputs

AT_LEAST = 5_000
"""States of quiet devices a second that are written whatever the period is."""
AT_LEAST_OF_ENGINE = 2_000
"""States of the engine's devices a second that are; each of them costs twenty times as much."""
_WRITES_AT_ONCE = 50
"""After so many states `settle` lets readings be processed, which would otherwise wait for thousands of states."""
_QUIET_WRITES_AT_ONCE = 250
_MADE_UP_S = 5.0
_SPREAD_S = 0.5
"""Over how long `settle` spreads the states of quiet devices: behind thousands at once an alert would wait for them."""

Positions = Mapping[TP, int]
"""The last offset of each partition that was processed."""
NOTHING: Positions = MappingProxyType({})


def _all_of(unwritten: int, _at_least: int) -> int:
    return unwritten


class DeviceRef(NamedTuple):
    """A device and the partition of its readings."""

    partition: int
    device_id: str


@dataclass
class Checkpoint:
    """A checkpoint that is being written."""

    number: int
    positions: Positions
    """From before it began."""
    ends_s: float
    """When all states are to be written, by the monotonic clock."""
    _written_s: float | None = field(default=None)

    def pace(self, now_s: float) -> Callable[[int, int], int]:
        """Return what says how many of the states that are left to write now, at least some of them.

        So the last ones are written at the end of the period.
        """
        # Who has been held up for long does not make up for all of it at once.
        elapsed_s = 1.0 if self._written_s is None else min(now_s - self._written_s, _MADE_UP_S)
        self._written_s = now_s
        left_s = self.ends_s - now_s

        def share(unwritten: int, at_least: int) -> int:
            return max(unwritten if left_s <= elapsed_s else int(unwritten * elapsed_s / left_s) + 1, at_least)

        return share


class Checkpoints:
    """The devices whose newest state is not in Kafka yet, each with the checkpoint that has to write it.

    The table of quiet devices knows its own; those of the engine are here.
    """

    def __init__(
        self,
        store: DeviceStateStore,
        outputs: Outputs,
        save: Callable[[DeviceRef, DeviceRuleState], None],
        now_ms: Callable[[], int],
        checkpoint_ms: int,
    ) -> None:
        """Take what the checkpoints need.

        Args:
            store: has the states.
            outputs: writes them.
            save: writes a state of the engine to the changelog, and calls `saved`.
            now_ms: returns the time, in epoch ms.
            checkpoint_ms: over how long the states of many quiet devices are spread.
        """
        self._store, self._outputs, self._save, self._now_ms = store, outputs, save, now_ms
        self._period_s = checkpoint_ms / 1_000
        self._running: Checkpoint | None = None
        self._unsaved: dict[DeviceRef, int] = {}
        """Not in the changelog yet."""
        self._unpublished: dict[DeviceRef, int] = {}
        """Not in the topic of newest states yet."""
        self._settling = asyncio.Lock()

    def mark_unsaved(self, ref: DeviceRef) -> None:
        """Let a checkpoint write a device to the changelog: the next one, unless the running one has to."""
        self._unsaved.setdefault(ref, self._store.checkpoint_number + 1)

    def mark_unpublished(self, ref: DeviceRef) -> None:
        """Let a checkpoint write a device's newest state: the next one, unless the running one has to."""
        self._unpublished.setdefault(ref, self._store.checkpoint_number + 1)

    def saved(self, ref: DeviceRef) -> None:
        """Note that a device's newest state is on its way to the changelog."""
        self._unsaved.pop(ref, None)

    def is_unsaved(self, ref: DeviceRef) -> bool:
        """Return whether a checkpoint has to write a device to the changelog."""
        return ref in self._unsaved

    def take_over(self, ref: DeviceRef, number: int) -> None:
        """Take a device over from the table of quiet devices, whose checkpoint `number` had to write it; 0 is none."""
        if number:
            self._unsaved[ref] = self._unpublished[ref] = number

    def checkpoint_of(self, ref: DeviceRef) -> int:
        """Return the number of the checkpoint that has to write a device; 0 when none has to."""
        return min((refs[ref] for refs in (self._unsaved, self._unpublished) if ref in refs), default=0)

    def forget(self, ref: DeviceRef) -> None:
        """Forget a device: the table of quiet devices has it now."""
        self._unsaved.pop(ref, None)
        self._unpublished.pop(ref, None)

    async def settle(self, positions: Positions, *, whole: bool = False) -> Positions | None:
        """Write a part of the running checkpoint, all of it with `whole`; begin it first when none runs.

        `positions` are the last offsets that were processed until now. Returns those from the begin of the checkpoint,
        when Kafka has the effects of all readings up to there; None while it does not. Alerts may still be in flight:
        the changelog has them. Raises OutputRefusedError.
        """
        async with self._settling:
            checkpoint = self._running
            if checkpoint is None or whole:
                self._store.begin_checkpoint()
                ends_s = time.monotonic() + self._period_s
                checkpoint = self._running = Checkpoint(self._store.checkpoint_number, positions, ends_s)
            while True:
                share = _all_of if whole else checkpoint.pace(time.monotonic())
                unwritten = sum(table.unwritten for table in self._store.tables())
                await self._write_quiet(share(unwritten, AT_LEAST), 0.0 if whole else _SPREAD_S)
                async for ref, partition in self._take(self._unsaved, share):
                    self._save(ref, partition.state(ref.device_id))
                async for ref, partition in self._take(self._unpublished, share):
                    self._outputs.write_latest(ref.device_id, partition.state(ref.device_id), self._now_ms())
                is_written = self._is_written(checkpoint)
                await self._outputs.flush_earlier()
                if is_written:
                    self._running = None
                    return checkpoint.positions
                if not whole:
                    return None

    async def _write_quiet(self, limit: int, spread_s: float) -> None:
        """Write at most `limit` states of quiet devices that the running checkpoint covers, spread over `spread_s`."""
        left, begun_s = limit, time.monotonic()
        for number, partition in list(self._store.partitions.items()):
            quiet = partition.quiet
            while quiet is not None and quiet.unwritten and left > 0:
                await self._outputs.wait_for_quiet_room()
                rows = quiet.checkpoint(min(left, _QUIET_WRITES_AT_ONCE), self._outputs.latest_header, self._now_ms())
                self._outputs.write_quiet(number, rows)
                left -= len(rows)
                # Readings are processed meanwhile. Who is late with the states does not pause.
                due_s = begun_s + spread_s * (1 - left / limit)
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0) if left else 0.0)

    def _is_written(self, checkpoint: Checkpoint) -> bool:
        """Return whether every state that the checkpoint covers is on its way to Kafka."""
        is_left = any(table.unwritten for table in self._store.tables())
        marks = (number for refs in (self._unsaved, self._unpublished) for number in refs.values())
        return not is_left and all(number > checkpoint.number for number in marks)

    async def _take(
        self, refs: dict[DeviceRef, int], share: Callable[[int, int], int]
    ) -> AsyncIterator[tuple[DeviceRef, PartitionStates]]:
        """Remove a share of the devices that are in `refs` now, the first ones, and yield them.

        Each when there is room to write one record.
        """
        for count, ref in enumerate(list(islice(refs, share(len(refs), AT_LEAST_OF_ENGINE)))):
            if count % _WRITES_AT_ONCE == 0:
                await asyncio.sleep(0)  # Readings are processed meanwhile.
            await self._outputs.wait_for_room()
            partition = self._store.partitions.get(ref.partition)
            # A state that was written meanwhile, with an alert, is not in `refs` any more.
            is_waiting = refs.pop(ref, None) is not None
            if is_waiting and partition is not None and ref.device_id in partition.states:
                yield ref, partition

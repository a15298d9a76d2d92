"""Readings in, memories and alerts out, in the order that survives a crash at any point.

First the changelog has a device's new memory, with the alerts that it has decided inside; then the alerts leave; only
then may the reading's offset be committed. Who takes over finds either the old memory, and decides the same again, or
the new one, and repeats the alerts in it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import AlertRecord, DeviceMemory
from isotherm.alerts.engine.reading import (
    TOO_MANY_METRICS,
    Reading,
    RefusedReadingError,
    refusal,
)
from isotherm.alerts.engine.rule_engine import Engine
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import KnownDevices
from isotherm.alerts.stream.device_state_store import Fleet, Partition
from isotherm.alerts.stream.outputs import Outputs

MAX_LEAVING = 100
"""Alerts of a device on their way to Kafka; its next reading waits for them. The changelog has them in one value."""


class Place(NamedTuple):
    """A device's place in the fleet."""

    partition: int
    device_id: str


class Processor:
    """Drives the engine. One thing at a time: a reading or a sweep."""

    def __init__(
        self,
        engine: Engine,
        known: KnownDevices,
        fleet: Fleet,
        outputs: Outputs,
        metrics: Metrics,
        max_skew_ms: int,
        read_slack_ms: int,
        records_tell_time: bool = True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.fleet = fleet
        self._engine, self._known, self._outputs, self._metrics = engine, known, outputs, metrics
        self._max_skew_ms, self._read_slack_ms = max_skew_ms, read_slack_ms
        # Not when they were repartitioned: one from before it may still be under way.
        self._records_tell_time = records_tell_time
        self._now_ms = now_ms
        self._unshown: set[Place] = set()
        """Devices whose newest state is not written yet."""
        self._leaving: Counter[Place] = Counter()
        """How many alerts of a device are on their way to Kafka."""
        self._turn, self._settling = asyncio.Lock(), asyncio.Lock()

    async def take(self, topic: str, number: int, reading: Reading, appended_ms: int | None = None) -> None:
        """Let a reading from a partition have its effects; `settle` waits until Kafka has them.

        `appended_ms` is when the broker appended it (epoch ms), in a topic that says so. A reading that an outage held
        back is counted as late, and rules see it all the same: it tells what has happened.

        Raises RefusedReadingError when the reading is a dead letter, OutputRefusedError.
        """
        async with self._turn:
            partition = self.fleet.partitions.get(number)
            if partition is None:
                return  # the partition was lost meanwhile: its new owner reads it
            if self._records_tell_time:
                # The wall clock bounds what a wrong clock, a broker's too, can do to all devices of the partition.
                told_ms = reading.ingest_time_ms if appended_ms is None else appended_ms
                partition.hear(topic, min(told_ms, self._now_ms()))
            if appended_ms is not None and appended_ms > reading.ingest_time_ms + self._read_slack_ms:
                self._metrics.late.inc()
            reason = refusal(reading, self._max_skew_ms)
            if reason is not None:
                self._metrics.filtered.labels(reason).inc()
                return
            await self._take(partition, Place(number, reading.device_id), reading)

    async def _take(self, partition: Partition, place: Place, reading: Reading) -> None:
        await self._outputs.room()
        # Before anything else: what was read before a crash may never have been shown.
        self._unshown.add(place)
        memory, device = partition.memory(place.device_id), self._known.get(place.device_id)
        if not self._engine.admits(memory, reading):
            message = f"{place.device_id!r} has {len(memory.metrics)} metrics, {reading.metric!r} would be one more"
            raise RefusedReadingError(TOO_MANY_METRICS, message)
        if len(memory.outbox) >= MAX_LEAVING:
            await self._outputs.stored()
        # Whether a sweep has come since then must make no difference: it depends on how far behind we are.
        passed = self._engine.tick(memory, place.device_id, device, partition.clock_ms() - self._read_slack_ms)
        if passed is not None:
            self._keep(partition, place, memory, passed, None)
            await self._outputs.room()
        decided = self._engine.take(memory, reading, device)
        if decided is None:
            self._metrics.filtered.labels("stale").inc()
            return
        self._keep(partition, place, memory, decided, reading.ingest_time_ms)

    async def sweep(self, number: int, now_ms: int) -> None:
        """Let time pass in a partition: `now_ms` is a time up to which everything taken in was read.

        Raises OutputRefusedError.
        """
        async with self._turn:
            partition = self.fleet.partitions.get(number)
            if partition is None:
                return
            await self._tick(partition, number, list(partition.due(now_ms)), now_ms)

    def reschedule(self, device_ids: Iterable[str]) -> None:
        """What is known of these devices has changed: they may be due at another time."""
        for device_id in device_ids:
            for partition in self.fleet.partitions.values():
                if device_id in partition.memories:
                    partition.schedule(device_id, 0)  # the next sweep looks when that is

    async def settle(self) -> None:
        """Write the states that are not shown yet, and return when Kafka has the effects of all that was taken before.

        Alerts may still be on their way: the changelog has them. Raises OutputRefusedError.
        """
        async with self._settling:
            unshown, self._unshown = self._unshown, set()
            for place in unshown:
                partition = self.fleet.partitions.get(place.partition)
                if partition is not None and place.device_id in partition.memories:
                    await self._outputs.room()
                    self._outputs.state(place.device_id, partition.memory(place.device_id), self._now_ms())
            await self._outputs.stored_so_far()

    async def release(self) -> None:
        """Return when nothing at all is on its way, as whoever takes the partitions over wants it.

        Raises OutputRefusedError.
        """
        async with self._turn:
            await self.settle()
            await self._outputs.stored()

    async def _tick(self, partition: Partition, number: int, device_ids: Sequence[str], now_ms: int) -> None:
        for device_id in device_ids:
            if device_id not in partition.memories:
                continue
            memory, device = partition.memory(device_id), self._known.get(device_id)
            place = Place(number, device_id)
            await self._outputs.room()
            decided = self._engine.tick(memory, device_id, device, now_ms)
            if decided is not None:
                self._keep(partition, place, memory, decided, None)
                self._unshown.add(place)
            else:
                partition.schedule(device_id, self._engine.due_ms(memory, device))
                if memory.outbox and place not in self._leaving:
                    # What a process before this one may not have sent; the changelog has it.
                    to_send = tuple(memory.outbox)
                    self._leaving[place] += len(to_send)
                    self._dispatch(partition, place, memory, to_send, None)

    def _keep(
        self,
        partition: Partition,
        place: Place,
        memory: DeviceMemory,
        decided: Sequence[AlertRecord],
        taken_in_ms: int | None,
    ) -> None:
        """Write a memory to the changelog; the alerts in it that were just decided leave when Kafka has it."""
        due_ms = self._engine.due_ms(memory, self._known.get(place.device_id))
        partition.schedule(place.device_id, due_ms)
        # Who recovers it has to look at once whether its alerts have left.
        value = changelog.encode(memory, 0 if memory.outbox else due_ms)
        to_send = tuple(decided) if place in self._leaving else tuple(memory.outbox)
        if not to_send:
            self._outputs.change(place.partition, place.device_id, value)
            return
        self._leaving[place] += len(to_send)
        self._outputs.change(
            place.partition,
            place.device_id,
            value,
            lambda: self._dispatch(partition, place, memory, to_send, taken_in_ms),
        )

    def _dispatch(
        self,
        partition: Partition,
        place: Place,
        memory: DeviceMemory,
        alerts: Sequence[AlertRecord],
        taken_in_ms: int | None,
    ) -> None:
        def sent(alert: AlertRecord) -> None:
            memory.outbox.remove(alert)
            self._leaving[place] -= 1
            if taken_in_ms is not None:
                self._metrics.reaction.observe(max(self._now_ms() - taken_in_ms, 0) / 1000)
            if not self._leaving[place]:
                del self._leaving[place]
                self._empty(partition, place, memory)

        for alert in alerts:
            self._outputs.alert(alert, partial(sent, alert))

    def _empty(self, partition: Partition, place: Place, memory: DeviceMemory) -> None:
        """Say in the changelog that the alerts have left: whoever recovers the device would repeat them."""
        if self.fleet.partitions.get(place.partition) is partition:
            memory.revision += 1
            self._keep(partition, place, memory, (), None)

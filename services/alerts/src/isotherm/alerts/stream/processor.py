"""Applies readings and time to device states, in an order of writes that survives a crash at any point.

First the changelog gets the device's new state, which contains the alerts that it has decided. Then the alerts are
published. Only then may the reading's offset be committed. The process that takes over finds either the old state, and
decides the same again, or the new state, and publishes the alerts in it again (ADR 0070).

A state that decides no alert is written with the next checkpoint, whatever number of readings it took in: once a
second, or with many devices more seldom. Offsets are committed behind a checkpoint (ADR 0147).

With the compiled module (`hotpath`) it judges the readings of quiet devices, many at once; what opens or closes
something comes here one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.engine.quiet import QuietBounds
from isotherm.alerts.engine.reading import (
    TOO_MANY_METRICS,
    Reading,
    RejectedReadingError,
    filter_reason,
)
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.stream.checkpoint import NOTHING, Checkpoints, DeviceRef, Positions
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates
from isotherm.alerts.stream.outputs import OnStored, Outputs

MAX_ALERTS_IN_FLIGHT = 100
"""Limit of a device's alerts in flight, which its changelog value contains. Its next reading waits for them."""
_REPLANS_AT_ONCE = 10_000


class Record(Protocol):
    """A record of the input, as the compiled code reads it."""

    @property
    def value(self) -> bytes | None:
        """The value."""

    @property
    def timestamp(self) -> int:
        """Epoch ms."""

    @property
    def timestamp_type(self) -> int:
        """1 for a time of the broker, 0 for one of the producer."""


class Judged(NamedTuple):
    """What the compiled code leaves of some records."""

    rest: Sequence[tuple[int, int]]
    """The records for the engine: index, and the clock (epoch ms) of their topic before each."""
    following: int
    """The index from which the next call goes on."""
    clock_ms: int
    """The clock of the topic behind the judged records."""


class Processor:
    """Drives the engine. A lock admits one reading or one step of time at once."""

    def __init__(
        self,
        engine: RuleEngine,
        devices: DeviceTable,
        store: DeviceStateStore,
        outputs: Outputs,
        metrics: Metrics,
        max_skew_ms: int,
        max_publish_delay_ms: int,
        records_show_time: bool = True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        checkpoint_ms: int = 60_000,
    ) -> None:
        """Take what the processor needs.

        Args:
            engine: judges one reading.
            devices: the metadata of devices.
            store: the states of devices.
            outputs: the topics that are written.
            metrics: count the readings.
            max_skew_ms: a reading from so much after its ingest time is ignored.
            max_publish_delay_ms: so much later than the clock of its partition the time of a device advances.
            records_show_time: whether a record shows how far its topic was read. Repartitioned records do not: an
                earlier one may not have been forwarded yet.
            now_ms: returns the time, in epoch ms.
            checkpoint_ms: over how long the states of many quiet devices are spread.
        """
        self.store = store
        self._engine, self._devices, self._outputs, self._metrics = engine, devices, outputs, metrics
        self._max_skew_ms, self._max_publish_delay_ms = max_skew_ms, max_publish_delay_ms
        self._records_show_time = records_show_time
        self._now_ms = now_ms
        self._unwritten = Checkpoints(store, outputs, self._save, now_ms, checkpoint_ms)
        self._at_work: DeviceRef | None = None
        """The device whose state the engine is changing."""
        self._in_flight: Counter[DeviceRef] = Counter()
        """How many alerts of a device Kafka has not acknowledged yet."""
        self._turn = asyncio.Lock()
        self._is_open = True

    def open(self) -> None:
        """Apply readings from now on: the store has the states of the assigned partitions."""
        self._is_open = True

    async def process(self, topic: str, number: int, reading: Reading, appended_ms: int | None = None) -> bool:
        """Apply a reading from a partition; `settle` waits until Kafka has its effects.

        Returns False when nothing was applied, because the partition is not assigned (any more): its offset must not be
        committed.

        `appended_ms` is the append time (epoch ms), in a topic with append times. A reading that an outage held back is
        counted as late, and the rules see it all the same, because it describes what has happened.

        Raises RejectedReadingError when the reading is a dead-letter record, and OutputRefusedError.
        """
        async with self._turn:
            partition = self._owned(number)
            if partition is None:
                return False  # The new owner of the partition reads the record.
            if self._records_show_time:
                # The bound by the wall clock limits what a wrong clock can do to all devices of the partition.
                time_ms = reading.ingest_time_ms if appended_ms is None else appended_ms
                partition.advance_clock(topic, min(time_ms, self._now_ms()))
            if appended_ms is not None and appended_ms > reading.ingest_time_ms + self._max_publish_delay_ms:
                self._metrics.late.inc()
            reason = filter_reason(reading, self._max_skew_ms)
            if reason is not None:
                self._metrics.filtered.labels(reason).inc()
                return True
            await self._apply(partition, DeviceRef(number, reading.device_id), reading)
            return True

    def _owned(self, number: int) -> PartitionStates | None:
        """Return a partition whose records may be applied; None when it is not assigned (any more)."""
        return self.store.partitions.get(number) if self._is_open else None

    async def judge(
        self, topic: str, number: int, records: Sequence[Record], begin: int, *, uses_append_time: bool
    ) -> Judged | None:
        """Apply the readings of quiet devices among the records from `begin` on; return what is left.

        None when the partition is not assigned (any more). The engine must have all that is left, each after
        `advance_clock`, before the next call.
        """
        async with self._turn:
            partition = self._owned(number)
            if partition is None or partition.quiet is None:
                return None
            quiet = partition.quiet
            rest, following = quiet.judge(
                records,
                begin,
                clock_ms=partition.clocks.get(topic, 0),
                other_clocks_ms=partition.other_clocks_ms(topic),
                now_ms=self._now_ms(),
                delay_ms=self._max_publish_delay_ms,
                max_skew_ms=self._max_skew_ms,
                uses_append_time=uses_append_time,
            )
            self._metrics.read.inc(quiet.quiet + quiet.stale)
            self._metrics.late.inc(quiet.late)
            if quiet.stale:
                self._metrics.filtered.labels("stale").inc(quiet.stale)
            return Judged(rest, following, quiet.clock_ms)

    def advance_clock(self, topic: str, number: int, read_until_ms: int) -> None:
        """Advance the clock of a topic's partition to `read_until_ms` (epoch ms)."""
        partition = self._owned(number)
        if partition is not None:
            partition.advance_clock(topic, read_until_ms)

    async def _apply(self, partition: PartitionStates, ref: DeviceRef, reading: Reading) -> None:
        await self._outputs.wait_for_room()
        state = self._state(partition, ref)
        # Mark the device before anything else: a state from before a crash may never have been published.
        self._unwritten.mark_unpublished(ref)
        try:
            await self._apply_to(state, partition, ref, reading)
        finally:
            self._at_work = None
            self._hand_over(partition, ref)

    async def _apply_to(
        self, state: DeviceRuleState, partition: PartitionStates, ref: DeviceRef, reading: Reading
    ) -> None:
        device = self._devices.get(ref.device_id)
        if not self._engine.admits(state, reading):
            message = f"{ref.device_id!r} has {len(state.metrics)} metrics, {reading.metric!r} would be one more"
            raise RejectedReadingError(TOO_MANY_METRICS, message)
        if len(state.outbox) >= MAX_ALERTS_IN_FLIGHT:
            await self._outputs.flush()
        # Advance the time first, so that the result does not depend on whether `advance_time` was called meanwhile.
        alerts = self._engine.advance_time(
            state, ref.device_id, device, partition.clock_ms() - self._max_publish_delay_ms
        )
        if alerts is not None:
            self._write_state(partition, ref, state, alerts, None)
            await self._outputs.wait_for_room()
        decided = self._engine.apply(state, reading, device)
        if decided is None:
            self._metrics.filtered.labels("stale").inc()
            return
        self._write_state(partition, ref, state, decided, reading.ingest_time_ms)

    async def advance_time(self, number: int, now_ms: int) -> None:
        """Advance the time of a partition's due devices to `now_ms` (epoch ms), up to which its readings were applied.

        Raises OutputRefusedError.
        """
        async with self._turn:
            partition = self._owned(number)
            if partition is None:
                return
            if partition.quiet is not None:
                partition.quiet.replan_some(_REPLANS_AT_ONCE)
            await self._advance_devices(partition, number, list(partition.pop_due(now_ms)), now_ms)

    def reschedule(self, device_ids: Iterable[str]) -> None:
        """Schedule devices again after their metadata has changed: they may be due at another time."""
        for device_id in device_ids:
            for partition in self.store.partitions.values():
                if partition.quiet is not None:
                    partition.quiet.replan(device_id)
                if device_id in partition.states:
                    partition.schedule(device_id, 0)  # The next `advance_time` finds out when the device is due.

    def reload_rules(self, engine: RuleEngine) -> None:
        """Apply other rules from the next reading of each device on, and let each device be due when they say so.

        `engine` has the new rules; the device table has the bounds that follow from them. When a quiet device is due is
        found out for 10,000 devices of a partition with each `advance_time`.
        """
        self._engine = engine
        for partition in self.store.partitions.values():
            if partition.quiet is not None:
                partition.quiet.forget_plans()
            for device_id in partition.states:
                partition.schedule(device_id, 0)

    def quiet_bounds(self, device_id: str, metric: str) -> QuietBounds | None:
        """Return the bounds of a metric of a device; None when the engine needs its readings."""
        return self._engine.quiet_bounds(metric, self._devices.get(device_id))

    def _state(self, partition: PartitionStates, ref: DeviceRef) -> DeviceRuleState:
        """Return the state of a device for the engine, which it leaves by `_hand_over`."""
        changed_in = partition.take_quiet(ref.device_id)
        state = partition.state(ref.device_id)
        if changed_in is not None:
            partition.schedule(ref.device_id, self._engine.due_ms(state, self._devices.get(ref.device_id)))
            self._unwritten.take_over(ref, changed_in)
        self._at_work = ref
        return state

    def _hand_over(self, partition: PartitionStates, ref: DeviceRef) -> None:
        """Let the compiled code judge the next readings of a device, if it is quiet."""
        quiet, state = partition.quiet, partition.states.get(ref.device_id)
        if quiet is None or not isinstance(state, DeviceRuleState) or ref in self._in_flight or ref == self._at_work:
            return
        bounds = self._engine.quiet_bounds_of(state, self._devices.get(ref.device_id))
        if bounds is None or self.store.partitions.get(ref.partition) is not partition:
            return
        if quiet.put(ref.device_id, state, bounds, changed_in=self._unwritten.checkpoint_of(ref)):
            partition.forget(ref.device_id)
            self._unwritten.forget(ref)

    async def settle(self, positions: Positions = NOTHING, *, whole: bool = False) -> Positions | None:
        """Write the states that a checkpoint covers, as `Checkpoints.settle`. Raises OutputRefusedError."""
        return await self._unwritten.settle(positions, whole=whole)

    async def drain(self) -> None:
        """Return when nothing is in flight any more, so that another process can take the partitions over.

        Until `open` nothing is applied. Faust goes on with what it had fetched before a rebalance; a state that grew by
        that would look newer than the state of the new owner, and replace it when the partition comes back.

        Raises OutputRefusedError.
        """
        async with self._turn:
            self._is_open = False
            await self.settle(whole=True)
            await self._outputs.flush()

    async def _advance_devices(
        self, partition: PartitionStates, number: int, device_ids: Sequence[str], now_ms: int
    ) -> None:
        for device_id in device_ids:
            if device_id not in partition:
                continue
            await self._outputs.wait_for_room()
            ref = DeviceRef(number, device_id)
            state, device = self._state(partition, ref), self._devices.get(device_id)
            decided = self._engine.advance_time(state, device_id, device, now_ms)
            if decided is not None:
                self._write_state(partition, ref, state, decided, None)
                self._unwritten.mark_unpublished(ref)
            else:
                partition.schedule(device_id, self._engine.due_ms(state, device))
                if state.outbox and ref not in self._in_flight:
                    # An earlier process may not have published these alerts. The changelog has them.
                    to_publish = tuple(state.outbox)
                    self._in_flight[ref] += len(to_publish)
                    self._publish(partition, ref, state, to_publish, None)
            self._at_work = None
            self._hand_over(partition, ref)

    def _write_state(
        self,
        partition: PartitionStates,
        ref: DeviceRef,
        state: DeviceRuleState,
        decided: Sequence[AlertRecord],
        ingest_time_ms: int | None,
    ) -> None:
        """Write a changed state to the changelog: at once with alerts to publish, which wait for it, else in `settle`.

        `decided` are the alerts that were just decided. They are published when Kafka has the state.
        """
        partition.schedule(ref.device_id, self._engine.due_ms(state, self._devices.get(ref.device_id)))
        to_publish = tuple(decided) if ref in self._in_flight else tuple(state.outbox)
        if not to_publish:
            self._unwritten.mark_unsaved(ref)
            return
        self._in_flight[ref] += len(to_publish)
        self._save(ref, state, lambda: self._publish(partition, ref, state, to_publish, ingest_time_ms))

    def _save(self, ref: DeviceRef, state: DeviceRuleState, on_stored: OnStored = lambda: None) -> None:
        """Write a state to the changelog; `on_stored` is called when Kafka has it."""
        self._unwritten.saved(ref)
        # Due 0: the process that recovers the state must find out at once whether the alerts were published.
        due_ms = 0 if state.outbox else self._engine.due_ms(state, self._devices.get(ref.device_id))
        self._outputs.write_changelog(ref.partition, ref.device_id, changelog.encode(state, due_ms), on_stored)

    def _publish(
        self,
        partition: PartitionStates,
        ref: DeviceRef,
        state: DeviceRuleState,
        alerts: Sequence[AlertRecord],
        ingest_time_ms: int | None,
    ) -> None:
        def published(alert: AlertRecord) -> None:
            state.outbox.remove(alert)
            self._in_flight[ref] -= 1
            if ingest_time_ms is not None:
                self._metrics.reaction.observe(max(self._now_ms() - ingest_time_ms, 0) / 1000)
            if not self._in_flight[ref]:
                del self._in_flight[ref]
                self._write_published(partition, ref, state)

        for alert in alerts:
            self._outputs.write_alert(alert, partial(published, alert))

    def _write_published(self, partition: PartitionStates, ref: DeviceRef, state: DeviceRuleState) -> None:
        """Write to the changelog that the alerts are published, so that a recovery does not publish them again."""
        if self.store.partitions.get(ref.partition) is partition:
            state.revision += 1
            self._write_state(partition, ref, state, (), None)
            if self._unwritten.is_unsaved(ref):
                self._save(ref, state)
            self._hand_over(partition, ref)

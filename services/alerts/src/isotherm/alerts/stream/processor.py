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
from dataclasses import replace
from functools import partial
from itertools import islice

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.engine.quiet import QuietBounds
from isotherm.alerts.engine.reading import TOO_MANY_METRICS, Reading, RejectedReadingError, filter_reason
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.stream.checkpoint import NOTHING, Checkpoints, DeviceRef, Positions
from isotherm.alerts.stream.device_schedule import DeviceSchedule, RuleSweep
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates
from isotherm.alerts.stream.outputs import Cause, OnStored, Outputs
from isotherm.alerts.stream.quiet_ways import Judged, QuietHandover, QuietJudge, Record

MAX_ALERTS_IN_FLIGHT = 100
"""Limit of a device's alerts in flight, which its changelog value contains. Its next reading waits for them."""
_REPLANS_AT_ONCE = 10_000
_EXPECTED_AT_ONCE = 1_000
_MAX_DUE = 5_000
"""So many due devices a call of `advance_time` judges: other partitions and commits have their turn."""
_ADVANCED_AT_ONCE = 100
"""After so many due devices readings have their turn: when a region falls silent, all its devices are due at once."""
_NO_PARTITION = -1


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
        partition_of: Callable[[str], int] = lambda _device_id: _NO_PARTITION,
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
            partition_of: returns the partition of the readings of a device, for one that has not given any.
        """
        self.store = store
        self._engine, self._devices, self._outputs, self._metrics = engine, devices, outputs, metrics
        self._max_skew_ms, self._max_publish_delay_ms = max_skew_ms, max_publish_delay_ms
        self._records_show_time = records_show_time
        self._now_ms = now_ms
        self._quiet_judge = QuietJudge(metrics, now_ms, max_skew_ms, max_publish_delay_ms)
        self._unwritten = Checkpoints(store, outputs, self._save, now_ms, checkpoint_ms)
        self._in_flight: Counter[DeviceRef] = Counter()
        """How many alerts of a device Kafka has not acknowledged yet."""
        self._turn = asyncio.Lock()
        self._is_open = True
        self._quiet_ways = QuietHandover(lambda: self._engine, devices, store, self._unwritten, self._in_flight)
        self._schedule = DeviceSchedule(lambda: self._engine, devices, store, partition_of)
        self._sweep = RuleSweep(store, outputs, self._turn, self._end_changed_of)

    def open(self) -> None:
        """Apply readings from now on: the store has the states of the assigned partitions.

        Devices that have left the registry since their state was written are due, and so are those that have a record
        and may never have given a reading.
        """
        self._is_open = True
        # Time changes such states too, and no reading that is read again tells that they were not published before a
        # crash. Of one that was frozen and replaced, records from before may have come behind those of its successor.
        for number, device_id in self.store.in_work():
            self._unwritten.mark_unpublished(DeviceRef(number, device_id))
        self.reschedule(self._devices.removed_ids())
        self.reschedule(self._devices.device_ids(), is_changed=False)
        # The rules may have changed while no process ran.
        self._sweep.begin()

    @property
    def rules(self) -> RuleBook:
        """The rules in force."""
        return self._engine.rules

    async def reload_rules(self, rule_book: RuleBook) -> None:
        """Judge the next reading by other rules; `end_changed` closes what earlier ones have opened.

        Each device changes over between two of its readings. What the former rules have decided by then is in its
        state, and nothing else has left the process, so a repeat after a crash agrees with it (ADR 152). The bounds of
        quiet devices are asked for at their next reading, or by one of the next calls of `advance_time`.
        """
        async with self._turn:
            self._quiet_ways.is_suspended = True
            try:
                # In a thread: a million devices take a second.
                await asyncio.to_thread(self._devices.reload, rule_book)
                self._engine = replace(self._engine, rules=rule_book, default_bounds=self._devices.default_bounds)
            finally:
                self._quiet_ways.is_suspended = False
            self._sweep.begin()
        # A device that has a record and never gave a reading may be due now, too.
        for count, device_id in enumerate(self._devices.device_ids()):
            if count % _EXPECTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            self.reschedule((device_id,), is_changed=False)

    async def end_changed(self) -> None:
        """Look at more devices for alerts of changed or removed rules, and close these. Raises OutputRefusedError."""
        await self._sweep.go_on(lambda: self._is_open)

    def _end_changed_of(self, partition: PartitionStates, ref: DeviceRef) -> None:
        state = partition.peek(ref.device_id)
        if self._engine.is_changed(state):
            # What is looked at stays in the bytes of the changelog; what is changed does not.
            state = partition.state(ref.device_id)
            decided = self._engine.end_changed(state, ref.device_id)
            self._write_state(partition, ref, state, decided, None)
            self._unwritten.mark_unpublished(ref)
        partition.schedule(ref.device_id, self._engine.due_ms(state, self._devices.get(ref.device_id)))

    async def process(
        self, topic: str, number: int, reading: Reading, appended_ms: int | None = None, cause: Cause | None = None
    ) -> bool:
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
            reason = filter_reason(reading, self._max_skew_ms) or self._removal_reason(reading)
            if reason is not None:
                self._metrics.filtered.labels(reason).inc()
                return True
            await self._apply(partition, DeviceRef(number, reading.device_id), reading, cause)
            return True

    def _owned(self, number: int) -> PartitionStates | None:
        """Return a partition whose records may be applied; None when it is not assigned (any more)."""
        return self.store.partitions.get(number) if self._is_open else None

    def is_assigned(self, number: int) -> bool:
        """Return whether the records of a partition may be applied."""
        return self._owned(number) is not None

    async def judge(
        self, topic: str, number: int, records: Sequence[Record], begin: int, *, uses_append_time: bool
    ) -> Judged | None:
        """Apply the readings of quiet devices among the records from `begin` on; return what is left.

        None when the partition is not assigned (any more). The engine must have all that is left, each after
        `advance_clock`, before the next call.
        """
        async with self._turn:
            partition = self._owned(number)
            if partition is None:
                return None
            return self._quiet_judge.judge(partition, topic, records, begin, uses_append_time=uses_append_time)

    def advance_clock(self, topic: str, number: int, read_until_ms: int) -> None:
        """Advance the clock of a topic's partition to `read_until_ms` (epoch ms)."""
        if (partition := self._owned(number)) is not None:
            partition.advance_clock(topic, read_until_ms)

    def _removal_reason(self, reading: Reading) -> str | None:
        """Return why the rules must not see a reading from before its device left the registry."""
        removed_ms = self._devices.removed_ms(reading.device_id)
        # It may have been applied before: the position of the device is forgotten.
        return "removed" if removed_ms is not None and reading.event_time_ms <= removed_ms else None

    async def _apply(self, partition: PartitionStates, ref: DeviceRef, reading: Reading, cause: Cause | None) -> None:
        await self._outputs.wait_for_room()
        state = self._quiet_ways.take(partition, ref)
        # Mark the device before anything else: a state from before a crash may never have been published.
        self._unwritten.mark_unpublished(ref)
        try:
            await self._apply_to(state, partition, ref, reading, cause or Cause(reading.ingest_time_ms))
        finally:
            self._quiet_ways.give_back(partition, ref)

    async def _apply_to(
        self, state: DeviceRuleState, partition: PartitionStates, ref: DeviceRef, reading: Reading, cause: Cause
    ) -> None:
        device = self._devices.get(ref.device_id)
        if len(state.outbox) >= MAX_ALERTS_IN_FLIGHT:
            await self._outputs.flush()
            # With its last alert published the device may have been forgotten.
            state = self._quiet_ways.take(partition, ref)
            self._unwritten.mark_unpublished(ref)
        if not self._engine.admits(state, reading):
            message = f"{ref.device_id!r} has {len(state.metrics)} metrics, {reading.metric!r} would be one more"
            raise RejectedReadingError(TOO_MANY_METRICS, message)
        # Advance the time first, so that the result does not depend on whether `advance_time` was called meanwhile.
        advanced_ms = partition.clock_ms() - self._max_publish_delay_ms
        alerts = self._engine.advance_time(state, ref.device_id, device, advanced_ms)
        if alerts is not None:
            self._write_state(partition, ref, state, alerts, None)
            await self._outputs.wait_for_room()
            # The device may have been forgotten, and is another one from this reading on.
            state = self._quiet_ways.take(partition, ref)
            self._unwritten.mark_unpublished(ref)
        revision = state.revision
        decided = self._engine.apply(state, reading, device)
        if decided is None:
            self._metrics.filtered.labels("stale").inc()
            if state.revision == revision:
                return
            decided = []
        self._write_state(partition, ref, state, decided, cause)

    async def advance_time(self, number: int, now_ms: int) -> None:
        """Advance the time of a partition's due devices to `now_ms` (epoch ms), up to which its readings were applied.

        Of very many, the next calls advance the others. Raises OutputRefusedError.
        """
        async with self._turn:
            partition = self._owned(number)
            if partition is None:
                return
            if partition.quiet is not None:
                partition.quiet.replan_some(_REPLANS_AT_ONCE)
            due = list(islice(partition.pop_due(now_ms), _MAX_DUE))
        for begin in range(0, len(due), _ADVANCED_AT_ONCE):
            async with self._turn:
                if self._owned(number) is not partition:
                    # The partition may come back as it is, after a rebalance.
                    for device_id in due[begin:]:
                        partition.schedule(device_id, 0)
                    return
                await self._advance_devices(partition, number, due[begin : begin + _ADVANCED_AT_ONCE], now_ms)
            await asyncio.sleep(0)

    def reschedule(self, device_ids: Iterable[str], *, is_changed: bool = True) -> None:
        """Schedule devices again, as `DeviceSchedule.reschedule`."""
        self._schedule.reschedule(device_ids, is_changed=is_changed)

    def quiet_bounds(self, device_id: str, metric: str) -> QuietBounds | None:
        """Return the bounds of a metric of a device; None when the engine needs its readings."""
        return self._quiet_ways.bounds(device_id, metric)

    async def settle(self, positions: Positions = NOTHING, *, whole: bool = False) -> Positions | None:
        """Write the states that a checkpoint covers, as `Checkpoints.settle`. Raises OutputRefusedError."""
        return await self._unwritten.settle(positions, whole=whole)

    async def drain(self) -> None:
        """Return when nothing is in flight any more, so that another process can take the partitions over.

        Until `open` nothing is applied. Faust goes on with what it had fetched before a rebalance; a state that grew by
        that would look newer than the state of the new owner, and replace it when the partition comes back. Raises
        OutputRefusedError.
        """
        async with self._turn:
            self._is_open = False
            await self.settle(whole=True)
            await self._outputs.flush()

    async def _advance_devices(
        self, partition: PartitionStates, number: int, device_ids: Sequence[str], now_ms: int
    ) -> None:
        for device_id in device_ids:
            await self._outputs.wait_for_room()
            ref, device = DeviceRef(number, device_id), self._devices.get(device_id)
            if device_id not in partition:
                due_ms = self._engine.due_ms(DeviceRuleState(), device)
                if due_ms is None or due_ms > now_ms:
                    partition.schedule(device_id, due_ms)
                    continue
            state = self._quiet_ways.take(partition, ref)
            removed_ms = self._devices.removed_ms(device_id)
            if removed_ms is not None and not state.is_forgotten and state.last_seen_ms <= removed_ms:
                decided: list[AlertRecord] | None = self._engine.remove(state, device_id, removed_ms)
            else:
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
            self._quiet_ways.give_back(partition, ref)

    def _write_state(
        self,
        partition: PartitionStates,
        ref: DeviceRef,
        state: DeviceRuleState,
        decided: Sequence[AlertRecord],
        cause: Cause | None,
    ) -> None:
        """Write a changed state to the changelog: at once with alerts to publish, which wait for it, else in `settle`.

        `decided` are the alerts that were just decided. They are published when Kafka has the state.
        """
        if state.is_forgotten and not state.outbox:
            self._forget(partition, ref)
            return
        partition.schedule(ref.device_id, self._engine.due_ms(state, self._devices.get(ref.device_id)))
        to_publish = tuple(decided) if ref in self._in_flight else tuple(state.outbox)
        if not to_publish:
            self._unwritten.mark_unsaved(ref)
            return
        self._in_flight[ref] += len(to_publish)
        self._save(ref, state, lambda: self._publish(partition, ref, state, to_publish, cause))

    def _forget(self, partition: PartitionStates, ref: DeviceRef) -> None:
        """Remove a forgotten device, whose alerts are published, from the changelog, its topic and this process."""
        self._unwritten.forget(ref)
        partition.remove(ref.device_id)
        self._outputs.write_changelog(ref.partition, ref.device_id, None)
        self._outputs.forget_latest(ref.device_id)
        self._metrics.forgotten.inc()

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
        cause: Cause | None,
    ) -> None:
        def published(alert: AlertRecord) -> None:
            state.outbox.remove(alert)
            self._in_flight[ref] -= 1
            if cause is not None:
                self._metrics.observe_reaction(max(self._now_ms() - cause.ingest_time_ms, 0) / 1000, cause.context)
            if not self._in_flight[ref]:
                del self._in_flight[ref]
                self._write_published(partition, ref, state)

        for alert in alerts:
            self._outputs.write_alert(alert, partial(published, alert), cause)

    def _write_published(self, partition: PartitionStates, ref: DeviceRef, state: DeviceRuleState) -> None:
        """Write to the changelog that the alerts are published, so that a recovery does not publish them again."""
        if self.store.partitions.get(ref.partition) is partition:
            state.revision += 1
            self._write_state(partition, ref, state, (), None)
            if self._unwritten.is_unsaved(ref):
                self._save(ref, state)
            self._quiet_ways.give(partition, ref)

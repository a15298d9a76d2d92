"""One run of Faust: from its start until it crashes, has to be restarted, or the service stops."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from faust.types import TP
from faust.types.tuples import Message

from isotherm.alerts.engine.reading import RejectedReadingError
from isotherm.alerts.input.device_table_follower import DeviceTableFollower
from isotherm.alerts.input.reading_converter import ReadingConverter
from isotherm.alerts.input.reading_traces import ReadingTraces
from isotherm.alerts.liveness import is_done_within
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.repartition.forwarder import Forwarder, ForwardingRefusedError
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.end_offsets import EndOffsets, ReadTargets
from isotherm.alerts.stream.faust_app import FaustApp
from isotherm.alerts.stream.fetched_parts import FetchedPart, FetchedRecord, InputRecord, input_record
from isotherm.alerts.stream.outputs import Cause, OutputRefusedError, Outputs, OutputsClosedError
from isotherm.alerts.stream.processor import Processor
from isotherm.connector.errors.dead_letters import DeadLettersUnavailableError
from isotherm.connector.state.target_follower import TargetFollower, TargetState
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_LOG_APPEND_TIME = 1
"""Kafka's number for the timestamp type LogAppendTime."""
_INTERVAL_S = 1.0
_STALLED_S = 10.0
_LAG_INTERVAL_S = 5.0
"""How often `lag_seconds` is updated while no device is due."""
_LEAVE_SHARE, _GIVE_UP_SHARE = 0.3, 0.1
"""Shares of the shutdown timeout: to settle what was processed, then to stop without. The other parts need the rest."""
_PERMANENT = (OutputRefusedError, ForwardingRefusedError, DeadLettersUnavailableError)

_log = logs.logger(__name__)


class RunOutcome(StrEnum):
    """Why a run has ended."""

    STOPPED = "stopped"
    RESTART = "restart"
    CRASHED = "crashed"
    FAILED = "failed"
    """A restart cannot help: a record was refused permanently."""


class StreamRunner:
    """Runs Faust, advances the clocks beside it, and handles Faust's callbacks (StreamOwner)."""

    def __init__(
        self,
        settings: AlertsSettings,
        partitions: int,
        converter: ReadingConverter,
        processor: Processor,
        outputs: Outputs,
        end_offsets: EndOffsets,
        follower: DeviceTableFollower,
        target: TargetFollower,
        health: Health,
        metrics: Metrics,
        forwarder: Forwarder | None = None,
        current_rules: Callable[[], RuleBook] | None = None,
        traces: ReadingTraces | None = None,
    ) -> None:
        """`forwarder` writes the topic that is read when the input is aggregates. It and `outputs` end with the run.

        `current_rules` returns the rules that are to be in force; without it they never change.

        Raises SettingsError.
        """
        self._settings, self._converter, self._processor, self._outputs = settings, converter, processor, outputs
        self._follower, self._target, self._health, self._metrics = follower, target, health, metrics
        self._store: DeviceStateStore = processor.store
        self._forwarder, self._traces = forwarder, traces
        self._current_rules = current_rules or (lambda: processor.rules)
        topics = settings.input_topics if forwarder is None else [settings.repartition]
        self._app = FaustApp(settings, topics, partitions, self._store, self, in_parts=self._store.has_tables)
        self._end_offsets, self._targets = end_offsets, ReadTargets()
        self._failure: Exception | None = None
        self._recovered = False
        self._recovering_since = time.monotonic()
        self._began_ms = time.time_ns() // 1_000_000
        self._paused = False
        self._asked_s = -math.inf
        """When Kafka was asked for end offsets, by the monotonic clock."""

    async def run(self, stop: Stop) -> RunOutcome:
        """Run until one of the outcomes; Faust is stopped when this returns or raises."""
        restarts = self._target.target.restarts_of(0)
        if self._forwarder is not None:
            self._forwarder.start()
        start = asyncio.create_task(self._app.start())
        stopping = asyncio.create_task(stop.wait_async())
        # A task of its own: it waits for Kafka as long as Kafka is unavailable, and this loop must not.
        maintenance, since_s = asyncio.create_task(self._maintain()), time.monotonic()
        try:
            while True:
                self._health.beat()
                await asyncio.wait([stopping], timeout=_INTERVAL_S)
                if stop.is_set():
                    return RunOutcome.STOPPED
                outcome = self._outcome(start)
                if outcome is not None:
                    return outcome
                if self._target.target.restarts_of(0) != restarts:
                    return RunOutcome.RESTART
                if self._recovered:
                    self._apply_target()
                if maintenance.done():
                    self._health.ready("outputs")
                    maintenance, since_s = asyncio.create_task(self._maintain()), time.monotonic()
                elif time.monotonic() - since_s > _STALLED_S:
                    self._health.not_ready("outputs", "Kafka does not acknowledge what is written to it")
        finally:
            stopping.cancel()
            await self._end(start, maintenance)

    def _outcome(self, start: asyncio.Task[None]) -> RunOutcome | None:
        """Return why the run cannot go on; None when it can."""
        if self._failure is not None:
            return RunOutcome.FAILED
        if self._forwarder is not None and self._forwarder.failure is not None:
            return RunOutcome.FAILED if isinstance(self._forwarder.failure, _PERMANENT) else RunOutcome.CRASHED
        if self._app.should_stop or (start.done() and start.exception() is not None):
            _log.error("the stream has ended", reason=repr(self._reason(start)))
            return RunOutcome.CRASHED
        return None

    def is_paused(self) -> bool:
        """Return whether nothing is read because the target state says so."""
        return self._paused

    def is_in_charge(self) -> bool:
        """Return whether this replica answers for all of them: the one that has the first partition does."""
        return self._recovered and 0 in self._store.partitions

    def is_recovered(self) -> bool:
        """Return whether the states of all devices of this process are recovered."""
        return self._recovered

    async def on_revoked(self) -> bool:
        self._targets.clear()
        is_drained = False
        try:
            await self._processor.drain()
            is_drained = self._failure is None
        except Exception as failure:
            self._fail(failure)
        self._recovered = False
        self._recovering_since = time.monotonic()
        self._health.not_ready("recovery", "the partitions are being assigned")
        return is_drained

    def on_recovered(self, partitions: set[int]) -> None:
        self._store.own(partitions)
        for rewrite in self._store.pop_rewrites():
            # Compaction would otherwise keep the older state, which another process has written last.
            self._outputs.write_changelog(*rewrite)
        self._processor.open()
        self._recovered = True
        self._metrics.recoveries.inc()
        seconds = time.monotonic() - self._recovering_since
        self._metrics.recovery_seconds.set(seconds)
        self._metrics.recovery_remaining.set(0)
        self._metrics.devices.set(len(self._store))
        self._health.ready("recovery")
        _log.info("recovered", partitions=sorted(partitions), devices=len(self._store), seconds=round(seconds, 3))

    async def process(self, message: Message) -> bool:
        try:
            value: Any = message.value
            if isinstance(value, FetchedPart):
                is_applied = await self._process_part(message.tp, value.records)
            else:
                is_applied = await self._process_record(message)
            if is_applied and self._traces is not None:
                self._note_judged(self._traces, message)
            return is_applied
        except Exception as failure:
            self._fail(failure)
            # Never return: Faust would count the record as processed.
            await asyncio.Event().wait()
            raise

    def _note_judged(self, traces: ReadingTraces, message: Message) -> None:
        value: Any = message.value
        if isinstance(value, FetchedPart):
            traces.judged(message.topic, message.partition, value.records, lambda record: float(record.timestamp))
        else:
            traces.judged(message.topic, message.partition, [message], lambda record: 1000.0 * record.timestamp)

    async def _process_part(self, tp: TP, records: Sequence[FetchedRecord]) -> bool:
        """Let the compiled code judge the records, and the engine those that it leaves, in their order."""
        begin = 0
        while begin < len(records):
            # The engine asks for the metadata with each reading; the bounds of quiet devices must be as new.
            self._processor.reschedule(self._follower.changed())
            judged = await self._processor.judge(
                tp.topic, tp.partition, records, begin, uses_append_time=self._settings.advance_when_idle
            )
            if judged is None:
                return False
            for index, clock_ms in judged.rest:
                self._processor.advance_clock(tp.topic, tp.partition, clock_ms)
                if not await self._process_record(input_record(tp, records[index])):
                    return False
            self._processor.advance_clock(tp.topic, tp.partition, judged.clock_ms)
            begin = judged.following
        return True

    async def _process_record(self, record: Message | InputRecord) -> bool:
        reading = await self._converter.convert(record)
        if reading is None:
            if self._traces is not None:
                self._traces.refused(record, "it cannot be read")
            # While Kafka had not got the dead-letter record, a rebalance may have taken the partition away.
            return self._processor.is_assigned(record.partition)
        self._store.add_schemas(self._converter.plain_schemas)
        try:
            # In a replay the ingest times of the readings count, not the times at which the replay wrote them.
            appended_ms = _appended_ms(record) if self._settings.advance_when_idle else None
            cause = None
            if self._traces is not None:
                cause = Cause(reading.ingest_time_ms, self._traces.context_of(record))
            return await self._processor.process(record.topic, record.partition, reading, appended_ms, cause)
        except RejectedReadingError as error:
            if self._traces is not None:
                self._traces.refused(record, str(error))
            await self._converter.dead_letter(record, error)
            return self._processor.is_assigned(record.partition)

    async def settle(self, processed: Mapping[TP, int], *, whole: bool) -> Mapping[TP, int] | None:
        if self._failure is not None:
            return None
        try:
            return await self._processor.settle(processed, whole=whole)
        except Exception as failure:
            self._fail(failure)
            return None

    def _fail(self, failure: Exception) -> None:
        if self._failure is None and not isinstance(failure, OutputsClosedError):
            self._failure = failure
            _log.error("cannot go on", exc_info=failure)

    async def _maintain(self) -> None:
        """Advance the clocks and commit; report the recovery instead while it lasts."""
        try:
            if not self._recovered:
                left = self._app.remaining()
                self._metrics.recovery_remaining.set(left)
                self._health.not_ready("recovery", f"{left} records of the changelog are not read yet")
                return
            if (rules := self._current_rules()) is not self._processor.rules:
                await self._processor.reload_rules(rules)
                _log.info("other rules are in force", rules=len(rules.keys))
            await self._processor.end_changed()
            self._processor.reschedule(self._follower.changed())
            if not self._paused:
                await self._advance_clocks()
            await self._app.commit_processed()
        except Exception as failure:
            self._fail(failure)
        self._metrics.devices.set(len(self._store))

    def _apply_target(self) -> None:
        """Pause or resume as the target state says. A rebalance resumes partitions, so a pause is repeated."""
        pause = self._target.target.state != TargetState.STARTED
        if self._forwarder is not None:
            self._forwarder.pause(pause)
        consumer, partitions = self._app.consumer, self._app.input_partitions()
        if pause:
            consumer.pause_partitions(partitions)
        elif self._paused:
            consumer.resume_partitions(partitions)
        if pause != self._paused:
            _log.info("paused" if pause else "resumed")
        self._paused = pause

    async def _advance_clocks(self) -> None:
        """Advance each partition's clock to the time up to which its topics are read, and its due devices with it."""
        now_ms, now_s = time.time_ns() // 1_000_000, time.monotonic()
        due_ms = now_ms - self._settings.max_publish_delay_ms
        is_due = any(partition.has_due(due_ms) for partition in self._store.partitions.values())
        # Kafka is asked for the sake of due devices; beside that, the end offsets only say how far behind we are.
        if is_due or now_s - self._asked_s >= _LAG_INTERVAL_S:
            self._asked_s = now_s
            await self._read_clocks(now_ms)
        for number, partition in list(self._store.partitions.items()):
            await self._processor.advance_time(number, partition.clock_ms() - self._settings.max_publish_delay_ms)

    async def _read_clocks(self, now_ms: int) -> None:
        """Advance the clocks of the partitions that were read to their end at `now_ms`."""
        inputs = self._app.input_partitions()
        read_until_ms = now_ms
        try:
            if self._forwarder is not None:
                read_until_ms = await asyncio.to_thread(self._forwarder.forwarded_until_ms, now_ms)
            ends = await asyncio.to_thread(self._end_offsets.of, inputs)
        except Exception as failure:
            # Without Kafka's answer nobody knows whether a device is silent.
            self._health.not_ready("kafka", f"does not return the end offsets of its topics: {failure!r}")
            ends, self._asked_s = {}, -math.inf
        else:
            self._health.ready("kafka")
        behind_ms = 0
        for tp in inputs:
            partition = self._store.partitions.get(tp.partition)
            if partition is None:
                continue
            until_ms = partition.clocks.get(tp.topic, 0)
            for at_ms, end in self._targets.of(tp, read_until_ms, ends[tp]) if tp in ends else ():
                if await self._app.is_read(tp, end):
                    self._targets.reach(tp)
                    until_ms = max(until_ms, at_ms)
                    if self._settings.advance_when_idle:
                        partition.advance_clock(tp.topic, at_ms)
                    break
            if until_ms or self._forwarder is not None:
                # While the forwarded time is not known, the lag is at least the duration of this run.
                behind_ms = max(behind_ms, now_ms - (until_ms or self._began_ms))
        self._metrics.lag_seconds.set(max(behind_ms, 0) / 1000)

    async def _end(self, start: asyncio.Task[None], maintenance: asyncio.Task[None]) -> None:
        self._health.not_ready("recovery", "stopped")
        self._health.ready("outputs")
        limit_s = self._settings.shutdown_timeout_ms / 1000
        leaving = asyncio.create_task(self._leave(maintenance))
        settled = await is_done_within(self._health, limit_s * _LEAVE_SHARE, leaving)
        # From here on nothing waits for Kafka's acknowledgements any more.
        self._outputs.close()
        await is_done_within(self._health, limit_s * _GIVE_UP_SHARE, leaving)
        for task in (leaving, maintenance, start):
            task.cancel()
        await asyncio.wait([leaving, maintenance, start], timeout=_INTERVAL_S)
        self._outputs.release()
        failure = leaving.exception() if leaving.done() and not leaving.cancelled() else None
        if failure is not None or not settled:
            _log.warning(
                "did not stop cleanly; records whose offsets are not committed are read again", reason=repr(failure)
            )

    async def _leave(self, maintenance: asyncio.Task[None]) -> None:
        closing = [] if self._forwarder is None else [asyncio.to_thread(self._forwarder.close)]
        await asyncio.gather(asyncio.wait([maintenance]), *closing)
        await self._app.stop()
        if self._failure is None:
            # The next run would publish the alerts in flight again.
            await self._processor.drain()

    def _reason(self, start: asyncio.Task[None]) -> BaseException | None:
        if start.done() and not start.cancelled():
            return start.exception() or self._app.crash_reason
        return self._app.crash_reason


def _appended_ms(record: Message | InputRecord) -> int | None:
    """Return the append time of a record (epoch ms); None in a topic with the producers' times."""
    return round(record.timestamp * 1000) if record.timestamp_type == _LOG_APPEND_TIME else None

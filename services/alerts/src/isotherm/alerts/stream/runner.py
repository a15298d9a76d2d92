"""One run of Faust: from its start until it crashes, is to be restarted, or the service is to stop."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum

from faust.types.tuples import Message

from isotherm.alerts.engine.reading import Reading, RefusedReadingError
from isotherm.alerts.input.device_table_follower import KnownFollower
from isotherm.alerts.input.reading_converter import Intake
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.repartition.forwarder import Forwarder
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.device_state_store import Fleet
from isotherm.alerts.stream.end_offsets import Ends
from isotherm.alerts.stream.faust_app import Streaming
from isotherm.alerts.stream.outputs import OutputRefusedError, Outputs, OutputsClosedError
from isotherm.alerts.stream.processor import Processor
from isotherm.alerts.waiting import is_done_within
from isotherm.connector.errors.dead_letters import DeadLettersUnavailableError
from isotherm.connector.state.target_follower import TargetFollower, TargetState
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_LOG_APPEND_TIME = 1
"""Kafka's number for the timestamp type of the same name."""
_TICK_S = 1.0
_STALLED_S = 10.0
_LEAVE_SHARE, _GIVE_UP_SHARE = 0.3, 0.1
"""Of the time in which a process has to end: to settle what was taken, then to leave without. Others need the rest."""
_FOR_GOOD = (OutputRefusedError, DeadLettersUnavailableError)

_log = logs.logger(__name__)


class Ended(StrEnum):
    """Why a run has ended."""

    STOPPED = "stopped"
    RESTART = "restart"
    CRASHED = "crashed"
    FAILED = "failed"
    """It cannot go on by being started again: something was refused for good."""


class Operation:
    """Runs Faust and lets time pass beside it; what Faust calls its owner."""

    def __init__(
        self,
        settings: AlertsSettings,
        partitions: int,
        intake: Intake,
        processor: Processor,
        outputs: Outputs,
        known: KnownFollower,
        target: TargetFollower,
        health: Health,
        metrics: Metrics,
        forwarder: Forwarder | None = None,
    ) -> None:
        """`forwarder` writes what is read when the input is aggregates; it and `outputs` end with the run.

        Raises SettingsError.
        """
        self._settings, self._intake, self._processor, self._outputs = settings, intake, processor, outputs
        self._known, self._target, self._health, self._metrics = known, target, health, metrics
        self._fleet: Fleet = processor.fleet
        self._forwarder = forwarder
        topics = settings.input_topics if forwarder is None else [settings.repartition]
        self._streaming = Streaming(settings, topics, partitions, self._fleet, self)
        self._ends = Ends(settings)
        self._failure: Exception | None = None
        self._recovered = False
        self._recovering_since = time.monotonic()
        self._began_ms = time.time_ns() // 1_000_000
        self._paused = False

    async def run(self, stop: Stop) -> Ended:
        """Run until it ends; whatever the reason, Faust has been stopped then."""
        restarts = self._target.target.restarts_of(0)
        if self._forwarder is not None:
            self._forwarder.start()
        start = asyncio.create_task(self._streaming.start())
        stopping = asyncio.create_task(stop.wait_async())
        # A task of its own: it waits for Kafka, for as long as Kafka is away, and nobody else may.
        tick, ticking_since = asyncio.create_task(self._tick()), time.monotonic()
        try:
            while True:
                self._health.beat()
                await asyncio.wait([stopping], timeout=_TICK_S)
                if stop.is_set():
                    return Ended.STOPPED
                ended = self._ended(start)
                if ended is not None:
                    return ended
                if self._target.target.restarts_of(0) != restarts:
                    return Ended.RESTART
                if self._recovered:
                    self._obey()
                if tick.done():
                    self._health.ready("outputs")
                    tick, ticking_since = asyncio.create_task(self._tick()), time.monotonic()
                elif time.monotonic() - ticking_since > _STALLED_S:
                    self._health.not_ready("outputs", "Kafka does not acknowledge what is written to it")
        finally:
            stopping.cancel()
            await self._end(start, tick)

    def _ended(self, start: asyncio.Task[None]) -> Ended | None:
        """Why the run cannot go on; None when it can."""
        if self._failure is not None:
            return Ended.FAILED
        if self._forwarder is not None and self._forwarder.failure is not None:
            return Ended.FAILED if isinstance(self._forwarder.failure, _FOR_GOOD) else Ended.CRASHED
        if self._streaming.should_stop or (start.done() and start.exception() is not None):
            _log.error("the stream has ended", reason=repr(self._reason(start)))
            return Ended.CRASHED
        return None

    def is_paused(self) -> bool:
        """Whether nothing is read because the target state says so."""
        return self._paused

    def is_recovered(self) -> bool:
        """Whether the memories of all our devices are there."""
        return self._recovered

    async def on_revoked(self) -> None:
        try:
            await self._processor.release()
        except Exception as failure:
            self._fail(failure)
        self._recovered = False
        self._recovering_since = time.monotonic()
        self._health.not_ready("recovery", "the partitions are being shared out")

    def on_recovered(self, partitions: set[int]) -> None:
        self._fleet.own(partitions)
        for overtaken in self._fleet.overtaken():
            # Compaction would keep the older memory, which another process has written last.
            self._outputs.change(*overtaken)
        self._recovered = True
        self._metrics.recoveries.inc()
        seconds = time.monotonic() - self._recovering_since
        self._metrics.recovery_seconds.set(seconds)
        self._metrics.recovery_remaining.set(0)
        self._health.ready("recovery")
        _log.info("recovered", partitions=sorted(partitions), devices=len(self._fleet), seconds=round(seconds, 3))

    async def take(self, message: Message) -> None:
        try:
            reading = await self._intake.reading(message)
            if reading is not None:
                await self._take(message, reading)
        except Exception as failure:
            self._fail(failure)
            # Returning would let Faust take the reading for done.
            await asyncio.Event().wait()

    async def _take(self, message: Message, reading: Reading) -> None:
        try:
            # In a replay the readings tell the time, not when they were put there.
            appended_ms = _appended_ms(message) if self._settings.idle_clock else None
            await self._processor.take(message.topic, message.partition, reading, appended_ms)
        except RefusedReadingError as error:
            await self._intake.bury(message, error)

    async def settle(self) -> bool:
        if self._failure is not None:
            return False
        try:
            await self._processor.settle()
        except Exception as failure:
            self._fail(failure)
            return False
        return True

    def _fail(self, failure: Exception) -> None:
        if self._failure is None and not isinstance(failure, OutputsClosedError):
            self._failure = failure
            _log.error("cannot go on", exc_info=failure)

    async def _tick(self) -> None:
        try:
            if not self._recovered:
                left = self._streaming.remaining()
                self._metrics.recovery_remaining.set(left)
                self._health.not_ready("recovery", f"{left} records of the changelog are still to be read")
                return
            self._processor.reschedule(self._known.changed())
            if not self._paused:
                await self._let_time_pass()
            await self._streaming.commit_taken()
        except Exception as failure:
            self._fail(failure)
        self._metrics.devices.set(len(self._fleet))

    def _obey(self) -> None:
        """Pause or go on; a rebalance lets Faust go on by itself, so a pause is said again and again."""
        wanted = self._target.target.state != TargetState.STARTED
        if self._forwarder is not None:
            self._forwarder.pause(wanted)
        consumer, partitions = self._streaming.consumer, self._streaming.input_partitions()
        if wanted:
            consumer.pause_partitions(partitions)
        elif self._paused:
            consumer.resume_partitions(partitions)
        if wanted != self._paused:
            _log.info("paused" if wanted else "resumed")
        self._paused = wanted

    async def _let_time_pass(self) -> None:
        """Let each partition's clock go on to where its topics are read, and see who is due."""
        now_ms = time.time_ns() // 1_000_000
        inputs = self._streaming.input_partitions()
        told_ms = now_ms
        try:
            if self._forwarder is not None:
                told_ms = await asyncio.to_thread(self._forwarder.told_ms, now_ms)
            ends = await asyncio.to_thread(self._ends.of, inputs)
        except Exception as failure:
            # Whoever cannot ask Kafka cannot know that a device is silent.
            self._health.not_ready("kafka", f"does not say how far its topics go: {failure!r}")
            ends = {}
        else:
            self._health.ready("kafka")
        behind_ms = 0
        for tp in inputs:
            partition = self._fleet.partitions.get(tp.partition)
            if partition is None:
                continue
            up_to_ms = partition.clocks.get(tp.topic, 0)
            if tp in ends and await self._streaming.is_read(tp, ends[tp]):
                up_to_ms = told_ms
                if self._settings.idle_clock:
                    partition.hear(tp.topic, told_ms)
            if up_to_ms or self._forwarder is not None:
                # As long as nothing is known of what is being forwarded: at least since this run began.
                behind_ms = max(behind_ms, now_ms - (up_to_ms or self._began_ms))
        self._metrics.lag_seconds.set(max(behind_ms, 0) / 1000)
        for number, partition in list(self._fleet.partitions.items()):
            await self._processor.sweep(number, partition.clock_ms() - self._settings.read_slack_ms)

    async def _end(self, start: asyncio.Task[None], tick: asyncio.Task[None]) -> None:
        self._health.not_ready("recovery", "stopped")
        self._health.ready("outputs")
        limit_s = self._settings.shutdown_timeout_ms / 1000
        leaving = asyncio.create_task(self._leave(tick))
        settled = await is_done_within(self._health, limit_s * _LEAVE_SHARE, leaving)
        # From here on nobody waits for Kafka's acknowledgement any more.
        self._outputs.close()
        await is_done_within(self._health, limit_s * _GIVE_UP_SHARE, leaving)
        for task in (leaving, tick, start):
            task.cancel()
        await asyncio.wait([leaving, tick, start], timeout=_TICK_S)
        failure = leaving.exception() if leaving.done() and not leaving.cancelled() else None
        if failure is not None or not settled:
            _log.warning("did not leave cleanly; what is not committed is read again", reason=repr(failure))

    async def _leave(self, tick: asyncio.Task[None]) -> None:
        closing = [] if self._forwarder is None else [asyncio.to_thread(self._forwarder.close)]
        await asyncio.gather(asyncio.wait([tick]), *closing)
        await self._streaming.stop()
        if self._failure is None:
            # Alerts that are still on their way would be repeated by the next run.
            await self._processor.release()

    def _reason(self, start: asyncio.Task[None]) -> BaseException | None:
        if start.done() and not start.cancelled():
            return start.exception() or self._streaming.crash_reason
        return self._streaming.crash_reason


def _appended_ms(message: Message) -> int | None:
    """When the broker appended a record (epoch ms); None in a topic that bears the producers' times."""
    return round(message.timestamp * 1000) if message.timestamp_type == _LOG_APPEND_TIME else None

"""The loop of a task: reads, prepares, writes, commits. The only place where Kafka, the lanes and the sink meet."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.connector.distributed.generations import Fence, StaleConfigurationError
from isotherm.connector.errors.policies import ErrorPolicy
from isotherm.persisters.consuming import offsets
from isotherm.persisters.consuming.consumed_records import records_of
from isotherm.persisters.consuming.fetching import (
    Fetching,
    NoCommittedOffsetError,
    NothingReadError,
    OffsetGapError,
)
from isotherm.persisters.consuming.ownership import Lease
from isotherm.persisters.consuming.topic_follower import TopicFollower
from isotherm.persisters.sinks.sink import Row, Sink, Unavailable
from isotherm.persisters.task.accounting import Counts
from isotherm.persisters.task.in_flight_batch import (
    Prepared,
    Record,
    Refusal,
    Work,
)
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.persisters.task.partition_buffers import Lane, Lanes, Partition
from isotherm.persisters.task.writers import Attempt, WriteObserver, Writers
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop, collect_rarely

_log = logs.logger(__name__)

_IDLE_WAIT_S = 0.2
_BUSY_WAIT_S = 0.005
_OPENING_TURN_S = 1.0
_CLOSING_S = 2.0
"""So long the end waits for the sink's client; one whose server does not answer is left to the end of the process."""
_CONTENT_MS = 2_000.0
"""So long after a write nothing is read, and no partition is paused, while all lanes have enough: the client throws
away what it has fetched of a partition that is paused."""


class TaskFailedError(Exception):
    """The task cannot go on at `refusal` (THROW, or attempts used up); its cause is the record's error."""

    def __init__(self, refusal: Refusal) -> None:
        record = refusal.record
        super().__init__(
            f"{record.topic}-{record.partition} at offset {record.offset}: {refusal.stage}: {refusal.error}"
        )
        self.refusal = refusal
        self.__cause__ = refusal.error


class Observer(WriteObserver, offsets.CommitObserver, Protocol):
    """What wants to know how the loop is doing; called from the loop's and the writers' threads."""

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Records got their outcome."""


class Loop:
    """Runs one task until it is stopped or fails; `run` may be called once."""

    def __init__(
        self,
        settings: LoopSettings,
        *,
        consumer: Consumer,
        sink: Sink,
        project: Callable[[Record], Prepared],
        usual: Callable[[Sequence[Record]], list[Row] | None],
        policy: ErrorPolicy,
        send_dead_letters: Callable[[Sequence[Refusal]], None],
        health: Health,
        observer: Observer,
        on_turn: Callable[[], None] = lambda: None,
        followed: TopicFollower | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`followed` knows the topics of a pattern, and is closed by its owner; `fence` says when the group is free."""
        self._settings = settings
        self._consumer = consumer
        self._sink = sink
        self._project = project
        self._usual = usual
        self._policy = policy
        self._health = health
        self._observer = observer
        self._on_turn = on_turn
        self._followed, self._fence = followed, fence
        self._subscribed: Sequence[str] = ()
        self._lease = Lease(settings.session_timeout_ms)
        self.lanes = Lanes(settings.limits, self._new_backoff, self._lease)
        self.is_drained = True
        """Whether, at the end, no write was left whose answer had not come: else its records are read again."""
        self._writers = Writers(settings.writers, sink, policy, send_dead_letters, observer)
        self._next_commit_ms = 0.0
        self._read_again_ms = 0.0
        self._failure: BaseException | None = None
        self._is_ending = False
        self._drained_by_ms = 0.0
        """When the end gives up waiting for writes: one limit for all of it."""
        self._stop = Stop()
        self._watermarks = offsets.Watermarks(consumer)
        self._fetching = Fetching(
            consumer,
            health,
            start=settings.start,
            stops_at_gap=settings.stops_at_gap,
            stall_ms=settings.stall_ms,
        )
        self._without_schema: set[Partition] = set()
        """Partitions that wait for the registry."""

    def run(self, stop: Stop) -> None:
        """Work until `stop`; everything settled is committed on return and on failure.

        Raises TaskFailedError when the policy stops the task, SinkConfigError, DeadLettersUnavailableError, or
        KafkaException when Kafka refuses for good.
        """
        self._stop = stop
        try:
            if not self._open(stop):
                return
            collect_rarely()
            while not stop.is_set() and self._failure is None:
                self._turn()
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _open(self, stop: Stop) -> bool:
        backoff = self._new_backoff()
        while not stop.is_set():
            try:
                self._sink.open()
            except Unavailable as away:
                self._health.beat()
                self._health.not_ready("sink", str(away))
                wait_ms = max(backoff.next_ms(), away.retry_after_ms or 0.0)
                _log.warning("sink not available, trying again", reason=str(away), wait_ms=round(wait_ms))
                until_ms = _now_ms() + wait_ms
                # Alive, and said to be, also in a wait that is longer than a heartbeat is waited for.
                while not stop.wait(min(wait_ms / 1000, _OPENING_TURN_S)) and _now_ms() < until_ms:
                    self._health.beat()
                    self._on_turn()
            else:
                self._health.ready("sink")
                return True
        return False

    def _turn(self) -> None:
        self._health.beat()
        self._lease.renew()
        self._subscribe()
        # Only a finished write makes room; reading now would only keep the processor busy.
        is_content = self.lanes.is_sated and _now_ms() < self._read_again_ms
        if is_content or self.lanes.all_full:
            self._collect(wait_s=_IDLE_WAIT_S / 4)
        if not is_content:
            is_idle = not (self.lanes.in_flight or self.lanes.is_waiting)
            self._read(0.0 if self.lanes.all_full else _IDLE_WAIT_S if is_idle else _BUSY_WAIT_S)
            self._collect()
        self._prepare_and_start()
        if not is_content:
            self._pause_and_resume()
        if _now_ms() >= self._next_commit_ms:
            self._commit(self.lanes.to_commit())
            # Here and not where they are asked for: a call from another thread waits for a gap between our polls.
            self._watermarks.look(self.lanes.by_partition.values())
            self._next_commit_ms = _now_ms() + self._settings.commit_interval_ms
            self._look_after_reading()
        self._on_turn()

    def _subscribe(self) -> None:
        """Read the topics that there are; a pattern may mean others by now."""
        followed = self._followed
        topics = self._settings.topics if followed is None else followed.topics
        if topics == self._subscribed:
            return
        if followed is not None and not topics:
            # What was read before goes on: a topic that is gone ends by itself.
            if not self._subscribed:
                why = followed.trouble or f"there is no topic that {followed.pattern!r} means"
                self._health.not_ready("topics", why)
            return
        closed = None if self._fence is None or self._subscribed else self._fence.closed()
        if closed is not None:
            self._health.not_ready("configuration", closed)
            return
        self._subscribed = topics
        self._health.ready("topics")
        self._health.ready("configuration")
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _read(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        messages = [first, *self._consumer.consume(self.lanes.most_read, 0)]
        if any(map(Message.error, messages)):
            for message in messages:
                self._note(message)
            messages = [message for message in messages if message.error() is None]
        self.lanes.offer(records_of(messages), _now_ms())

    def _note(self, message: Message) -> None:
        """Take note of a message that is an event: the end of a partition, an error."""
        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            lane = self.lanes.by_partition.get((str(message.topic()), int(message.partition() or 0)))
            if lane is not None:
                lane.end_of_partition, lane.read_ms = message.offset(), _now_ms()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            lane = self.lanes.by_partition.get((str(message.topic()), int(message.partition() or 0)))
            if lane is not None:
                self._fetching.out_of_range(lane)
        elif error.fatal() or not error.retriable():
            self._kafka_error(error)

    def _kafka_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = self._failure or KafkaException(error)
            return
        # A topic that does not exist yet, a broker that is away: librdkafka keeps trying, and so we say.
        self._health.not_ready("kafka", error.str())
        _log.warning("kafka", reason=error.str())

    def _look_after_reading(self) -> None:
        try:
            self._fetching.look(self.lanes.by_partition, _now_ms())
        except (OffsetGapError, NothingReadError) as failure:
            self._failure = self._failure or failure

    def _prepare_and_start(self) -> None:
        now_ms = _now_ms()
        for lane in self.lanes.by_partition.values():
            self._start(lane, now_ms)
            if lane.wants_preparing(self._settings.limits, now_ms) and self._prepare(lane, now_ms):
                self._start(lane, now_ms)

    def _prepare(self, lane: Lane, now_ms: float) -> bool:
        try:
            work = Work.prepare(self.lanes.next_batch(lane), self._policy, self._project, self._usual)
        except RegistryUnavailableError as away:
            self._without_schema.add(lane.partition)
            self._health.not_ready("registry", str(away))
            lane.wait(f"schema registry: {away}", now_ms)
            return False
        self._without_schema.discard(lane.partition)
        if self._without_schema.isdisjoint(self.lanes.by_partition):
            self._health.ready("registry")
        lane.accept(work, now_ms)
        return True

    def _start(self, lane: Lane, now_ms: float) -> None:
        work = lane.start(now_ms)
        if work is not None:
            self._writers.start(lane, work)

    def _collect(self, wait_s: float = 0.0) -> None:
        for attempt in self._writers.answers(wait_s):
            self._finished(attempt)

    def _finished(self, attempt: Attempt) -> None:
        lane = attempt.lane
        if attempt.fatal is not None:
            self._failure = self._failure or attempt.fatal
            lane.halt()
            return
        if self.lanes.by_partition.get(lane.partition) is not lane:
            return
        work = lane.in_flight
        settled = lane.finished(attempt.trouble, _now_ms(), attempt.retry_after_ms)
        if settled is None:
            self._health.not_ready("sink", attempt.trouble or "rows refused for now")
            _log.warning("sink not available, trying again", partition=lane.partition, reason=attempt.trouble)
            # A failed attempt leaves tracebacks that may hold a whole batch: they are not left to the rare collections.
            gc.collect(0)
        else:
            waiting = {partition for partition, other in self.lanes.by_partition.items() if other.trouble is not None}
            if waiting <= self._without_schema:
                self._health.ready("sink")
            self._observer.settled(lane.partition, settled)
            self._read_again_ms = _now_ms() + _CONTENT_MS
        if work is not None and work.stop is not None and settled is not None:
            self._failure = self._failure or TaskFailedError(work.stop)

    def _pause_and_resume(self) -> None:
        full, free = self.lanes.to_pause(), self.lanes.to_resume()
        if full:
            self._consumer.pause([TopicPartition(*lane.partition) for lane in full])
        if free:
            self._consumer.resume([TopicPartition(*lane.partition) for lane in free])

    def _commit(self, lanes: Sequence[Lane]) -> None:
        refused = offsets.commit(self._consumer, lanes, self._health, self._observer)
        self._failure = self._failure or refused

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            if self._fence is not None:
                # Also where there is nothing new for this task: another one has joined.
                self._fence.check()
            if not partitions:
                return
            committed_of_all = offsets.committed(consumer, partitions, self._new_backoff(), self._health, self._stop)
            if not committed_of_all:
                return
            self._fetching.assign(committed_of_all)
        except (NoCommittedOffsetError, StaleConfigurationError) as failure:
            self._failure = self._failure or failure
            return
        for found in committed_of_all:
            counts = Counts.from_metadata(found.metadata)
            committed = found.offset if found.offset >= 0 else None
            self.lanes.assign((found.topic, found.partition), committed, counts, _now_ms())
        self._health.ready("kafka")
        self._health.ready()
        _log.info("partitions assigned", partitions=_names(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lanes = [
            lane
            for partition in partitions
            if (lane := self.lanes.by_partition.get((partition.topic, partition.partition))) is not None
        ]
        self._drain(lanes)
        if self._is_ending:
            # Nothing follows: the counts stay to be told.
            return
        for lane in lanes:
            self.lanes.forget(lane.partition)
        _log.info("partitions revoked", partitions=_names(partitions))

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.lanes.forget((partition.topic, partition.partition))
        _log.warning("partitions lost to another member", partitions=_names(partitions))

    def _drain(self, lanes: Sequence[Lane]) -> None:
        """Wait for the writes in flight, within the limit, and commit what is settled."""
        deadline_ms = self._drained_by_ms if self._is_ending else _now_ms() + self._settings.drain_timeout_ms
        while any(lane.in_flight for lane in lanes) and _now_ms() < deadline_ms:
            self._health.beat()
            self._lease.renew()
            self._collect(wait_s=0.05)
        self._commit([lane for lane in lanes if lane in self.lanes.to_commit()])

    def _end(self) -> None:
        self._is_ending = True
        self._drained_by_ms = _now_ms() + self._settings.drain_timeout_ms
        lanes = list(self.lanes.by_partition.values())
        self._drain(lanes)
        for lane in lanes:
            lane.ownership.release()
        self._writers.close()
        left = [lane.partition for lane in lanes if lane.in_flight is not None]
        if left:
            self.is_drained = False
            _log.warning("ending without the answers to these writes: their records are read again", partitions=left)
        # Before the sink, whose client may wait for a frozen server: the partitions are free for others at once.
        self._consumer.close()
        closing = threading.Thread(target=self._sink.close, name="sink-close", daemon=True)
        closing.start()
        closing.join(_CLOSING_S)

    def _new_backoff(self) -> Backoff:
        return Backoff(base_ms=self._settings.backoff_base_ms, cap_ms=float(self._policy.retry_interval_ms))


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{partition.topic}-{partition.partition}" for partition in partitions]


def _now_ms() -> float:
    return time.monotonic() * 1000

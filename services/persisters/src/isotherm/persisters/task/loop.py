"""The loop of a task: read, prepare, write, commit. The only place where Kafka, the buffers and the sink meet."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.connector.distributed.generations import Fence, StaleConfigurationError
from isotherm.connector.errors.policies import ErrorPolicy
from isotherm.persisters.api.ownership import Lease
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import BulkSink, Sink
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.partition_buffer import Partition, PartitionBuffer
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.persisters.consuming import offsets
from isotherm.persisters.consuming.consumed_records import message_reader
from isotherm.persisters.consuming.fetch_positions import (
    FetchPositions,
    NoCommittedOffsetError,
    NothingReadError,
    OffsetGapError,
)
from isotherm.persisters.consuming.matching_topics import MatchingTopics
from isotherm.persisters.consuming.subscription import Rebalances, Subscription
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.persisters.task.observer import Observer
from isotherm.persisters.task.opening import close_sink, open_sink
from isotherm.persisters.task.partition_hooks import PartitionHooks
from isotherm.persisters.task.read_pacing import ReadPacing, RoomPause
from isotherm.persisters.task.task_failure import TaskFailedError
from isotherm.persisters.task.writers import Attempt, Writers
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop, collect_rarely

_log = logs.logger(__name__)

_LONGEST_WAIT_S = 0.2
"""Longest wait of one iteration, but for the pause between two groups. The client looks for signals as often."""
_WRITING_WAIT_S = 0.05
"""Longest wait for the answer to a write, while other partitions may get records that could be written beside it."""
_BEHIND_WAIT_S = 0.005
"""Longest wait for the next records while a write is in flight and Kafka has more of them."""
_CONFIRMATION_RETRY_MS = 500.0
"""Pause after a commit that was to confirm the membership, if Kafka refused it."""


class Loop:
    """Runs one task until it is stopped or fails; `run` may be called once.

    Args:
        settings: how the task runs.
        consumer: not subscribed yet.
        sink: not open yet.
        project: projects one record.
        try_project_batch: the fast path for records of one partition; None if `project` has to look at each.
        policy: decides about failed records.
        send_dead_letters: returns once the dead-letter topic has all of them.
        health: gets the loop's heartbeat and its reasons for not being ready.
        observer: is told of writes, commits and outcomes.
        on_iteration: is called once in every iteration.
        matching_topics: finds the topics of a pattern; its owner starts and closes it.
        fence: tells when no task of another configuration is in the group any more.
    """

    def __init__(
        self,
        settings: LoopSettings,
        *,
        consumer: Consumer,
        sink: Sink,
        project: Callable[[Record], ProjectedRecord],
        try_project_batch: Callable[[Sequence[Record]], Sequence[Row] | None],
        policy: ErrorPolicy,
        send_dead_letters: Callable[[Sequence[FailedRecord]], None],
        health: Health,
        observer: Observer,
        on_iteration: Callable[[], None] = lambda: None,
        matching_topics: MatchingTopics | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._sink, self._hooks = sink, PartitionHooks(sink)
        self._project = project
        self._try_project_batch = try_project_batch
        self._policy = policy
        self._health = health
        self._observer = observer
        self._on_iteration = on_iteration
        self._fence = fence
        rebalances = Rebalances(self._assigned, self._revoked, self._lost)
        self._subscription = Subscription(consumer, health, settings.topics, matching_topics, fence, rebalances)
        self._lease = Lease(settings.session_timeout_ms)
        is_bulk = isinstance(sink, BulkSink)
        self.buffers = PartitionBuffers(settings.limits, self._new_backoff, self._lease, are_merged=is_bulk)
        self.is_drained = True
        """False if a write had no answer when the task ended: its records are read again."""
        self._writers = Writers(settings.writers, sink, policy, send_dead_letters, observer, settings.limits)
        self._next_commit_ms = self._next_confirmation_ms = 0.0
        self._pacing, self._room_pause, self._read_messages = ReadPacing(), RoomPause(), message_reader()
        self._failure: BaseException | None = None
        self._is_ending = False
        self._drain_deadline_ms = 0.0
        """When the end of the task stops waiting for writes: one limit for all partitions."""
        self._stop = Stop()
        self._watermarks = offsets.Watermarks(consumer)
        self._positions = FetchPositions(
            consumer,
            health,
            start=settings.start,
            stops_at_gap=settings.stops_at_gap,
            stall_ms=settings.stall_ms,
        )
        self._without_schema: set[Partition] = set()
        """Partitions that wait for the schema registry."""

    def run(self, stop: Stop) -> None:
        """Work until `stop`; every settled record is committed on return and on failure.

        Raises TaskFailedError if the policy stops the task, SinkConfigError, DeadLettersUnavailableError, or
        KafkaException if Kafka refuses for good.
        """
        self._stop = stop
        try:
            if not open_sink(self._sink, stop, self._health, self._new_backoff(), self._on_iteration):
                return
            collect_rarely()
            while not stop.is_set() and self._failure is None:
                self._iterate()
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _iterate(self) -> None:
        self._health.beat()
        self._subscription.update()
        is_read_paused = self._room_pause.is_on(self.buffers, _now_ms())
        self._resume_and_pause(is_read_paused)
        self._wait(is_read_paused)
        self._collect()
        self._confirm_lease()
        self._prepare_and_start()
        if _now_ms() >= self._next_commit_ms:
            self._commit(self.buffers.uncommitted())
            # Not when they are asked for: a call from another thread waits for a gap between two polls.
            self._watermarks.refresh(self.buffers.by_partition.values())
            self._next_commit_ms = _now_ms() + self._settings.commit_interval_ms
            self._check_positions()
        self._on_iteration()

    def _wait(self, is_read_paused: bool) -> None:
        """Wait for the one thing that comes next, and take it: records, the answer to a write, or a time that is over.

        Records and answers cannot be waited for together. While a write is in flight its answer is waited for, and the
        client fetches meanwhile; but if there is more to read, it is read, to be prepared beside the write.
        """
        now_ms = _now_ms()
        due_ms = self.buffers.next_start_ms() if self._lease.is_valid else None
        due_s = math.inf if due_ms is None else max(0.0, due_ms - now_ms) / 1000
        longest_s = min(_LONGEST_WAIT_S, due_s)
        pause_s = self._pacing.wait_ms(now_ms) / 1000
        if is_read_paused:
            self._collect(longest_s)
        elif self.buffers.are_all_paused:
            # No record comes, but a poll reports rebalances.
            self._collect(longest_s)
            self._read(0.0)
        elif pause_s:
            self._collect(min(due_s, pause_s))
        elif not self.buffers.in_flight:
            self._read(longest_s)
        elif not self.buffers.are_open_read(self._pacing.open_offsets):
            self._read(min(longest_s, _BEHIND_WAIT_S))
        elif not self._read(0.0):
            self._collect(min(longest_s, _WRITING_WAIT_S))

    def _read(self, timeout_s: float) -> bool:
        """Read what is there, after waiting up to `timeout_s` seconds for the first message; False if there is none."""
        first = self._consumer.poll(timeout_s)
        self._room_pause.note_poll(_now_ms())
        if first is None:
            return False
        most = self.buffers.max_records_per_read
        messages = [first, *self._consumer.consume(most, 0)]
        is_all = len(messages) <= most
        found = self._read_messages(messages)
        for event in found.events:
            self._handle_event(event)
        now_ms = _now_ms()
        self.buffers.append(found.runs, now_ms)
        self._room_pause.note_read(now_ms)
        self._pacing.note_read(len(messages) - len(found.events), now_ms)
        if is_all and self._pacing.is_flowing and self.buffers.are_read(self._pacing.open_offsets):
            self._pacing.pause(now_ms)
        return True

    def _handle_event(self, message: Message) -> None:
        """Handle a message that is an event: the end of a partition, an error."""
        error, buffer = message.error(), self._buffer_of(message)
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if buffer is not None:
                buffer.end_of_partition, buffer.read_ms = message.offset(), _now_ms()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            if buffer is not None:
                self._positions.mark_out_of_range(buffer)
        elif error.fatal() or not error.retriable():
            self._handle_kafka_error(error)

    def _buffer_of(self, message: Message) -> PartitionBuffer | None:
        return self.buffers.by_partition.get((str(message.topic()), int(message.partition() or 0)))

    def _handle_kafka_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = self._failure or KafkaException(error)
            return
        # A topic that does not exist yet, a broker that is away: librdkafka tries again by itself.
        self._health.not_ready("kafka", error.str())
        _log.warning("kafka", reason=error.str())

    def _check_positions(self) -> None:
        try:
            self._positions.check(self.buffers.by_partition, _now_ms())
        except (OffsetGapError, NothingReadError) as failure:
            self._failure = self._failure or failure

    def _prepare_and_start(self) -> None:
        now_ms = _now_ms()
        due = self.buffers.due(now_ms)
        for buffer in self.buffers.by_partition.values():
            self._start(buffer, now_ms)
            if buffer in due and self._prepare(buffer, now_ms):
                self._start(buffer, now_ms)
        self._writers.start_gathered()

    def _prepare(self, buffer: PartitionBuffer, now_ms: float) -> bool:
        try:
            batch = InFlightBatch.prepare(
                self.buffers.next_batch(buffer), self._policy, self._project, self._try_project_batch
            )
        except RegistryUnavailableError as away:
            self._without_schema.add(buffer.partition)
            self._health.not_ready("registry", str(away))
            buffer.back_off(f"schema registry: {away}", now_ms)
            return False
        self._without_schema.discard(buffer.partition)
        if self._without_schema.isdisjoint(self.buffers.by_partition):
            self._health.ready("registry")
        buffer.accept(batch, now_ms)
        return True

    def _start(self, buffer: PartitionBuffer, now_ms: float) -> None:
        if not self._lease.is_valid:
            return
        batch = buffer.start(now_ms)
        if batch is not None:
            self._writers.gather(buffer, batch)

    def _collect(self, wait_s: float = 0.0) -> None:
        for attempt in self._writers.answers(wait_s):
            self._finish(attempt)

    def _finish(self, attempt: Attempt) -> None:
        buffer = attempt.buffer
        if attempt.fatal is not None:
            self._failure = self._failure or attempt.fatal
            buffer.halt()
            return
        if self.buffers.by_partition.get(buffer.partition) is not buffer:
            return
        batch = buffer.in_flight
        settled = buffer.finish(attempt.retry_reason, _now_ms(), attempt.retry_after_ms)
        if settled is None:
            self._health.not_ready("sink", attempt.retry_reason or "rows failed for now")
            _log.warning("sink not available, trying again", partition=buffer.partition, reason=attempt.retry_reason)
            # The tracebacks of a failed attempt may hold a whole batch: collect them now, not at the rare collections.
            gc.collect(0)
        else:
            waiting = {each.partition for each in self.buffers.by_partition.values() if each.retry_reason is not None}
            if waiting <= self._without_schema:
                self._health.ready("sink")
            self._observer.settled(buffer.partition, settled)
            self._room_pause.note_written(_now_ms())
        if batch is not None and batch.stopped_at is not None and settled is not None:
            self._failure = self._failure or TaskFailedError(batch.stopped_at)

    def _resume_and_pause(self, is_read_paused: bool) -> None:
        drained = self.buffers.resume_drained()
        full = [] if is_read_paused else self.buffers.pause_full()
        if drained:
            self._consumer.resume([TopicPartition(*buffer.partition) for buffer in drained])
        if full:
            self._consumer.pause([TopicPartition(*buffer.partition) for buffer in full])

    def _commit(self, buffers: Sequence[PartitionBuffer]) -> None:
        refused = offsets.commit(self._consumer, buffers, self._health, self._observer, self._lease)
        self._failure = self._failure or refused

    def _confirm_lease(self) -> None:
        """Commit, though nothing may be new, if the coordinator has not confirmed the membership for some time."""
        if not self._lease.is_due or _now_ms() < self._next_confirmation_ms:
            return
        if buffers := self.buffers.uncommitted() or self.buffers.known():
            self._commit(buffers)
            self._next_confirmation_ms = _now_ms() + _CONFIRMATION_RETRY_MS

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            if self._fence is not None:
                # Also without new partitions for this task: another task has joined the group.
                self._fence.check()
            if not partitions:
                return
            found_of_all = offsets.committed(consumer, partitions, self._new_backoff(), self._health, self._stop)
            if not found_of_all:
                return
            self._positions.assign(found_of_all)
        except (NoCommittedOffsetError, StaleConfigurationError) as failure:
            self._failure = self._failure or failure
            return
        for found in found_of_all:
            counts = Counts.from_metadata(found.metadata)
            committed = found.offset if found.offset >= 0 else None
            self.buffers.assign((found.topic, found.partition), committed, counts, _now_ms())
        self._health.ready("kafka")
        self._health.ready()
        opened = [(found.topic, found.partition) for found in found_of_all]
        self._failure = self._hooks.open(opened, self._failure)
        _log.info("partitions assigned", partitions=_names(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = (self.buffers.by_partition.get((each.topic, each.partition)) for each in partitions)
        revoked = [buffer for buffer in found if buffer is not None]
        self._drain(revoked)
        self._failure = self._hooks.close((buffer.partition for buffer in revoked), self._failure)
        if self._is_ending:
            # The last heartbeat still reports the counts of these buffers.
            return
        for buffer in revoked:
            self.buffers.remove(buffer.partition)
        _log.info("partitions revoked", partitions=_names(partitions))

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.buffers.remove((partition.topic, partition.partition))
        self._failure = self._hooks.close(((each.topic, each.partition) for each in partitions), self._failure)
        _log.warning("partitions lost to another member", partitions=_names(partitions))

    def _drain(self, buffers: Sequence[PartitionBuffer]) -> None:
        """Wait for the writes in flight, within the limit, and commit what is settled."""
        deadline_ms = self._drain_deadline_ms if self._is_ending else _now_ms() + self._settings.drain_timeout_ms
        while any(buffer.in_flight for buffer in buffers) and _now_ms() < deadline_ms:
            self._health.beat()
            self._confirm_lease()
            self._collect(wait_s=0.05)
        self._commit([buffer for buffer in buffers if buffer in self.buffers.uncommitted()])

    def _end(self) -> None:
        self._is_ending = True
        self._drain_deadline_ms = _now_ms() + self._settings.drain_timeout_ms
        buffers = list(self.buffers.by_partition.values())
        self._drain(buffers)
        for buffer in buffers:
            buffer.ownership.release()
        self._writers.close()
        self._failure = self._hooks.close((buffer.partition for buffer in buffers), self._failure)
        unanswered = [buffer.partition for buffer in buffers if buffer.in_flight is not None]
        if unanswered:
            self.is_drained = False
            _log.warning("ending with unanswered writes: their records are read again", partitions=unanswered)
        # Before the sink, whose client may wait for a frozen server: other tasks get the partitions at once.
        self._consumer.close()
        close_sink(self._sink)

    def _new_backoff(self) -> Backoff:
        return Backoff(base_ms=self._settings.backoff_base_ms, cap_ms=float(self._policy.retry_interval_ms))


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{partition.topic}-{partition.partition}" for partition in partitions]


def _now_ms() -> float:
    return time.monotonic() * 1000

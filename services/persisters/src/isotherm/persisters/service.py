"""The composition root: one task of one connector, with everything that its loop needs.

It reconciles the task with the connector's target state, builds consumer, sink, projection and dead-letter queue, and
publishes the task's status. `distributed` runs the same task in a process of a distributed worker.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer
from prometheus_client import CollectorRegistry

from isotherm.connector.config.converters import PARTS, registry_settings
from isotherm.connector.config.files import ConnectorConfig, group_of
from isotherm.connector.config.masking import mask_of
from isotherm.connector.config.validation import Validated
from isotherm.connector.distributed.generations import Fence, Generation
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.distributed.task_launch import TaskLaunch, report_to_worker
from isotherm.connector.errors.dead_letters import DeadLetterQueue, producer_overrides
from isotherm.connector.errors.failure_limits import FailureLimitError, FailureWatch, failure_limits
from isotherm.connector.standalone.reconcile import reconcile
from isotherm.connector.state.status import Heartbeat, State
from isotherm.connector.state.target_follower import Target, TargetFollower
from isotherm.persisters.api.sink import Sink, SinkConfigError
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.configuration import dead_letter_topic, error_policy, projector, start_offset
from isotherm.persisters.consuming.matching_topics import MatchingTopics
from isotherm.persisters.consuming.membership import Membership
from isotherm.persisters.consuming.record_traces import RecordTraces
from isotherm.persisters.consuming.topic_ids import TopicIds
from isotherm.persisters.readback import Answering, AnswerPublisher, ReadbackInbox, answered
from isotherm.persisters.records.decoding import AvroDecoder
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.plugin import SinkKind
from isotherm.persisters.task.dead_letter_sender import DeadLetterSender, ensure_dead_letter_topic
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.persisters.task.task_failure import TaskFailedError
from isotherm.persisters.task.task_observer import FailedRecordLog, TaskObserver
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.tracing.opening import consumed_traces_of

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces
    from isotherm.servicekit.tracing.spans import Attributes

_log = logs.logger(__name__)

_LIST_TIMEOUT_S = 10.0
_ANNOUNCE_TIMEOUT_S = 5.0
_DRAIN_SHARE = 0.6
"""Largest part of the shutdown's time that waits for writes in flight."""
VERSION = version("isotherm-persisters")


@dataclass(frozen=True)
class TaskAssignment:
    """One task of a connector, and who assigned it to this process."""

    kind: SinkKind
    written: ConnectorConfig
    """The configuration as its file or its record has it."""
    config: Validated
    """The same with its references to secrets resolved."""
    task: int
    launch: TaskLaunch | None = None
    """What a distributed worker launched, which publishes the connector; None if a file owns the connector."""
    inbox: ReadbackInbox = field(default_factory=ReadbackInbox)
    """Takes the requests to read back."""


def run_task(settings: PersistersSettings, assignment: TaskAssignment, stop: Stop) -> int:
    """Run the task until `stop`, following its connector's target state, and return the exit code."""
    config, task = assignment.config, assignment.task
    for name in assignment.kind.noisy_loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    for notice in config.notices:
        _log.warning("configuration", key=notice.key, notice=notice.message)
    health = Health()
    registry = CollectorRegistry()
    metrics = TaskMetrics(registry, config.name, task)
    traces = _traces(settings, assignment, registry)
    monitoring = MonitoringServer(settings.http, health, registry, with_exemplars=traces is not None)
    monitoring.start()
    _log.info("task", connector=config.name, task=task, sink=assignment.kind.name, http_port=monitoring.port)
    try:
        if assignment.launch is not None:
            report_to_worker(http_port=monitoring.port)
            return _Task(settings, assignment, health, metrics, registry, None, traces).run(stop)
        follower = TargetFollower(settings.kafka, settings.registry, config.name, assignment.inbox.offer)
        follower.start()
        # Its poll, which nothing can wake, runs out while the task drains.
        take_back = stop.on_set(follower.end)
        try:
            return _Task(settings, assignment, health, metrics, registry, follower, traces).run(stop)
        finally:
            take_back()
            follower.close()
    finally:
        monitoring.stop()
        if traces is not None:
            traces.close()


def _traces(
    settings: PersistersSettings, assignment: TaskAssignment, registry: CollectorRegistry
) -> ConsumedTraces | None:
    name, task = assignment.config.name, assignment.task
    attributes: Attributes = {"isotherm.connector": name, "isotherm.task": task, "isotherm.sink": assignment.kind.name}
    return consumed_traces_of(
        settings.tracing, "persisters", registry, instance=f"{name}-{task}", attributes=attributes
    )


def buffer_limits(kind: SinkKind, config: Validated, settings: PersistersSettings) -> BufferLimits:
    """Return how much the buffers of a connector's task may hold."""
    limits = BufferLimits(
        batch_records=config.integer(f"{kind.prefix}.batch.size"),
        batch_bytes=config.integer(f"{kind.prefix}.batch.bytes"),
        linger_ms=config.integer(f"{kind.prefix}.linger.ms"),
        waiting_records=settings.waiting_records,
        waiting_bytes=settings.waiting_bytes,
    )
    return limits.with_large_batches() if kind.has_large_batches else limits.with_writers(settings.writers)


class _Task:
    def __init__(
        self,
        settings: PersistersSettings,
        assignment: TaskAssignment,
        health: Health,
        metrics: TaskMetrics,
        registry: CollectorRegistry,
        target_follower: TargetFollower | None,
        traces: ConsumedTraces | None = None,
    ) -> None:
        self._traces = None if traces is None else RecordTraces(traces)
        self._settings, self._assignment, self._target_follower = settings, assignment, target_follower
        self._kind, self._config, self._number = assignment.kind, assignment.config, assignment.task
        launch, written = assignment.launch, assignment.written
        self._generation = None if launch is None else Generation.made(launch.generation, written.config)
        self._registry = registry
        self._health, self._metrics = health, metrics
        self._schemas = SchemaRegistry(settings.registry)
        self._topic_ids = TopicIds(lambda: clients.admin(settings.kafka, f"{self._config.name}-topic-ids"))
        self._value_schemas, self._key_schemas = (self._registry_of(part) for part in PARTS)
        self._status = Heartbeat(
            self._status_producer,
            self._schemas,
            connector=self._config.name,
            task=self._number,
            worker_group=settings.worker_group if launch is None else launch.worker_group,
            worker=None if launch is None else launch.worker,
        )
        self._failed_record_log = FailedRecordLog(self._config, metrics.logged)
        self._failures = FailureWatch(failure_limits(self._config))
        self._is_drained = True

    def _registry_of(self, part: str) -> SchemaRegistry:
        """Return the schema registry of keys or values: the process's own unless the connector names another one."""
        settings = registry_settings(self._config, part, self._settings.registry)
        return self._schemas if settings == self._settings.registry else SchemaRegistry(settings)

    def run(self, stop: Stop) -> int:
        """Run until `stop` and return the exit code; every failure is logged, and its trace is in the status."""
        try:
            reconcile(self._target, self._number, stop, self._work, self._idle, self._watch)
        except TaskFailedError as failure:
            return self._failed("stopped by the error policy", failure, Exit.FAILED)
        except FailureLimitError as failure:
            return self._failed("stopped: nearly every record fails", failure, Exit.FAILED)
        except SinkConfigError as failure:
            return self._failed("configuration does not fit the sink", failure, Exit.CONFIGURATION)
        except Exception as failure:
            return self._failed("task failed", failure, Exit.FAILED)
        self._status.publish_final_state(State.UNASSIGNED, self._metrics.totals())
        _log.info("task stopped", connector=self._config.name, task=self._number, **self._metrics.totals())
        return Exit.OK if self._is_drained else Exit.DEADLINE

    def _target(self) -> Target | None:
        if self._target_follower is None:
            return Target()
        return self._target_follower.target if self._target_follower.is_current() else None

    def _watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        # Without a follower the target never changes.
        return (lambda: None) if self._target_follower is None else self._target_follower.watch(callback)

    def _known(self) -> Mapping[str, Any] | None:
        return None if self._target_follower is None else self._target_follower.record

    def _work(self, stop: Stop) -> int:
        self._health.ready("target")
        self._status.beat(State.RUNNING, self._metrics.totals, self._metrics.lag)
        dead_letters = self._dead_letter_sender(stop)
        if stop.is_set():
            return Exit.OK
        with self._matching_topics() as matching_topics:
            sink = self._sink()
            loop = self._loop(sink, dead_letters, matching_topics)
            self._metrics.follow(lambda: dict(loop.buffers.by_partition))
            with self._background_job(), self._answered(loop, sink):
                loop.run(stop)
            self._is_drained = loop.is_drained
        return Exit.OK

    def _idle(self, state: State | None) -> None:
        self._health.beat()
        if state is None:
            self._health.not_ready("target", "not known yet whether the connector is to run")
            return
        # A paused task is ready: it waits for no sink, and writes that a pause left behind do not matter any more.
        self._is_drained = True
        for part in ("start", "target", "kafka", "sink", "registry"):
            self._health.ready(part)
        self._status.beat(state, self._metrics.totals, dict)

    def _failed(self, what: str, failure: Exception, code: Exit) -> int:
        mask = mask_of(self._assignment.written, os.environ)
        trace = mask("".join(traceback.format_exception(failure)))
        _log.error(what, connector=self._config.name, task=self._number, reason=mask(str(failure)), trace=trace)
        self._status.publish_final_state(State.FAILED, self._metrics.totals(), trace)
        if self._assignment.launch is not None:
            report_to_worker(trace=trace)
        return code

    def _background_job(self) -> AbstractContextManager[None]:
        # The connector's first task does it for all tasks.
        return nullcontext() if self._number else self._kind.load().background_job(self._config, self._registry)

    def _answered(self, loop: Loop, sink: Sink) -> AbstractContextManager[None]:
        launch, settings = self._assignment.launch, self._settings
        answering = Answering(
            self._config.name,
            self._number,
            None if launch is None else launch.worker,
            sink,
            lambda: projector(self._kind, self._config, self._value_schemas, self._key_schemas),
            lambda topic, partition: (topic, partition) in loop.buffers.by_partition,
            mask_of(self._assignment.written, os.environ),
        )
        name = f"{self._config.name}-{self._number}-readback"
        publisher = AnswerPublisher(lambda: clients.producer(settings.kafka, name), self._schemas)
        return answered(self._assignment.inbox, answering, publisher, self._schemas)

    def _sink(self) -> Sink:
        build = self._kind.load().build
        return build(self._config, AvroDecoder(self._value_schemas), self._settings.writers, self._topic_ids)

    def _loop(self, sink: Sink, dead_letters: DeadLetterSender, matching_topics: MatchingTopics | None) -> Loop:
        kind, config = self._kind, self._config
        project = projector(kind, config, self._value_schemas, self._key_schemas)
        member = Membership(self._settings, config, self._number, self._generation)
        return Loop(
            self._loop_settings(member),
            consumer=self._consumer(member),
            sink=sink,
            project=project,
            try_project_batch=project.try_project_batch,
            policy=error_policy(kind, config),
            send_dead_letters=dead_letters.send,
            health=self._health,
            observer=TaskObserver(self._metrics, self._failed_record_log, self._failures, self._traces),
            on_iteration=self._on_iteration,
            matching_topics=matching_topics,
            fence=self._fence(),
        )

    def _consumer(self, member: Membership) -> Consumer:
        """Return a consumer of the group, not subscribed yet.

        Raises SinkConfigError for overrides that Kafka refuses.
        """
        group = group_of(self._config.name)
        try:
            return clients.consumer(self._settings.kafka, member.client_id, group, **member.consumer_overrides())
        except KafkaException as error:
            raise SinkConfigError(f"consumer.override: {error.args[0].str()}") from error

    def _fence(self) -> Fence | None:
        """Return what keeps tasks of two configurations apart; None if the only configuration is a file."""
        if self._generation is None:
            return None
        admin = clients.admin(self._settings.kafka, f"{self._config.name}-{self._number}-fence")
        return Fence(admin, group_of(self._config.name), self._generation)

    def _loop_settings(self, member: Membership) -> LoopSettings:
        config, settings = self._config, self._settings
        return LoopSettings(
            config.items("topics"),
            buffer_limits(self._kind, config, settings),
            start=start_offset(config),
            stops_at_gap=settings.offset_gap == "stop",
            writers=settings.writers,
            commit_interval_ms=settings.commit_interval_ms,
            # The rest of the time is for leaving the group and for the last heartbeat.
            drain_timeout_ms=min(settings.drain_timeout_ms, settings.shutdown_timeout_ms * _DRAIN_SHARE),
            session_timeout_ms=member.session_timeout_ms,
        )

    @contextmanager
    def _matching_topics(self) -> Iterator[MatchingTopics | None]:
        """Follow the topics of `topics.regex`; None without this key."""
        pattern = self._config.text("topics.regex")
        if not pattern:
            yield None
            return
        admin = clients.admin(self._settings.kafka, f"{self._config.name}-{self._number}-topics")
        own = dead_letter_topic(self._config)
        topics = MatchingTopics(
            pattern, lambda: admin.list_topics(timeout=_LIST_TIMEOUT_S).topics, () if own is None else (own,)
        )
        topics.start()
        try:
            yield topics
        finally:
            topics.close()

    def _on_iteration(self) -> None:
        self._status.beat(State.RUNNING, self._metrics.totals, self._metrics.lag)
        self._failures.check()

    def _status_producer(self) -> Producer:
        # The announcements come first: a producer that is dropped because a schema is missing takes 30 s to end.
        messages = self._announcements()
        producer = clients.producer(self._settings.kafka, f"{self._config.name}-{self._number}-status")
        for topic, key, value in messages:
            producer.produce(topic, key=key, value=value)
        # The connector is known before its first heartbeat, so that users can pause what they see.
        producer.flush(_ANNOUNCE_TIMEOUT_S)
        return producer

    def _announcements(self) -> list[tuple[str, str, bytes]]:
        # The first task announces for all tasks. The console writes the connectors of distributed workers.
        if self._number or self._assignment.launch is not None:
            return []
        return announcements(
            self._schemas,
            self._assignment.written,
            self._config.definition,
            version=VERSION,
            worker_group=self._settings.worker_group,
            known=self._known(),
        )

    def _dead_letter_sender(self, stop: Stop) -> DeadLetterSender:
        topic, name = dead_letter_topic(self._config), self._config.name
        queue = None
        if topic is not None:
            admin = clients.admin(self._settings.kafka, f"{name}-dead-letters")
            factor = self._config.integer("errors.deadletterqueue.topic.replication.factor")
            ensure_dead_letter_topic(admin, topic, factor, self._health, stop)
            producer = clients.producer(
                self._settings.kafka, f"{name}-{self._number}-dead-letters", **producer_overrides()
            )
            queue = DeadLetterQueue(producer, topic)
        return DeadLetterSender(queue, self._config, self._number, self._metrics.dead_letters_failed)

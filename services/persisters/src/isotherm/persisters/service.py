"""One task of one connector, with everything it needs round its loop."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from confluent_kafka import KafkaException, Producer
from prometheus_client import CollectorRegistry

from isotherm.connector.config.converters import PARTS, is_enveloped, registry_settings
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.config.validation import Validated
from isotherm.connector.distributed.generations import Generation
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.distributed.task_launch import TaskLaunch, report_to_worker
from isotherm.connector.errors.dead_letters import (
    DeadLetterQueue,
    DeadLetterRecord,
    DeadLettersUnavailableError,
    dead_letter_headers,
    ensure_topic,
    producer_overrides,
)
from isotherm.connector.errors.failure_limits import FailureLimitError, FailureWatch, failure_limits
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.connector.standalone.reconcile import reconcile
from isotherm.connector.state.status import DeferredHeartbeat, Heartbeat, State
from isotherm.connector.state.target_follower import Target, TargetFollower
from isotherm.persisters.api.record import FailedRecord
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.buffers.partition_buffers import Limits
from isotherm.persisters.consuming.membership import Membership
from isotherm.persisters.consuming.topic_follower import TopicFollower
from isotherm.persisters.consuming.topic_ids import TopicIds
from isotherm.persisters.records.decoding import AvroDecoder, key_decoder, value_decoder
from isotherm.persisters.records.projection import Conventions, Projector
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.catalog import SinkKind
from isotherm.persisters.task.loop import Loop, TaskFailedError
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.persisters.task.observers import Observers, RefusalLog
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

_CHATTY = ("elastic_transport", "elasticsearch", "cassandra", "hazelcast")
"""Clients that tell every request and reconnection; what matters of it is told by the loop."""
_LIST_TIMEOUT_S = 10.0
_RESET = "consumer.override.auto.offset.reset"
_ANNOUNCING_S = 5.0
_DRAIN_SHARE = 0.6
"""Of the time that the shutdown has, so much at most waits for writes in flight."""
VERSION = version("isotherm-persisters")


@dataclass(frozen=True)
class Assignment:
    """One task of a connector, and who gave it to this process."""

    kind: SinkKind
    written: ConnectorConfig
    """As its file or its record has it."""
    config: Validated
    """With its references to secrets resolved."""
    task: int
    handover: TaskLaunch | None = None
    """From a distributed worker, which answers for the connector; None where its file owns it."""


def run_task(settings: PersistersSettings, assignment: Assignment, stop: Stop) -> int:
    """Run the task until `stop`, as it is wanted on `isotherm.connectors`; the exit code."""
    config, task = assignment.config, assignment.task
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.ERROR)
    for notice in config.notices:
        _log.warning("configuration", key=notice.key, notice=notice.message)
    health = Health()
    registry = CollectorRegistry()
    metrics = TaskMetrics(registry, config.name, task)
    monitoring = MonitoringServer(settings.http, health, registry)
    monitoring.start()
    _log.info("task", connector=config.name, task=task, sink=assignment.kind.name, http_port=monitoring.port)
    try:
        if assignment.handover is not None:
            report_to_worker(http_port=monitoring.port)
            return _Task(settings, assignment, health, metrics, registry, None).run(stop)
        follower = TargetFollower(settings.kafka, settings.registry, config.name)
        follower.start()
        try:
            return _Task(settings, assignment, health, metrics, registry, follower).run(stop)
        finally:
            follower.close()
    finally:
        monitoring.stop()


def error_policy(kind: SinkKind, config: Validated) -> ErrorPolicy:
    """The error keys of a configuration."""
    return ErrorPolicy(
        policy=Policy(config.text(f"{kind.prefix}.error.policy").upper()),
        max_retries=config.integer(f"{kind.prefix}.max.retries"),
        retry_interval_ms=config.integer(f"{kind.prefix}.retry.interval"),
        tolerate_all=config.text("errors.tolerance").lower() == "all",
        dead_letters=dead_letter_topic(config) is not None,
    )


def dead_letter_topic(config: Validated) -> str | None:
    """The dead-letter topic, or None when dead letters are not enabled."""
    named = config.text("errors.deadletterqueue.topic.name")
    return named or (f"{config.name}.dead-letters" if config.flag("errors.deadletterqueue.enable") else None)


class _Task:
    def __init__(
        self,
        settings: PersistersSettings,
        assignment: Assignment,
        health: Health,
        metrics: TaskMetrics,
        registry: CollectorRegistry,
        follower: TargetFollower | None,
    ) -> None:
        self._settings, self._assignment, self._follower = settings, assignment, follower
        self._kind, self._config, self._number = assignment.kind, assignment.config, assignment.task
        handover, written = assignment.handover, assignment.written
        self._generation = None if handover is None else Generation.made(handover.generation, written.config)
        self._registry = registry
        self._health, self._metrics = health, metrics
        self._schemas = SchemaRegistry(settings.registry)
        self._topic_ids = TopicIds(lambda: kafka.admin(settings.kafka, f"{self._config.name}-topic-ids"))
        self._of_values, self._of_keys = (self._registry_of(part) for part in PARTS)
        self._status = DeferredHeartbeat(self._heartbeat)
        self._refusals = RefusalLog(self._config, metrics.logged)
        self._failures = FailureWatch(failure_limits(self._config))
        self._followed: TopicFollower | None = None
        self._is_drained = True

    def _registry_of(self, part: str) -> SchemaRegistry:
        """The registry of keys or values; the process's own unless the connector names another one."""
        settings = registry_settings(self._config, part, self._settings.registry)
        return self._schemas if settings == self._settings.registry else SchemaRegistry(settings)

    def run(self, stop: Stop) -> int:
        """The exit code; every failure is logged and told in the status with its trace."""
        try:
            reconcile(self._target, self._number, stop, self._work, self._idle)
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
        if self._follower is None:
            return Target()
        return self._follower.target if self._follower.is_current() else None

    def _known(self) -> Mapping[str, Any] | None:
        return None if self._follower is None else self._follower.record

    def _work(self, stop: Stop) -> int:
        self._health.ready("target")
        self._status.beat(State.RUNNING, self._metrics.totals, self._metrics.lag)
        loop = self._loop(stop)
        if loop is not None:
            with self._upkeep(), self._following():
                loop.run(stop)
            self._is_drained = loop.is_drained
        return Exit.OK

    def _idle(self, state: State | None) -> None:
        self._health.beat()
        if state is None:
            self._health.not_ready("target", "not known yet whether the connector is to run")
            return
        # It does what it was told; and nothing waits for a paused sink, nor for what a pause left behind.
        self._is_drained = True
        for part in ("start", "target", "kafka", "sink", "registry"):
            self._health.ready(part)
        self._status.beat(state, self._metrics.totals, dict)

    def _failed(self, what: str, failure: Exception, code: Exit) -> int:
        mask = mask_of(self._assignment.written, os.environ)
        trace = mask("".join(traceback.format_exception(failure)))
        _log.error(what, connector=self._config.name, task=self._number, reason=mask(str(failure)), trace=trace)
        self._status.publish_final_state(State.FAILED, self._metrics.totals(), trace)
        if self._assignment.handover is not None:
            report_to_worker(trace=trace)
        return code

    def _upkeep(self) -> AbstractContextManager[None]:
        # The connector's first task does it for all.
        return nullcontext() if self._number else self._kind.load().upkeep(self._config, self._registry)

    def _loop(self, stop: Stop) -> Loop | None:
        kind, config, settings = self._kind, self._config, self._settings
        build = kind.load().build
        policy = error_policy(kind, config)
        project = projector(kind, config, self._of_values, self._of_keys)
        letters = self._dead_letters(stop)
        if stop.is_set():
            return None
        self._followed = self._follower_of_topics()
        member = Membership(settings, config, self._number, self._generation)
        consumer = member.consumer()
        loop = Loop(
            LoopSettings(
                config.items("topics"),
                Limits(
                    batch_records=config.integer(f"{kind.prefix}.batch.size"),
                    batch_bytes=config.integer(f"{kind.prefix}.batch.bytes"),
                    linger_ms=config.integer(f"{kind.prefix}.linger.ms"),
                    waiting_records=settings.waiting_records,
                    waiting_bytes=settings.waiting_bytes,
                    writing_bytes=2 * settings.writers * config.integer(f"{kind.prefix}.batch.bytes"),
                ),
                start=config.text(_RESET) or "earliest",
                stops_at_gap=settings.offset_gap == "stop",
                writers=settings.writers,
                commit_interval_ms=settings.commit_interval_ms,
                # The rest is for leaving the group and the last word.
                drain_timeout_ms=min(settings.drain_timeout_ms, settings.shutdown_timeout_ms * _DRAIN_SHARE),
                session_timeout_ms=member.session_timeout_ms,
            ),
            consumer=consumer,
            sink=build(config, AvroDecoder(self._of_values), settings.writers, self._topic_ids),
            project=project,
            usual=project.usual,
            policy=policy,
            send_dead_letters=lambda refusals: self._send(letters, refusals),
            health=self._health,
            observer=Observers(self._metrics, self._refusals, self._failures),
            on_turn=self._turn_over,
            followed=self._followed,
            fence=member.fence(),
        )
        self._metrics.follow(lambda: dict(loop.lanes.by_partition))
        return loop

    def _follower_of_topics(self) -> TopicFollower | None:
        pattern = self._config.text("topics.regex")
        if not pattern:
            return None
        admin = kafka.admin(self._settings.kafka, f"{self._config.name}-{self._number}-topics")
        own = dead_letter_topic(self._config)
        return TopicFollower(
            pattern, lambda: admin.list_topics(timeout=_LIST_TIMEOUT_S).topics, () if own is None else (own,)
        )

    @contextmanager
    def _following(self) -> Iterator[None]:
        followed = self._followed
        if followed is not None:
            followed.start()
        try:
            yield
        finally:
            if followed is not None:
                followed.close()

    def _send(self, letters: DeadLetterQueue | None, refusals: Sequence[FailedRecord]) -> None:
        if letters is None:
            return
        try:
            letters.send([self._letter(one) for one in refusals])
        except DeadLettersUnavailableError:
            self._metrics.letters_failed(len(refusals))
            raise

    def _turn_over(self) -> None:
        self._status.beat(State.RUNNING, self._metrics.totals, self._metrics.lag)
        self._failures.check()

    def _heartbeat(self) -> Heartbeat:
        handover = self._assignment.handover
        return Heartbeat(
            self._status_producer,
            self._schemas,
            connector=self._config.name,
            task=self._number,
            worker_group=self._settings.worker_group if handover is None else handover.worker_group,
            worker=None if handover is None else handover.worker,
        )

    def _status_producer(self) -> Producer:
        # Before the producer: one that is thrown away again, because a schema is missing, takes half a minute to end.
        messages = self._announcements()
        producer = kafka.producer(self._settings.kafka, f"{self._config.name}-{self._number}-status")
        for topic, key, value in messages:
            producer.produce(topic, key=key, value=value)
        # Before there is anything that somebody could want to pause.
        producer.flush(_ANNOUNCING_S)
        return producer

    def _announcements(self) -> list[tuple[str, str, bytes]]:
        # The first task does it for all; a distributed worker's connectors are the console's to write.
        if self._number or self._assignment.handover is not None:
            return []
        return announcements(
            self._schemas,
            self._assignment.written,
            self._config.definition,
            version=VERSION,
            worker_group=self._settings.worker_group,
            known=self._known(),
        )

    def _dead_letters(self, stop: Stop) -> DeadLetterQueue | None:
        topic = dead_letter_topic(self._config)
        if topic is None:
            return None
        admin = kafka.admin(self._settings.kafka, f"{self._config.name}-dead-letters")
        factor = self._config.integer("errors.deadletterqueue.topic.replication.factor")
        backoff = Backoff()
        while not stop.is_set():
            self._health.beat()
            try:
                ensure_topic(admin, topic, replication_factor=factor)
                break
            except KafkaException as error:
                known = kafka.error_of(error)
                if known is None or not known.retriable():
                    raise
                self._health.not_ready("kafka", known.str())
                stop.wait(backoff.next_ms() / 1000)
        producer = kafka.producer(
            self._settings.kafka, f"{self._config.name}-{self._number}-dead-letters", **producer_overrides()
        )
        return DeadLetterQueue(producer, topic)

    def _letter(self, refusal: FailedRecord) -> DeadLetterRecord:
        record = refusal.record
        headers = dead_letter_headers(
            refusal.error,
            stage=refusal.stage,
            connector=self._config.name,
            class_name=self._config.definition.klass,
            task=self._number,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            original=record.headers,
        )
        return DeadLetterRecord(record.key, record.value, headers, record.timestamp_ms)


def projector(
    kind: SinkKind, config: Validated, schemas: SchemaRegistry, of_keys: SchemaRegistry | None = None
) -> Projector:
    """The projection that a configuration asks for; `schemas` are those of values, and of keys where there are none."""
    prefix = kind.prefix
    separator = config.text(f"{prefix}.pk.separator") or kind.conventions.pk_separator
    is_value, is_key = (is_enveloped(config, part) for part in PARTS)
    return Projector(
        config.statements,
        value_decoder(config.text("value.converter"), schemas, envelope=is_value),
        key_decoder(config.text("key.converter"), schemas if of_keys is None else of_keys, envelope=is_key),
        Conventions(separator, kind.conventions.ttl_unit_ms, kind.load().retention_ms(config)),
    )

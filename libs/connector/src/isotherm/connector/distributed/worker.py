"""A distributed worker: shares its group's connectors with the group's other workers, one process for each task.

It connects the controller with Kafka and the task processes, in one thread. See docs/adr/0035.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from prometheus_client import CollectorRegistry

from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.distributed.controller import (
    Controller,
    DeleteStatus,
    StartTask,
    StopTask,
    TaskId,
    TaskPlan,
)
from isotherm.connector.distributed.publishing import plugin_messages
from isotherm.connector.distributed.task_launch import TaskLaunch
from isotherm.connector.distributed.task_metrics import TaskMetricsCollector, WorkerMetrics
from isotherm.connector.distributed.task_process import TaskProcess
from isotherm.connector.distributed.worker_status import SCHEMA, WorkerStatus
from isotherm.connector.state.connector_topic import ConnectorTopic
from isotherm.connector.state.desired_state import PARTITIONS, desired_state_of
from isotherm.connector.state.status import TOPIC, this_process
from isotherm.connector.state.target_follower import READER
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import HttpSettings, KafkaSettings, RegistrySettings
from isotherm.servicekit.startup import wait_until_up

_log = logs.logger(__name__)

TASKS = "isotherm.tasks"

_POLL_S = 0.25
"""How long a turn waits for a rebalance, and then as long for a change of a connector; both end the wait."""
_END_CHECK_S = 0.1
"""How often the worker looks for the end of stopping tasks, while a revocation waits for them."""
_CHANGES = 500
"""Most changes of connectors that are read in one turn."""
_SURE_SHARE = 0.6
"""A worker whose last turn is longer ago than this share of its session may have lost its partitions.

The clients send heartbeats each third of a session at most, so the group cannot have taken partitions away before the
other two thirds have passed without a turn.
"""


class Classes(Protocol):
    """The connector classes of a service."""

    definitions: Sequence[Definition]
    version: str

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """Check a configuration with unresolved references. Raises ConfigError with every problem."""


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a distributed worker."""

    service: str
    group: str
    """The worker group; all its workers run the same connector classes."""
    command: Sequence[str]
    """Command line of a task's process, which calls `task_launch.run_launched_task`."""
    kafka: KafkaSettings
    registry: RegistrySettings
    http: HttpSettings
    session_timeout_ms: int
    """Time after a kill until the group's other workers take over its tasks."""
    task_stop_timeout_ms: int
    """Time after which a task that does not stop is killed."""
    passes_readbacks: bool = False
    """Whether the tasks answer what their stores have."""


class DistributedWorker:
    """Runs the tasks that its partitions of `isotherm.tasks` give it, until it is stopped."""

    def __init__(self, settings: WorkerSettings, classes: Classes, stop: Stop) -> None:
        self._settings, self._classes, self._stop = settings, classes, stop
        self._name = this_process()
        self._health = Health()
        self._registry = CollectorRegistry()
        self._controller = Controller(
            settings.group, self._check, mask=lambda config, text: mask_of(config, os.environ)(text)
        )
        self._processes: dict[TaskId, TaskProcess] = {}
        self._is_rebalanced = False
        """Whether partitions came or went since the last reconciliation."""
        self._turned_ms = self._starts_from_ms = 0.0
        """When the last turn was, and from when on tasks may start again after turns that did not come."""
        # The monitoring server's threads read these two: they are replaced and never mutated.
        self._counts = self._controller.counts()
        self._ports: dict[TaskId, int] = {}
        self._metrics = WorkerMetrics(self._registry, settings.service, lambda: self._counts)
        self._registry.register(TaskMetricsCollector(lambda: self._ports))

    def run(self) -> int:
        """Run until the stop is requested; the exit code."""
        monitoring = MonitoringServer(self._settings.http, self._health, self._registry)
        monitoring.start()
        _log.info("worker", worker=self._name, group=self._settings.group, http_port=monitoring.port)
        try:
            status = wait_until_up(
                "registry", self._announce, RegistryUnavailableError, health=self._health, stop=self._stop
            )
            if status is not None:
                self._work(status)
            return Exit.OK
        except SchemaNotRegisteredError as error:
            _log.error("cannot start", reason=str(error))
            return Exit.CONFIGURATION
        except KafkaException as error:
            _log.error("Kafka refused permanently", reason=str(error))
            return Exit.FAILED
        finally:
            monitoring.stop()

    def _announce(self) -> WorkerStatus:
        """Publish the connector classes; the publisher of this worker's status."""
        schemas, settings = SchemaRegistry(self._settings.registry), self._settings
        plugins = plugin_messages(schemas, self._classes.definitions, self._classes.version)
        encode_status = schemas.encoder(TOPIC, SCHEMA)
        producer = clients.producer(settings.kafka, f"{settings.service}-worker-status", delivery_timeout_ms=0)
        for topic, key, value in plugins:
            producer.produce(topic, key=key, value=value)
        return WorkerStatus(
            producer,
            encode_status,
            worker=self._name,
            worker_group=settings.group,
            classes=[definition.klass for definition in self._classes.definitions],
        )

    def _work(self, status: WorkerStatus) -> None:
        settings = self._settings
        topic = ConnectorTopic(
            settings.kafka,
            settings.registry,
            f"{settings.service}-connectors",
            READER,
            on_readback=self._pass_on if settings.passes_readbacks else None,
        )
        try:
            # The worker joins its group only after it knows all connectors.
            while not self._stop.is_set() and not topic.is_current:
                self._read_changes(topic, _POLL_S)
                if topic.is_waiting:
                    reason = "there is no isotherm.connectors; run `isotherm apply`"
                    self._health.not_ready("connectors", reason if topic.is_missing else "not known yet")
                    self._stop.wait(_POLL_S)
            self._health.ready("connectors")
            self._share(topic, status)
        finally:
            topic.close()
            status.close()

    def _share(self, topic: ConnectorTopic, status: WorkerStatus) -> None:
        group = f"isotherm-workers-{self._settings.group}"
        member = clients.consumer(
            self._settings.kafka,
            f"{self._settings.service}-worker",
            group,
            session_timeout_ms=self._settings.session_timeout_ms,
        )
        try:
            member.subscribe(
                [TASKS],
                on_assign=self._assigned,
                on_revoke=lambda _consumer, partitions: self._revoked(partitions, status),
                on_lost=lambda _consumer, partitions: self._lost(partitions),
            )
            self._turned_ms = _now_ms()
            while not self._stop.is_set():
                self._poll(member)
                self._read_changes(topic, 0.0 if self._is_rebalanced else _POLL_S)
                self._reconcile(status)
        finally:
            # No process may outlive its worker, whatever ended the loop.
            self._controller.revoked(range(PARTITIONS))
            self._until_clear(range(PARTITIONS), status)
            member.close()

    def _poll(self, member: Consumer) -> None:
        message = member.poll(_POLL_S)
        error = None if message is None else message.error()
        if error is None:
            return
        if error.fatal():
            raise KafkaException(error)
        if error.code() != KafkaError._PARTITION_EOF:
            self._health.not_ready("kafka", error.str())
            _log.warning("kafka", reason=error.str())

    def _read_changes(self, topic: ConnectorTopic, timeout_s: float) -> None:
        """Process the changes that are there, after waiting up to `timeout_s` seconds for the first one."""
        self._health.beat()
        for _ in range(_CHANGES):
            change = topic.poll(timeout_s)
            if change is None:
                return
            timeout_s = 0.0
            try:
                desired = None if change.record is None else desired_state_of(change.name, change.record, change.offset)
            except ValueError as error:
                _log.error(
                    "connector record refused, its previous state stays", connector=change.name, reason=str(error)
                )
                continue
            self._controller.configured(change.name, desired)

    def _pass_on(self, connector: str, request: bytes) -> None:
        """Let every task of a connector know a request; the one with the record's partition answers."""
        for id, process in self._processes.items():
            if id.connector == connector:
                process.pass_on(request)

    def _reconcile(self, status: WorkerStatus) -> None:
        """Start and stop processes as the controller decides, and publish the status."""
        self._health.beat()
        self._is_rebalanced = False
        now_ms = _now_ms()
        may_start = self._is_surely_member(now_ms)
        for id, process in list(self._processes.items()):
            failure = process.failure()
            if failure is not None:
                del self._processes[id]
                self._controller.ended(id, failure, now_ms)
        for action in self._controller.actions(now_ms, may_start=may_start):
            if isinstance(action, StartTask):
                self._start(action, now_ms, status)
            elif isinstance(action, StopTask):
                self._processes[action.id].end()
            elif isinstance(action, DeleteStatus):
                status.delete(action.id)
        self._ports = {id: port for id, process in self._processes.items() if (port := process.http_port) is not None}
        self._counts = self._controller.counts()
        status.publish(self._controller.reports(), self._counts)

    def _is_surely_member(self, now_ms: float) -> bool:
        """Return whether what this worker owns is certainly still its own, so that it may start tasks.

        After a freeze of the process the group may have given its partitions to others, and only a later poll tells
        so. When another session has passed with turns, a heartbeat was answered or the loss was told (ADR 156).
        """
        session_ms = self._settings.session_timeout_ms
        still_ms = round(now_ms - self._turned_ms)
        if still_ms > _SURE_SHARE * session_ms:
            self._starts_from_ms = now_ms + session_ms
            _log.warning("the worker stood still, no task starts for a session", still_ms=still_ms)
        self._turned_ms = now_ms
        return now_ms >= self._starts_from_ms

    def _start(self, start: StartTask, now_ms: float, status: WorkerStatus) -> None:
        launch = TaskLaunch(start.config, start.id.task, self._name, self._settings.group, start.generation)
        timeout_ms = self._settings.task_stop_timeout_ms
        try:
            process = TaskProcess(self._settings.command, launch, stop_timeout_ms=timeout_ms)
        except OSError as error:
            self._controller.ended(start.id, f"the task's process cannot be started: {error}", now_ms)
            return
        self._metrics.started.inc()
        self._processes[start.id] = process
        status.started(start.id)

    def _check(self, config: ConnectorConfig) -> TaskPlan:
        # A configuration that is too large for a launch is refused here, before any task starts.
        TaskLaunch(config, 0, self._name, self._settings.group).encoded()
        return self._classes.check(config)

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            # This topic is never written, so its partitions need not be fetched: only the assignment matters.
            consumer.incremental_assign([TopicPartition(one.topic, one.partition, 0) for one in partitions])
            consumer.pause(list(partitions))
        self._is_rebalanced = True
        self._controller.assigned(one.partition for one in partitions)
        self._health.ready("kafka")
        self._health.ready()
        self._metrics.rebalances.inc()
        _log.info("tasks' partitions assigned", partitions=[one.partition for one in partitions])

    def _revoked(self, partitions: Sequence[TopicPartition], status: WorkerStatus) -> None:
        """Return only after the partitions' tasks have ended: until then no other worker gets these partitions."""
        numbers = [one.partition for one in partitions]
        self._controller.revoked(numbers)
        self._until_clear(numbers, status)
        _log.info("tasks' partitions revoked", partitions=numbers)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop the partitions' tasks as soon as possible: another worker may own the partitions already."""
        numbers = [one.partition for one in partitions]
        self._is_rebalanced = True
        self._controller.revoked(numbers)
        # What is assigned from here on was assigned after the worker stood still.
        self._turned_ms, self._starts_from_ms = _now_ms(), 0.0
        _log.warning("tasks' partitions lost to other workers", partitions=numbers)

    def _until_clear(self, partitions: Sequence[int], status: WorkerStatus) -> None:
        self._reconcile(status)
        while not self._controller.is_clear(partitions):
            time.sleep(_END_CHECK_S)
            self._reconcile(status)


def _now_ms() -> float:
    return time.monotonic() * 1000

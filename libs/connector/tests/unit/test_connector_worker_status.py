"""A distributed worker's records on the status topic, and the metrics of its tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from confluent_kafka import KafkaError, Producer
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from isotherm.connector.distributed.controller import Report, TaskId
from isotherm.connector.distributed.task_metrics import TaskMetricsCollector, WorkerMetrics
from isotherm.connector.distributed.worker_status import SCHEMA, WorkerStatus
from isotherm.connector.state.status import State
from isotherm.servicekit.avro import encoder
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.settings import HttpSettings

COUNTS = {"connectors": 1, "tasks": 1, "running": 0, "failed": 1, "restarting": 0, "paused": 0}
FAILED = Report(TaskId("c", 0), State.FAILED, "trace")


class Topic:
    """A fake producer."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.arrived: list[Callable[[KafkaError | None, None], None]] = []
        self.reports: list[Callable[[KafkaError | None, None], None]] = []
        """Of the records that are on their way: deletions, and while it `is_away` every record."""
        self.is_full = self.is_away = False

    def produce(
        self, _topic: str, key: str, value: Any, on_delivery: Callable[[KafkaError | None, None], None]
    ) -> None:
        if self.is_full:
            raise BufferError("Local: Queue full")
        self.said.append((key, value))
        if value is None or self.is_away:
            self.reports.append(on_delivery)
        else:
            self.arrived.append(on_delivery)

    def answer(self, code: int | None) -> None:
        """Let the delivery of what is on its way end."""
        reports, self.reports = self.reports, []
        for report in reports:
            report(None if code is None else KafkaError(code), None)

    def poll(self, _timeout_s: float) -> int:
        arrived, self.arrived = self.arrived, []
        for report in arrived:
            report(None, None)
        return 0

    flush = poll


class World:
    def __init__(self) -> None:
        self.topic, self.now_ms = Topic(), 0.0
        self.status = WorkerStatus(
            cast(Producer, self.topic),
            cast(Any, lambda record: record),
            worker="h:1",
            worker_group="g",
            classes=["x"],
            clock_ms=lambda: self.now_ms,
        )

    def say(self, *reports: Report) -> list[tuple[str, Any]]:
        self.topic.said.clear()
        self.status.publish(reports, COUNTS)
        return [(key, value and value["state"]) for key, value in self.topic.said]


def test_changes_are_said_at_once_and_all_of_it_every_five_seconds() -> None:
    world = World()
    assert world.say(FAILED) == [("*/-1/h:1", "RUNNING"), ("c/0/h:1", "FAILED")]
    world.now_ms = 4_999
    assert world.say(FAILED) == []
    assert world.say(FAILED._replace(state=State.RESTARTING)) == [("c/0/h:1", "RESTARTING")]
    world.now_ms = 5_000
    assert world.say(FAILED._replace(state=State.RESTARTING)) == [("*/-1/h:1", "RUNNING")]
    # It has a process meanwhile, and failed in the same way again.
    assert world.say() == []
    assert world.say(FAILED) == [("c/0/h:1", "FAILED")]


def test_while_kafka_is_away_changes_are_said_and_nothing_is_said_again() -> None:
    world = World()
    world.topic.is_away = True
    assert len(world.say(FAILED)) == 2
    world.now_ms = 60_000
    assert world.say(FAILED) == []
    assert world.say(FAILED._replace(state=State.RESTARTING)) == [("c/0/h:1", "RESTARTING")]
    world.topic.answer(None)
    assert world.say(FAILED._replace(state=State.RESTARTING)) == [("*/-1/h:1", "RUNNING")]


def test_what_is_over_is_taken_back() -> None:
    world = World()
    world.say(FAILED)
    world.topic.said.clear()
    world.status.delete(FAILED.id)
    world.status.close()
    assert world.topic.said == [("c/0/h:1", None), ("*/-1/h:1", None)]


DELETED = ("c/0/h:1", None)


def test_a_deletion_is_repeated_until_kafka_acknowledges_it() -> None:
    world = World()
    world.say(FAILED)
    world.topic.is_full = True
    world.status.delete(FAILED.id)
    world.topic.is_full = False
    world.now_ms = 4_999
    assert world.say() == []
    world.now_ms = 5_000
    assert DELETED in world.say()
    # It is on its way for longer than the interval: there is one of it at a time.
    world.now_ms = 20_000
    assert DELETED not in world.say()
    world.topic.answer(KafkaError._MSG_TIMED_OUT)
    world.now_ms = 25_000
    assert DELETED in world.say()
    world.topic.answer(None)
    world.now_ms = 60_000
    assert DELETED not in world.say()


def test_a_deletion_that_failed_is_repeated_at_the_end() -> None:
    world = World()
    world.status.delete(FAILED.id)
    world.topic.answer(KafkaError._MSG_TIMED_OUT)
    world.topic.said.clear()
    world.status.close()
    assert world.topic.said == [DELETED, ("*/-1/h:1", None)]


def test_a_task_that_comes_back_is_not_deleted() -> None:
    """This worker reports it again, or starts its process, which publishes under the same key."""
    for is_reported in (True, False):
        world = World()
        world.status.delete(FAILED.id)
        if is_reported:
            world.say(FAILED)
        else:
            world.status.started(FAILED.id)
        world.topic.answer(KafkaError._MSG_TIMED_OUT)
        world.now_ms = 10_000
        assert DELETED not in world.say()


def test_the_answer_to_an_earlier_deletion_does_not_end_a_later_one() -> None:
    world = World()
    world.status.delete(FAILED.id)
    world.say(FAILED)
    (earlier,), world.topic.reports = world.topic.reports, []
    world.status.delete(FAILED.id)
    earlier(None, None)
    world.topic.answer(KafkaError._MSG_TIMED_OUT)
    world.now_ms = 10_000
    assert DELETED in world.say()


def test_every_record_fits_the_schema_and_only_a_workers_own_names_classes() -> None:
    world = World()
    world.say(FAILED)
    for _, record in world.topic.said:
        assert encoder(SCHEMA, 1)(record)
    own, task = (record for _, record in world.topic.said)
    assert (own["classes"], own["counts"], own["worker_group"]) == (["x"], COUNTS, "g")
    assert (task["classes"], task["trace"]) == ([], "trace")


def test_the_metrics_of_tasks_are_on_one_page_with_connector_and_task() -> None:
    servers, ports = [], {}
    for number, label in ((0, {"connector": "mine"}), (1, {})):
        registry = CollectorRegistry()
        counter = Counter("records", "Records.", list(label), registry=registry)
        (counter.labels(**label) if label else counter).inc(number + 1)
        servers.append(MonitoringServer(HttpSettings(host="127.0.0.1", port=0), Health(), registry))
        servers[-1].start()
        ports[TaskId("c", number)] = servers[-1].port
    # One that is not there any more is passed over.
    gone = MonitoringServer(HttpSettings(host="127.0.0.1", port=0), Health(), CollectorRegistry())
    gone.start()
    gone.stop()
    ports[TaskId("c", 2)] = gone.port
    registry = CollectorRegistry()
    WorkerMetrics(registry, "persisters", lambda: COUNTS)
    registry.register(TaskMetricsCollector(lambda: ports))
    try:
        page = generate_latest(registry).decode()
    finally:
        for server in servers:
            server.stop()
    assert 'records_total{connector="mine",task="0"} 1.0' in page
    assert 'records_total{connector="c",task="1"} 2.0' in page
    assert page.count("# TYPE records_total counter") == 1
    assert 'kafka_connect_worker_task_count{state="failed"} 1.0' in page

"""Distributed workers on a real Kafka with a real sink: the life of a connector, and faults around it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from control_world import Control, Said, Worker, WorkerGroup
from persisters_stores import MapStore
from persisters_world import BASE_MS, Broker, Persisters

from isotherm.connector.offsets.replay import parse_position, reset_offsets
from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.server import wait_all_ready

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

SINK = "com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector"
TASKS = 2
QUICK = "commit_interval_ms=200"


@pytest.fixture(scope="module")
def control(kafka: Any, registry: Any) -> Control:
    """The control topics."""
    return Control(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def worker_group(control: Control, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[WorkerGroup]:
    """Workers that host the Hazelcast sink."""
    made = WorkerGroup(control, "persisters", tmp_path, free_port, "--sink", "hazelcast")
    yield made
    made.close()


def create(
    control: Control, worker_group: WorkerGroup, name: str, broker: Broker, store: MapStore, *more: str
) -> dict[str, str]:
    """A connector of the group; its configuration."""
    lines = [*store.lines(broker.topic), *more]
    config = {"connector.class": SINK, "topics": broker.topic, **dict(line.split("=", 1) for line in lines)}
    control.create(name, worker_group.group, config)
    return config


def _said(control: Control, name: str, task: int) -> Said:
    said = control.status(name, task)
    assert said is not None
    return said


def _has_failed_with_every_problem(control: Control, worker_group: WorkerGroup, name: str) -> None:
    worker_group.until("failed", lambda: control.states(name, 1) == ["FAILED", None])
    trace = _said(control, name, -1).trace
    assert "tasks.max: 'many' is not allowed" in trace
    assert "batch.size" in trace


def _restart_one_task(control: Control, worker_group: WorkerGroup, worker: Worker, name: str) -> None:
    """Restart task 1: it gets another process, and no other task does."""
    known = {task.pid for task in worker.tasks()}
    control.change(name, task_restarts={"1": 1})
    worker_group.until("another process", lambda: len({task.pid for task in worker.tasks()} - known) == 1)
    worker_group.until("two again", lambda: len(worker.tasks()) == TASKS)
    assert len({task.pid for task in worker.tasks()} & known) == 1


def _replay_all(control: Control, worker_group: WorkerGroup, name: str, topic: str) -> int:
    """Stop the connector, set its offsets to the beginning and start it; the sum of its offsets before."""
    control.change(name, target_state="STOPPED")
    worker_group.until("stopped", lambda: control.states(name, TASKS) == ["STOPPED", None, None])
    admin = clients.group_admin(control.kafka, "test")
    moves = reset_offsets(admin, f"connect-{name}", [topic], parse_position("earliest"))
    control.change(name, target_state="STARTED")
    return sum(move.before or 0 for move in moves)


def _records_written(worker: Worker, name: str) -> int:
    page = worker.page("metrics").splitlines()
    mine = [line for line in page if line.startswith("isotherm_persisters_records_total") and f'"{name}"' in line]
    return int(sum(float(line.rpartition(" ")[2]) for line in mine if 'outcome="written"' in line))


def test_a_connectors_life_on_two_workers(
    control: Control, worker_group: WorkerGroup, broker: Broker, map_store: MapStore
) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    running = ["RUNNING"] * (1 + TASKS)
    written = broker.aggregates(20, range(3), revision=BASE_MS)
    first = worker_group.worker(QUICK)
    # Neither may disturb the other one: a configuration that cannot be used, and one whose task fails.
    create(
        control, worker_group, "bad-" + name, broker, map_store, "tasks.max=many", "connect.hazelcast.sink.batch.size=0"
    )
    create(control, worker_group, name, broker, map_store, f"tasks.max={TASKS}")
    worker_group.until("all there", lambda: not map_store.problems(written))
    worker_group.until("running", lambda: control.states(name, TASKS) == running)
    _has_failed_with_every_problem(control, worker_group, "bad-" + name)

    second = worker_group.worker(QUICK)
    worker_group.until("both work", lambda: len(control.workers(name, TASKS)) == 2)
    worker_group.until("said", lambda: len(worker_group.of_workers()) == 2)
    written += broker.aggregates(20, range(3, 6), revision=BASE_MS)
    worker_group.until("all there", lambda: not map_store.problems(written))

    # kill -9 of one: the other takes its tasks, and the orphans end by themselves.
    orphans = first.tasks()
    assert orphans
    first.kill()
    worker_group.until("one has all", lambda: len(second.tasks()) == TASKS)
    written += broker.aggregates(20, range(6, 9), revision=BASE_MS)
    worker_group.until("all there", lambda: not map_store.problems(written))
    assert psutil.wait_procs(orphans, timeout=120)[1] == []

    # Paused: no task, no member, nothing written; also for a worker that comes later.
    control.change(name, target_state="PAUSED")
    worker_group.until("paused", lambda: control.states(name, TASKS) == ["PAUSED"] * (1 + TASKS))
    assert control.members(f"connect-{name}") == 0
    before = list(written)
    written += broker.aggregates(20, range(9, 12), revision=BASE_MS)
    assert second.stop() == 0, second.log()
    worker_group.until("nobody says", lambda: control.states(name, TASKS) == [None] * (1 + TASKS))
    third = worker_group.worker(QUICK)
    worker_group.until("paused", lambda: control.states(name, TASKS) == ["PAUSED"] * (1 + TASKS))
    assert not map_store.problems(before)
    control.change(name, target_state="STARTED")
    worker_group.until("all there", lambda: not map_store.problems(written))

    worker_group.until("running", lambda: control.states(name, TASKS) == running)
    _restart_one_task(control, worker_group, third, name)

    # Stopped: the offsets may be moved, and everything is written once more with the same end.
    assert _replay_all(control, worker_group, name, broker.topic) >= len(written)

    worker_group.until("all again", lambda: _records_written(third, name) >= 2 * len(written))
    assert not map_store.problems(written)

    control.delete(name)
    control.delete("bad-" + name)
    worker_group.until("nothing", lambda: control.states(name, TASKS) == [None] * (1 + TASKS) and not third.tasks())
    assert control.states("bad-" + name, 1) == [None, None]
    assert third.stop() == 0, third.log()


def test_a_failed_task_is_restarted_as_configured_and_disturbs_nobody(
    control: Control, worker_group: WorkerGroup, broker: Broker, readings: Broker, map_store: MapStore
) -> None:
    good, poisoned = f"good-{uuid.uuid4().hex[:8]}", f"poisoned-{uuid.uuid4().hex[:8]}"
    worker = worker_group.worker(QUICK)
    create(control, worker_group, good, broker, map_store)
    written = broker.aggregates(10, range(2), revision=BASE_MS)
    readings.produce(("dev", b"\x00no Avro at all"))
    retry = ("tasks.restart.max=2", "tasks.restart.backoff.ms=200", "tasks.restart.backoff.max.ms=60000")
    config = create(control, worker_group, poisoned, readings, map_store, *retry)
    worker_group.until("restarted", lambda: len(_starts(worker, poisoned)) == 3)
    worker_group.until("failed", lambda: control.states(poisoned, 1) == ["RUNNING", "FAILED"])
    assert f"{readings.topic}-" in _said(control, poisoned, 0).trace
    assert len(_starts(worker, poisoned)) == 3
    worker_group.until("all there", lambda: not map_store.problems(written))
    assert len(_starts(worker, good)) == 1

    # Another configuration is another try.
    policy = {"connect.hazelcast.sink.error.policy": "NOOP"}
    control.change(poisoned, config={"name": poisoned, **config, **policy})
    worker_group.until("running", lambda: control.states(poisoned, 1) == ["RUNNING", "RUNNING"])
    group = f"connect-{poisoned}"
    worker_group.until("passed over", lambda: sum(readings.committed(group)) == 1)
    for name in (good, poisoned):
        control.delete(name)


def _starts(worker: Worker, connector: str) -> list[dict[str, Any]]:
    return [line for line in worker.events("task started") if line["connector"] == connector]


def test_a_standalone_connector_is_paused_resumed_and_restarted(
    control: Control, broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    task = persister(broker, map_store)
    written = broker.aggregates(20, range(3), revision=BASE_MS)
    task.start()
    task.until("all there", lambda: not map_store.problems(written))
    task.until("running", lambda: control.states(task.name, 1) == [None, "RUNNING"])
    control.create(task.name, "", {"connector.class": SINK}, mode="standalone")
    control.change(task.name, target_state="PAUSED")
    task.until("paused", lambda: control.states(task.name, 1) == [None, "PAUSED"])
    assert control.members(task.group) == 0
    assert task.problems() == {}
    before = list(written)
    written += broker.aggregates(20, range(3, 6), revision=BASE_MS)
    # A pause outlasts the process, though it publishes its configuration anew.
    assert task.stop() == 0, task.log()
    task.start()
    task.until("paused", lambda: control.states(task.name, 1) == [None, "PAUSED"])
    assert not map_store.problems(before)
    control.change(task.name, target_state="STARTED")
    task.until("all there", lambda: not map_store.problems(written))
    pid = task.process.pid if task.process is not None else 0
    control.change(task.name, restart_count=1)
    written += broker.aggregates(20, range(6, 9), revision=BASE_MS)
    task.until("all there", lambda: not map_store.problems(written))
    task.until("running", lambda: control.states(task.name, 1) == [None, "RUNNING"])
    assert task.process is not None
    assert task.process.pid == pid
    assert task.stop() == 0, task.log()
    control.delete(task.name)


def start_side_by_side(*servers: Any) -> None:
    """Start servers that do not need one another, and wait until each is ready."""
    for server in servers:
        server.start()
    wait_all_ready(servers)


@pytest.mark.faults
def test_everything_is_killed_and_comes_back_as_it_was(
    control: Control, worker_group: WorkerGroup, broker: Broker, map_store: MapStore, kafka: Any, registry: Any
) -> None:
    running, paused = f"running-{uuid.uuid4().hex[:8]}", f"paused-{uuid.uuid4().hex[:8]}"
    worker = worker_group.worker(QUICK)
    create(control, worker_group, running, broker, map_store)
    create(control, worker_group, paused, broker, map_store)
    control.change(paused, target_state="PAUSED")
    written = broker.aggregates(20, range(3), revision=BASE_MS)

    def is_as_wanted() -> bool:
        states = control.states(running, 1), control.states(paused, 1)
        return states == (["RUNNING", "RUNNING"], ["PAUSED", "PAUSED"]) and not map_store.problems(written)

    worker_group.until("as wanted", is_as_wanted)
    # The servers go and come back under a worker that goes on.
    for server in (kafka, registry):
        server.kill()
    assert worker.tasks()
    start_side_by_side(kafka, registry)
    written += broker.aggregates(20, range(3, 6), revision=BASE_MS)
    worker_group.until("as wanted", is_as_wanted)
    assert len(worker.tasks()) == 1
    # And all of it at once.
    worker.kill()
    for server in (kafka, registry):
        server.kill()
    start_side_by_side(kafka, registry)
    second = worker_group.worker(QUICK)
    written += broker.aggregates(20, range(6, 9), revision=BASE_MS)
    worker_group.until("as wanted", is_as_wanted)
    assert len(second.tasks()) == 1
    for name in (running, paused):
        control.delete(name)

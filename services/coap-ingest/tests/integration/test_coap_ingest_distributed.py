"""CoAP sources as connectors: of distributed workers, and of a process with a file."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from coap_world import READINGS, World, opened, readings_in, sent, stop
from control_world import Control, WorkerGroup, until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

CLASS = "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector"


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest.fixture
def control(kafka: Kafka, registry: Registry) -> Control:
    return Control(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def worker_group(control: Control, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[WorkerGroup]:
    made = WorkerGroup(control, "coap-ingest", tmp_path, free_port)
    yield made
    made.close()


def test_a_connector_moves_to_another_worker_and_is_paused_and_deleted(
    world: World, control: Control, worker_group: WorkerGroup
) -> None:
    name = f"coap-{uuid.uuid4().hex[:8]}"
    reader = world.reader("thermostat.data")
    world.simulator("--rate", "20")
    first = worker_group.worker()
    config = {
        "connector.class": CLASS,
        "connect.coap.source.uri": f"coap://{world.authority}",
        "connect.coap.kcql": READINGS.format("sensors"),
    }
    control.create("bad-" + name, worker_group.group, {**config, "connect.coap.source.uri": "http://nowhere"})
    control.create(name, worker_group.group, {**config, "tasks.max": "4"})
    reader.until(lambda seen: len(seen) >= 20)
    worker_group.until("one task", lambda: control.states(name, 2) == ["RUNNING", "RUNNING", None])
    worker_group.until("told", lambda: control.states("bad-" + name, 1) == ["FAILED", None])
    worker_group.until("counted", lambda: f'connector="{name}"' in first.page("metrics"))

    second = worker_group.worker()
    first.kill()
    worker_group.until("moved", lambda: len(second.tasks()) == 1)
    known = len(reader.rest())
    reader.until(lambda seen: len(seen) >= known + 20)

    control.change(name, target_state="PAUSED")
    worker_group.until("paused", lambda: control.states(name, 1) == ["PAUSED", "PAUSED"] and not second.tasks())
    known = len(reader.rest())
    control.change(name, target_state="STARTED")
    reader.until(lambda seen: len(seen) >= known + 20)
    assert set(readings_in(reader.seen)) <= set(sent(world.ledger))
    control.delete(name)
    control.delete("bad-" + name)
    worker_group.until("nothing", lambda: control.states(name, 1) == [None, None] and not second.tasks())
    assert second.stop() == 0, second.log()


def test_a_connector_of_a_file_is_paused_and_resumed_in_its_process(world: World, control: Control) -> None:
    name = f"coap-{uuid.uuid4().hex[:8]}"
    reader = world.reader("thermostat.data")
    world.simulator("--rate", "20")
    ingest = world.ingest(READINGS.format("sensors"), keys={"name": name})
    reader.until(lambda seen: len(seen) >= 20)
    until("running", lambda: control.states(name, 1) == [None, "RUNNING"])
    control.create(name, "", {"connector.class": CLASS}, mode="standalone")
    control.change(name, target_state="PAUSED")
    until("paused", lambda: control.states(name, 1) == [None, "PAUSED"] and world.ready() == {})
    known = len(reader.rest())
    assert ingest.poll() is None
    control.change(name, target_state="STARTED")
    reader.until(lambda seen: len(seen) >= known + 20)
    assert stop(ingest) == 0
    control.delete(name)

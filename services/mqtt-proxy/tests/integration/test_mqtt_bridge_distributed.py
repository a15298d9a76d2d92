"""Bridges as connectors of distributed workers, between a real Mosquitto and a real Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from control_world import Control, WorkerGroup
from mosquitto_broker import PASSWORD, USER, Broker
from mqtt_world import Topics

from isotherm.cli.apply import apply
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytest_plugins = ("mqtt_fixtures",)
pytestmark = pytest.mark.integration

RUNNING = ["RUNNING"] * 3


@pytest.fixture
def control(kafka: Kafka, registry: Registry) -> Control:
    return Control(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def worker_group(control: Control, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[WorkerGroup]:
    made = WorkerGroup(control, "mqtt-proxy", tmp_path, free_port)
    yield made
    made.close()


def numbered(device: str, numbers: Sequence[int]) -> list[str]:
    """Payloads of readings."""
    return [json.dumps({"id": device, "t": 20.0, "sequence": n, "event_time": 1767225600000 + n}) for n in numbers]


def test_two_bridges_share_the_messages_move_and_wait(
    control: Control, worker_group: WorkerGroup, mosquitto: Broker, kafka: Kafka, registry: Registry
) -> None:
    topics = Topics(kafka, registry)
    apply(topics.kafka, topics.registry)
    name = f"mqtt-{uuid.uuid4().hex[:8]}"

    def arrived() -> set[int]:
        return {number for _, number in topics.identities(name)}

    config = {
        "connector.class": "com.datamountaineer.streamreactor.connect.mqtt.source.MqttSourceConnector",
        "tasks.max": "2",
        "connect.mqtt.hosts": f"tcp://127.0.0.1:{mosquitto.port}",
        "connect.mqtt.username": USER,
        "connect.mqtt.password": PASSWORD,
        "connect.mqtt.kcql": "INSERT INTO thermostat.data SELECT id AS device_id, t AS value, sequence, event_time "
        f"FROM devices/{name}/temperature",
    }
    first = worker_group.worker("role=worker")
    control.create("bad-" + name, worker_group.group, {**config, "connect.mqtt.hosts": "http://nowhere"})
    control.create(name, worker_group.group, config)
    worker_group.until("running", lambda: control.states(name, 2) == RUNNING)
    worker_group.until("told", lambda: control.states("bad-" + name, 1) == ["FAILED", None])
    worker_group.until("subscribed", lambda: first.page("metrics").count("isotherm_mqtt_proxy_connections{") == 2)
    mosquitto.publish(name, numbered(name, range(50)))
    worker_group.until("all there", lambda: arrived() == set(range(50)))

    second = worker_group.worker("role=worker")
    first.kill()
    worker_group.until("moved", lambda: len(second.tasks()) == 2)
    mosquitto.publish(name, numbered(name, range(50, 100)))
    worker_group.until("all there", lambda: arrived() == set(range(100)))

    # The broker keeps what comes while nobody is there.
    control.change(name, target_state="PAUSED")
    worker_group.until("paused", lambda: control.states(name, 2) == ["PAUSED"] * 3 and not second.tasks())
    mosquitto.publish(name, numbered(name, range(100, 150)))
    assert arrived() == set(range(100))
    control.change(name, target_state="STARTED")
    worker_group.until("all there", lambda: arrived() == set(range(150)))
    control.delete(name)
    control.delete("bad-" + name)
    worker_group.until("nothing", lambda: control.states(name, 2) == [None] * 3 and not second.tasks())
    assert second.stop() == 0, second.log()
    assert PASSWORD not in second.log()

"""The schema registry is away: the start waits for it, and topics that come later are found when it is back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
from mqtt_pods import Balancer
from mqtt_world import Proxy, mosquitto_pub, opened, wait_until

from isotherm.mqtt_proxy.service import READING
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.registry_client import Schema
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import BASE_PATH, Registry

pytestmark = pytest.mark.integration

AWAY = [(LOOPBACK, 1)]
"""Nobody listens there."""


@pytest.fixture
def relay(registry: Registry) -> Iterator[Balancer]:
    made = Balancer()
    made.backends = [(LOOPBACK, registry.port)]
    yield made
    made.close()


@pytest.fixture
def proxy(
    kafka: Kafka, registry: Registry, relay: Balancer, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        made.configure(name=made.device, registry__url=f"http://{LOOPBACK}:{relay.port}{BASE_PATH}")
        yield made


def create_topic(proxy: Proxy, topic: str) -> None:
    admin = clients.admin(proxy.topics.kafka, "test")
    for done in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        done.result()


def test_a_server_with_raw_routes_waits_for_the_registry(proxy: Proxy, relay: Balancer, registry: Registry) -> None:
    topic = f"{proxy.device}-events"
    create_topic(proxy, topic)
    relay.backends = AWAY
    proxy.launch(routes=f"INSERT INTO `{topic}` SELECT * FROM events/+ WITHFORMAT RAW")
    wait_until("it waits for the registry", lambda: "schema registry" in proxy.problems().get("kafka", ""))
    relay.backends = [(LOOPBACK, registry.port)]
    wait_until("it is ready", proxy.is_ready)
    mosquitto_pub(proxy, "events/d1", "a text", 1)
    assert [(key, value) for key, value, _ in proxy.topics.raw(topic)] == [("d1", b"a text")]


def test_a_topic_that_comes_after_an_outage_of_the_registry_is_found(
    proxy: Proxy, relay: Balancer, registry: Registry
) -> None:
    topic = f"{proxy.device}_temperature"
    proxy.start(routes="INSERT INTO $ SELECT id AS device_id, t AS value FROM +/temperature")
    relay.backends = AWAY
    relay.cut_all()
    wait_until("it has missed the registry", lambda: "the topics cannot be refreshed" in proxy.log())
    relay.backends = [(LOOPBACK, registry.port)]
    create_topic(proxy, topic)
    schemas = SchemaRegistry(proxy.topics.registry)
    schemas.client.register_schema(f"{topic}-value", Schema(json.dumps(READING), "AVRO"))
    wait_until("the topic is found", lambda: f'"{topic}"' in proxy.log())
    mosquitto_pub(proxy, f"{proxy.device}/temperature", '{"id": "d1", "t": 20.5}', 1)
    assert [reading["value"] for reading, _ in proxy.topics.readings(topic, "d1")] == [20.5]

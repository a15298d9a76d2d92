"""Kafka and the registry keep acknowledged data through kill -9 and a new start."""

from __future__ import annotations

import uuid

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import COMPATIBILITY, Registry

pytestmark = pytest.mark.integration

CALL_TIMEOUT_S = 60.0


def create_topic(kafka: Kafka) -> str:
    topic = f"stack-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(CALL_TIMEOUT_S)
    return topic


def produce(kafka: Kafka, topic: str, values: list[bytes]) -> None:
    failures = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(CALL_TIMEOUT_S) == 0
    assert failures == []


def read(kafka: Kafka, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"reader-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, CALL_TIMEOUT_S)
        assert [message.error() for message in messages] == [None] * count
        return [message.value() for message in messages]
    finally:
        consumer.close()


def test_kafka_keeps_acknowledged_records_through_kill(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    produce(kafka, topic, [b"first", b"second"])
    old_pid = kafka.pid

    kafka.kill()
    assert not kafka.alive()
    kafka.start()
    kafka.wait_ready()

    assert kafka.pid != old_pid
    produce(kafka, topic, [b"third"])
    assert read(kafka, topic, 3) == [b"first", b"second", b"third"]


def test_registry_keeps_schemas_and_compatibility_through_kill(registry: Registry) -> None:
    subject = f"stack-{uuid.uuid4()}-value"
    body = {"schema": '{"type": "string"}'}
    answer = httpx.post(f"{registry.url}/subjects/{subject}/versions", json=body, timeout=CALL_TIMEOUT_S)
    schema_id = answer.raise_for_status().json()["id"]

    registry.kill()
    registry.start()
    registry.wait_ready()

    stored = httpx.get(f"{registry.url}/schemas/ids/{schema_id}", timeout=CALL_TIMEOUT_S).raise_for_status()
    assert stored.json()["schema"] == '{"type": "string"}'
    config = httpx.get(f"{registry.url}/config", timeout=CALL_TIMEOUT_S).raise_for_status()
    assert config.json()["compatibilityLevel"] == COMPATIBILITY

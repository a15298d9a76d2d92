"""Dead letters and heartbeats on a real broker."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import isotherm.schemas
from isotherm.cli.apply import apply
from isotherm.connector.errors.dead_letters import (
    MAX_MESSAGE_BYTES,
    DeadLetterQueue,
    DeadLetterRecord,
    DeadLettersUnavailableError,
    dead_letter_headers,
    ensure_topic,
    producer_overrides,
)
from isotherm.connector.state.status import TOPIC, Heartbeat, State
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


def read(settings: KafkaSettings, topic: str, count: int) -> list[Any]:
    consumer = clients.consumer(settings, "test", f"test-{uuid.uuid4().hex}")
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 1.0)
    consumer.close()
    return found


def test_the_topic_is_created_once_and_takes_large_records(settings: KafkaSettings) -> None:
    topic = f"dead-{uuid.uuid4().hex[:8]}"
    admin = clients.admin(settings, "test")
    assert ensure_topic(admin, topic) is True
    assert ensure_topic(admin, topic) is False
    queue = DeadLetterQueue(clients.producer(settings, "test", **producer_overrides()), topic)
    headers = dead_letter_headers(
        ValueError("no"), stage="TASK_PUT", connector="c", class_name="k", original=[("a", b"b")]
    )
    big = bytes(MAX_MESSAGE_BYTES // 4)
    queue.send([DeadLetterRecord(b"k", big, headers, 1_000), DeadLetterRecord(None, None, headers)])
    first, second = read(settings, topic, 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", big, 1_000)
    assert dict(first.headers())["__connect.errors.exception.message"] == b"no"
    assert (second.key(), second.value()) == (None, None)


def test_a_record_that_kafka_does_not_take_is_an_error(settings: KafkaSettings) -> None:
    producer = clients.producer(settings, "test", delivery_timeout_ms=2_000, linger_ms=0)
    queue = DeadLetterQueue(producer, f"absent-{uuid.uuid4().hex[:8]}")
    with pytest.raises(DeadLettersUnavailableError, match="dead-letter topic absent-"):
        queue.send([DeadLetterRecord(b"k", b"v", [])])


def test_a_heartbeat_publishes_the_state_of_the_task(settings: KafkaSettings, registry: Any) -> None:
    registry_settings = RegistrySettings(url=registry.url)
    apply(settings, registry_settings)
    schemas = SchemaRegistry(registry_settings)
    now_ms, name = [0.0], f"c-{uuid.uuid4().hex[:8]}"
    heartbeat = Heartbeat(
        lambda: clients.producer(settings, "test"), schemas, connector=name, task=1, clock_ms=lambda: now_ms[0]
    )
    for _ in range(3):
        heartbeat.beat(State.RUNNING, lambda: {"read": 3}, lambda: {"t-0": 4})
    now_ms[0] = 5_000.0
    heartbeat.beat(State.RUNNING, lambda: {"read": 5}, dict)
    heartbeat.publish_final_state(State.FAILED, {"read": 6}, "Traceback")
    decode = Decoder(schemas, isotherm.schemas.schema("TaskStatus", 1))
    consumer = clients.consumer(settings, "test", f"test-{uuid.uuid4().hex}")
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    told: list[Any] = []
    while len(told) < 3:
        message = consumer.poll(1.0)
        if message is not None and (message.key() or b"").startswith(f"{name}/1/".encode()):
            told.append(decode(message.value() or b"").record)
    consumer.close()
    assert [(one["state"], one["counts"]["read"]) for one in told] == [("RUNNING", 3), ("RUNNING", 5), ("FAILED", 6)]
    assert told[0]["lag"] == {"t-0": 4}
    assert (told[1]["trace"], told[2]["trace"]) == (None, "Traceback")

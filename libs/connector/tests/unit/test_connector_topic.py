"""When the reader of `isotherm.connectors` asks Kafka again for a topic that is not there yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

import isotherm.schemas
from isotherm.connector.state import connector_topic
from isotherm.connector.state.connector_topic import TOPIC, ConnectorTopic
from isotherm.connector.state.readback import REQUESTS
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

READER = isotherm.schemas.schema("ConnectorConfig", 2)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


class Kafka:
    """A consumer of a Kafka in which the topic, or its leader, is missing for some requests."""

    def __init__(self) -> None:
        self.missing = 0
        self.without_leader = 0
        self.requests = 0
        self.is_assigned = False

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        self.requests += 1
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if self.requests <= self.missing else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})

    def get_watermark_offsets(self, _partition: Any, timeout: float) -> tuple[int, int]:
        if self.requests <= self.without_leader:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return 0, 0

    def assign(self, _partitions: Any) -> None:
        self.is_assigned = True

    def close(self) -> None: ...


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(connector_topic, "time", made)
    return made


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(clients, "consumer", lambda *_arguments, **_properties: made)
    return made


@pytest.fixture
def topic(kafka: Kafka, clock: Clock) -> ConnectorTopic:
    return ConnectorTopic(KafkaSettings(), RegistrySettings(), "test", READER)


@pytest.mark.parametrize("cause", ["missing", "without_leader"])
def test_a_topic_that_comes_at_once_is_read_within_half_a_second(
    kafka: Kafka, clock: Clock, topic: ConnectorTopic, cause: str
) -> None:
    setattr(kafka, cause, 1)
    assert topic.poll(0.0) is None
    assert (topic.is_waiting, topic.is_current, topic.is_missing) == (True, False, cause == "missing")
    clock.now_s += FIRST_PAUSE_S
    assert topic.poll(0.0) is None
    assert kafka.is_assigned
    assert (topic.is_waiting, topic.is_current, topic.is_missing) == (False, True, False)


def test_kafka_is_asked_ever_less_often_for_a_topic_that_does_not_come(
    kafka: Kafka, clock: Clock, topic: ConnectorTopic
) -> None:
    kafka.missing = 1_000_000
    for request in range(1, 50):
        topic.poll(0.0)
        assert kafka.requests == request
        topic.poll(0.0)
        assert kafka.requests == request, "nobody waits for the same answer without a pause"
        clock.now_s += LONGEST_PAUSE_S
    for _ in range(6_000):
        topic.poll(0.0)
        clock.now_s += 0.1
    assert kafka.requests < 49 + 250, f"{TOPIC} is asked for every five seconds on average, for ten minutes"


class Both(Kafka):
    """A Kafka with readback requests; `messages` are what a consumer of both topics gets."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned: list[Any] = []
        self.messages: list[Message] = []
        self.has_requests = True

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        found = super().list_topics(topic, timeout)
        if topic == REQUESTS and not self.has_requests:
            found.topics[topic].error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return (0, 7) if partition.topic == REQUESTS else (0, 1)

    def assign(self, partitions: Any) -> None:
        super().assign(partitions)
        self.assigned = [(one.topic, one.partition, one.offset) for one in partitions]

    def poll(self, _timeout_s: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None


def of(topic: str, key: bytes, value: bytes | None, error: KafkaError | None = None) -> Message:
    return Message(topic=topic, partition=0, offset=0, key=key, value=value, error=error)


def test_requests_come_with_the_changes_from_the_end_of_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, taken = Both(), []
    monkeypatch.setattr(clients, "consumer", lambda *_arguments, **_properties: kafka)
    topic = ConnectorTopic(
        KafkaSettings(), RegistrySettings(), "t", READER, lambda name: name != "b", lambda *one: taken.append(one)
    )
    topic.poll(0.0)
    assert kafka.assigned == [(TOPIC, 0, 0), (REQUESTS, 0, 7)]
    end = KafkaError(KafkaError._PARTITION_EOF)
    kafka.messages = [
        of(REQUESTS, b"", None, end),
        of(REQUESTS, b"a", b"1"),
        of(REQUESTS, b"b", b"of a connector that is not followed"),
        of(REQUESTS, b"a", None),
        of(REQUESTS, b"a", b"2"),
    ]
    assert topic.poll(0.0) is None
    assert taken == [("a", b"1"), ("a", b"2")]
    assert not topic.is_current, "the end of the requests says nothing of the connectors"
    kafka.messages = [of(TOPIC, b"a", None)]
    change = topic.poll(0.0)
    assert change is not None
    assert topic.is_current


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_suite_without_the_topic_of_requests_works_as_before(monkeypatch: pytest.MonkeyPatch, is_asked: bool) -> None:
    kafka = Both()
    kafka.has_requests = False
    monkeypatch.setattr(clients, "consumer", lambda *_arguments, **_properties: kafka)
    take = (lambda *_one: None) if is_asked else None
    topic = ConnectorTopic(KafkaSettings(), RegistrySettings(), "t", READER, on_readback=take)
    topic.poll(0.0)
    assert kafka.assigned == [(TOPIC, 0, 0)]

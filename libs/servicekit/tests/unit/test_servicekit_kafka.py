from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its __all__
from structlog.testing import CapturingLogger

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import assign_from_start
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.kafka.offsets import list_offsets
from isotherm.servicekit.settings import KafkaSettings


def test_settings_win_over_overrides_and_these_over_defaults() -> None:
    settings = KafkaSettings(bootstrap_servers="k:1", properties={"linger.ms": "9", "security.protocol": "SSL"})

    config = clients.client_config(settings, "me", linger_ms=1, acks="1")

    assert config["bootstrap.servers"] == "k:1"
    assert config["client.id"] == "me"
    assert (config["linger.ms"], config["acks"], config["security.protocol"]) == ("9", "1", "SSL")


def test_producers_are_idempotent_and_partition_as_java_does() -> None:
    assert clients.PRODUCER_DEFAULTS["enable.idempotence"] is True
    assert clients.PRODUCER_DEFAULTS["acks"] == "all"
    assert clients.PRODUCER_DEFAULTS["partitioner"] == "murmur2_random"


def test_consumers_see_committed_records_only_and_commit_when_told() -> None:
    assert clients.CONSUMER_DEFAULTS["isolation.level"] == "read_committed"
    assert clients.CONSUMER_DEFAULTS["enable.auto.commit"] is False


@pytest.mark.parametrize(
    ("properties", "heartbeat_ms"),
    [
        ({}, 3_000),
        ({"session.timeout.ms": "6000"}, 2_000),
        ({"session.timeout.ms": "1000"}, 333),
        ({"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}, "500"),
    ],
)
def test_three_heartbeats_fit_into_a_session(properties: dict[str, str], heartbeat_ms: int | str) -> None:
    config = clients.consumer_config(KafkaSettings(properties=properties), "c", "g", session_timeout_ms=45_000)
    assert config["heartbeat.interval.ms"] == heartbeat_ms


def test_a_session_that_is_no_number_is_named_when_the_client_is_made() -> None:
    settings = KafkaSettings(properties={"session.timeout.ms": "soon"})
    with pytest.raises(KafkaException, match=r"session\.timeout\.ms"):
        clients.consumer(settings, "c", "g")


def test_property_that_librdkafka_does_not_know_is_refused_when_the_client_is_made() -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.property"):
        clients.producer(KafkaSettings(properties={"no.such.property": "1"}), "me")


def test_kafka_error_is_found_in_an_exception() -> None:
    error = KafkaError(KafkaError._TIMED_OUT)

    assert error_of(error) is error
    assert error_of(KafkaException(error)) is error
    assert error_of(ValueError("x")) is None


def test_repeated_error_is_said_once_in_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(clients, "_log", log)
    now_s = 0.0
    say = clients._Errors(interval_s=30.0, clock=lambda: now_s)
    down, timeout = KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TIMED_OUT)

    def said(*errors: KafkaError) -> int:
        log.calls.clear()
        for error in errors:
            say(error)
        return len(log.calls)

    assert said(down, down, timeout, down) == 2
    now_s = 31.0
    assert said(down, down) == 1


def test_an_offset_that_its_leader_has_not_told_is_an_error() -> None:
    """librdkafka gives the partitions of a leader that does not answer OFFSET_INVALID and no error."""
    answers = {0: 7, 1: OFFSET_INVALID}

    class Admin:
        def list_offsets(
            self, asked: dict[TopicPartition, object], **_: object
        ) -> dict[TopicPartition, Future[object]]:
            found: dict[TopicPartition, Future[object]] = {one: Future() for one in asked}
            for one, future in found.items():
                future.set_result(SimpleNamespace(offset=answers[one.partition]))
            return found

    admin, latest = cast(AdminClient, Admin()), cast(OffsetSpec, None)
    found = list_offsets(admin, [("t", 0)], latest, committed=True, timeout_s=1.0)
    assert found["t", 0].offset == 7
    with pytest.raises(KafkaException, match="the leader of partition 1 of t did not answer"):
        list_offsets(admin, [("t", 0), ("t", 1)], latest, committed=True, timeout_s=1.0)


class RecordingConsumer:
    """A consumer that records what it is asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.calls.append(("list", topic, timeout))

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("assign", one.topic, one.partition, one.offset) for one in partitions]


def test_a_consumer_knows_the_topic_before_its_partitions_are_assigned() -> None:
    consumer = RecordingConsumer()
    assign_from_start(cast(Consumer, consumer), "t", {0: 7, 2: 9}, 1.5)
    assert consumer.calls == [("list", "t", 1.5), ("assign", "t", 0, 0), ("assign", "t", 2, 0)]

"""Replay on a real Kafka: the group keeps its commit metadata, and a running task blocks a replay."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__

from isotherm.connector.offsets.replay import (
    BusyError,
    Position,
    ReplayError,
    To,
    positions,
    reset_offsets,
    set_offsets,
)
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.settings import KafkaSettings

pytestmark = pytest.mark.integration

BASE_MS = 1_767_225_600_000


@pytest.fixture
def settings(kafka: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def admin(settings: KafkaSettings) -> GroupAdmin:
    return clients.group_admin(settings, "test")


@pytest.fixture
def topic(settings: KafkaSettings, admin: GroupAdmin) -> str:
    """Two partitions with ten records each, a second apart."""
    name = f"replay-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result()
    producer = clients.producer(settings, "test")
    for number in range(20):
        producer.produce(name, value=b"%d" % number, partition=number % 2, timestamp=BASE_MS + number // 2 * 1000)
    assert producer.flush(60) == 0
    return name


def after(moves: Any) -> list[int]:
    return [move.after for move in moves]


def test_a_group_goes_where_it_is_told_and_keeps_what_its_commits_said(
    settings: KafkaSettings, admin: GroupAdmin, topic: str
) -> None:
    group = f"connect-{uuid.uuid4().hex[:8]}"
    consumer = clients.consumer(settings, "task", group)
    told = '{"v":1,"written":7}'
    consumer.commit(offsets=[TopicPartition(topic, 0, 7, metadata=told)], asynchronous=False)
    found = [(one.committed, one.low, one.high) for one in positions(admin, group, [topic])]
    assert found == [(7, 0, 10), (None, 0, 10)]

    asked = Position(To.TIME, BASE_MS + 2_500)
    assert after(reset_offsets(admin, group, [topic], asked, dry_run=True)) == [3, 3]
    assert positions(admin, group, [topic])[0].committed == 7, "a dry run changes nothing"
    for _ in range(2):
        assert after(reset_offsets(admin, group, [topic], asked)) == [3, 3]
        states = positions(admin, group, [topic])
        assert [(one.committed, one.metadata) for one in states] == [(3, told), (3, "")]
    assert after(reset_offsets(admin, group, [topic], Position(To.TIME, BASE_MS + 60_000))) == [10, 10]
    assert after(reset_offsets(admin, group, [topic], Position(To.EARLIEST))) == [0, 0]
    assert after(reset_offsets(admin, group, [topic], Position(To.LATEST))) == [10, 10]
    assert after(reset_offsets(admin, group, [f"^{topic}$"], Position(To.OFFSET, 5), partition=1)) == [5]
    assert [one.committed for one in positions(admin, group, [topic])] == [10, 5]
    consumer.assign([TopicPartition(topic, 1, 5)])
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"11"
    consumer.close()


def test_single_partitions_go_where_they_are_told_all_or_none(
    settings: KafkaSettings, admin: GroupAdmin, topic: str
) -> None:
    group = f"connect-{uuid.uuid4().hex[:8]}"
    consumer = clients.consumer(settings, "task", group)
    consumer.commit(offsets=[TopicPartition(topic, 0, 7, metadata="m")], asynchronous=False)
    consumer.close()
    for wrong, expected in (
        ((topic, 2), f"there is no partition 2 of {topic}"),
        (("absent-topic", 0), "there is no topic absent-topic"),
        ((f"^{topic}", 0), r"there is no topic \^"),
    ):
        with pytest.raises(ReplayError, match=expected):
            set_offsets(admin, group, {(topic, 0): 5, wrong: 1})
        assert [one.committed for one in positions(admin, group, [topic])] == [7, None]
    assert after(set_offsets(admin, group, {(topic, 1): 99, (topic, 0): 5})) == [10, 5]
    states = positions(admin, group, [topic])
    assert [(one.committed, one.metadata) for one in states] == [(5, "m"), (10, "")]
    assert after(set_offsets(admin, group, {(topic, 1): None})) == [0]


def test_refusals(settings: KafkaSettings, admin: GroupAdmin, topic: str) -> None:
    group = f"connect-{uuid.uuid4().hex[:8]}"
    for topics, partition, expected in (
        (["absent-topic"], None, "there is no topic absent-topic"),
        (["^absent.*"], None, r"there is no \^absent"),
        ([topic], 9, f"there is no partition 9 of {topic}"),
    ):
        with pytest.raises(ReplayError, match=expected):
            reset_offsets(admin, group, topics, Position(To.EARLIEST), partition=partition)
    consumer = clients.consumer(settings, "the-task", group)
    consumer.subscribe([topic])
    assert consumer.poll(60) is not None
    with pytest.raises(BusyError, match=r"has running tasks \(the-task\)"):
        reset_offsets(admin, group, [topic], Position(To.EARLIEST))
    with pytest.raises(BusyError, match=r"has running tasks \(the-task\)"):
        set_offsets(admin, group, {(topic, 0): 1})
    consumer.close()
    reset_offsets(admin, group, [topic], Position(To.EARLIEST))

"""Reading a group's committed offsets while its coordinator moves: the process lives, and the answer comes.

librdkafka 2.16 ends the process in its own `list_consumer_group_offsets` (docs/adr/0137).
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__
from moved_coordinator import MovedCoordinator

from isotherm.connector.offsets.replay import Position, To, positions, reset_offsets
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.settings import KafkaSettings

pytestmark = pytest.mark.integration

PARTITIONS = 3
WAIT_S = 60.0


class Group:
    """A group that has committed an offset in the last partition of its topic."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        settings = KafkaSettings(bootstrap_servers=bootstrap_servers)
        self.name, self.topic = f"connect-{uuid.uuid4().hex[:8]}", f"group-offsets-{uuid.uuid4().hex[:8]}"
        admin = clients.admin(settings, "test")
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(WAIT_S)
        committed = [TopicPartition(self.topic, PARTITIONS - 1, 7, metadata="told")]
        consumer = clients.consumer(settings, "task", self.name)
        consumer.commit(offsets=committed, asynchronous=False)
        consumer.close()


@pytest.fixture(scope="module")
def group(kafka: Any) -> Group:
    return Group(kafka.bootstrap_servers)


def admin_behind(relay: MovedCoordinator) -> GroupAdmin:
    return clients.group_admin(KafkaSettings(bootstrap_servers=relay.bootstrap_servers), "test")


def test_the_answer_of_a_former_coordinator_is_not_the_last_word(group: Group) -> None:
    with MovedCoordinator(group.bootstrap_servers, refusals=3) as relay:
        found = [(one.committed, one.metadata) for one in positions(admin_behind(relay), group.name, [group.topic])]
        assert relay.refusals_left == 0
    assert found == [(None, ""), (None, ""), (7, "told")]


def test_all_offsets_of_a_group_are_found_without_naming_its_topics(group: Group) -> None:
    with MovedCoordinator(group.bootstrap_servers, refusals=1) as relay:
        found = admin_behind(relay).committed_offsets(group.name, timeout_s=WAIT_S)
        assert relay.refusals_left == 0
        assert admin_behind(relay).committed_offsets("a-group-that-never-was", timeout_s=WAIT_S) == []
    assert [(one.topic, one.partition, one.offset) for one in found] == [(group.topic, PARTITIONS - 1, 7)]


def test_a_coordinator_that_stays_away_is_an_error_when_the_time_is_over(group: Group) -> None:
    with MovedCoordinator(group.bootstrap_servers, refusals=1_000_000) as relay:
        with pytest.raises(KafkaException) as refused:
            admin_behind(relay).committed_offsets(group.name, [TopicPartition(group.topic, 0)], timeout_s=2.0)
        assert relay.refusals_left < 1_000_000
    error = error_of(refused.value)
    assert error is not None
    assert error.code() in (KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT)


def test_a_replay_waits_for_the_new_coordinator(kafka: Any) -> None:
    group = Group(kafka.bootstrap_servers)
    with MovedCoordinator(group.bootstrap_servers, refusals=1) as relay:
        moves = reset_offsets(admin_behind(relay), group.name, [group.topic], Position(To.EARLIEST))
    assert [(move.before, move.after) for move in moves] == [(None, 0), (None, 0), (7, 0)]

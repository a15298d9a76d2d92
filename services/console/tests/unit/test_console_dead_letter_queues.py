"""Which topics are dead-letter queues: never a control topic, whatever a connector's configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer
from console_in_memory import CONFIG, World, world_of

from isotherm.console.dead_letters.queue import KafkaDeadLetterQueues, RecordPosition
from isotherm.console.errors import NotFoundError
from isotherm.servicekit.kafka.group_offsets import GroupAdmin

CONTROL = ("isotherm.connectors", "__consumer_offsets", "isotherm.odd.dead-letters")


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


class Topics:
    """An admin client that lists topics."""

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={name: SimpleNamespace(partitions={0: None}) for name in CONTROL})


@pytest.mark.parametrize("topic", CONTROL)
def test_a_control_topic_is_never_a_queue(world: World, topic: str) -> None:
    world.create()
    connector = world.control.find("a")
    assert connector is not None
    record = connector.record() | {"config": CONFIG | {"errors.deadletterqueue.topic.name": topic}}
    world.memory.write("a", record)
    assert world.control.dead_letter_topics() == set()
    queues = KafkaDeadLetterQueues(
        cast(GroupAdmin, Topics()),
        lambda: Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "test"}),
        lambda: pytest.fail("nothing is replayed"),
        timeout_ms=1_000,
        max_records=10,
        configured_topics=lambda: CONTROL,
    )
    assert queues.queues(CONTROL) == []
    with pytest.raises(NotFoundError):
        queues.open_records(topic, None, 10)
    with pytest.raises(NotFoundError):
        queues.record(topic, RecordPosition(0, 0))
    with pytest.raises(NotFoundError):
        queues.replay(topic, None)

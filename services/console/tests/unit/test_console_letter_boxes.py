"""Which topics are boxes of dead letters: never those that control the workers, whatever a connector says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient
from console_in_memory import CONFIG, World, world_of

from isotherm.console.dead_letters.queue import KafkaDeadLetterQueues, RecordPosition
from isotherm.console.errors import NotFoundError
from isotherm.servicekit.settings import KafkaSettings

CONTROL = ("isotherm.connectors", "__consumer_offsets", "isotherm.odd.dead-letters")


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


class Topics:
    """An admin client that knows topics, and nothing of groups."""

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={name: SimpleNamespace(partitions={0: None}) for name in CONTROL})


@pytest.mark.parametrize("topic", CONTROL)
def test_a_topic_of_control_is_no_box_even_when_a_record_says_so(world: World, topic: str) -> None:
    world.create()
    connector = world.control.find("a")
    assert connector is not None
    record = connector.record() | {"config": CONFIG | {"errors.deadletterqueue.topic.name": topic}}
    world.memory.write("a", record)
    assert world.control.dead_letter_topics() == set()
    letters = KafkaDeadLetterQueues(
        KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        cast(AdminClient, Topics()),
        timeout_ms=1_000,
        most=10,
        box_names=lambda: CONTROL,
    )
    assert letters.boxes(CONTROL) == []
    with pytest.raises(NotFoundError):
        letters.open(topic, None, 10)
    with pytest.raises(NotFoundError):
        letters.letter(topic, RecordPosition(0, 0))
    with pytest.raises(NotFoundError):
        letters.replay(topic, None)

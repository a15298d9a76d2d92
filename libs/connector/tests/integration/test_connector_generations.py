"""Tasks of two configurations of one connector never run at the same time, whatever each worker has read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # there, not in its __all__

from isotherm.connector.distributed.generations import Fence, Generation, StaleConfigurationError
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

pytestmark = pytest.mark.integration

OLD, NEW = Generation.made(3, {"kcql": "old"}), Generation.made(7, {"kcql": "new"})
ONLY_PAUSED = Generation.made(9, {"kcql": "new"})
TURNS = 600


class World:
    """A group of tasks on a topic of its own."""

    def __init__(self, kafka: Any) -> None:
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.admin = clients.admin(self.settings, "test")
        self.topic = self.group = f"generations-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(60)

    def fence(self, generation: Generation) -> Fence:
        return Fence(self.admin, self.group, generation)

    def closed(self, generation: Generation) -> str | None:
        """The answer of the fence, once it has one; a broker that has just started has no coordinator yet."""
        for _ in range(TURNS):
            why = self.fence(generation).closed()
            if why is None or not why.startswith("the group's members are not known"):
                return why
            threading.Event().wait(0.1)
        pytest.fail("not within a minute")

    @contextmanager
    def task(self, generation: Generation) -> Iterator[Consumer]:
        """A member of the group with this configuration."""
        member = clients.consumer(self.settings, generation.client_id("c-0"), self.group)
        joined: list[Any] = []
        member.subscribe([self.topic], on_assign=lambda _consumer, partitions: joined.append(partitions))
        turn(member, lambda: bool(joined))
        try:
            yield member
        finally:
            member.close()


def turn(member: Consumer, condition: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        member.poll(0.1)
        if condition():
            return
    pytest.fail("not within a minute")


def test_a_newer_configuration_waits_for_the_tasks_of_the_one_before(kafka: Any) -> None:
    world = World(kafka)
    assert world.closed(NEW) is None, "an empty group"
    with world.task(OLD):
        assert "previous configuration (record 3) have not ended" in (world.closed(NEW) or "")
        assert world.closed(OLD) is None
        world.fence(NEW).check()
    assert world.closed(NEW) is None


def test_a_worker_that_lags_behind_starts_no_task_beside_newer_ones(kafka: Any) -> None:
    world = World(kafka)
    with world.task(NEW):
        assert "tasks of a newer configuration run (record 7; this task has record 3)" in (world.closed(OLD) or "")
        with pytest.raises(StaleConfigurationError):
            world.fence(OLD).check()
        assert world.closed(ONLY_PAUSED) is None, "the same configuration in a later record"
        world.fence(ONLY_PAUSED).check()


def test_client_ids_without_a_generation_are_nobodys() -> None:
    assert Generation.of("c-0") is None
    assert Generation.of(NEW.client_id("c-0")) == NEW
    assert NEW.others(["c-0", NEW.client_id("c-1")]) == []

"""A topic is read to its end, followed, and read again after a failure, whatever partitions and gaps it has."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from isotherm.alerts.input import topic_follower
from isotherm.alerts.input.topic_follower import TopicFollower

END = KafkaError._PARTITION_EOF
Event = tuple[int, int, int | None]
"""Partition, offset and code of an error."""


class Consumer:
    """Gives events, then calls `stop`."""

    def __init__(self, ends: dict[int, tuple[int, int]], events: list[Event], stop: Callable[[], None]) -> None:
        self._ends, self._events, self._stop = ends, events, stop
        self.assigned: list[tuple[int, int]] = []
        self.topic_error: KafkaError | None = None
        self.is_closed = False

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.topic_error, partitions=self._ends)})

    def offsets_for_times(self, asked: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        return [TopicPartition("t", one.partition, one.offset if one.partition else -1) for one in asked]

    def get_watermark_offsets(self, one: TopicPartition, **_: Any) -> tuple[int, int]:
        return self._ends[one.partition]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = [(one.partition, one.offset) for one in partitions]

    def poll(self, _s: float) -> Any:
        if not self._events:
            self._stop()
            return None
        number, offset, code = self._events.pop(0)
        error = None if code is None else KafkaError(code)
        return SimpleNamespace(partition=lambda: number, offset=lambda: offset, error=lambda: error)

    def consume(self, _most: int, _s: float) -> list[Any]:
        return []

    def close(self) -> None:
        self.is_closed = True


class World:
    """A follower that runs in the thread of the test; what happens to it is a list of words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.happened: list[str] = []
        self.consumers: list[Consumer] = []
        self.failing: set[int] = set()
        monkeypatch.setattr(topic_follower, "Backoff", lambda **_: SimpleNamespace(next_ms=lambda: 0, reset=lambda: 0))
        self.follower = TopicFollower(
            "t",
            "things",
            self._next_consumer,
            self._apply,
            on_begin=lambda: self.happened.append("begin"),
            on_end=lambda: self.happened.append("end"),
            **options,
        )

    def add(self, ends: dict[int, tuple[int, int]], *events: Event) -> Consumer:
        self.consumers.append(Consumer(ends, list(events), self.follower._ended.set))
        return self.consumers[-1]

    def run(self) -> list[str]:
        self._left = list(self.consumers)
        self.follower._run()
        assert all(one.is_closed for one in self.consumers)
        return self.happened

    def _next_consumer(self) -> Any:
        return self._left.pop(0)

    def _apply(self, message: Any) -> None:
        if message.offset() in self.failing:
            self.failing.discard(message.offset())
            raise OSError("no registry")
        self.happened.append(f"{message.partition()}/{message.offset()}")


def test_the_end_is_that_of_all_partitions_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    consumer = world.add({0: (0, 2), 1: (5, 9), 2: (4, 4)}, (0, 1, None), (1, 7, None), (1, 9, END), (1, 9, None))
    assert world.run() == ["begin", "0/1", "1/7", "end", "1/9"]
    assert consumer.assigned == [(0, 0), (1, 0), (2, 0)]
    assert world.follower.is_current()


def test_an_empty_topic_is_current_at_once_and_an_unread_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = World(monkeypatch)
    empty.add({0: (3, 3)})
    assert (empty.run(), empty.follower.is_current()) == (["begin", "end"], True)
    unread = World(monkeypatch)
    unread.add({0: (0, 3)}, (0, 0, None))
    assert (unread.run(), unread.follower.is_current()) == (["begin", "0/0"], False)


def test_after_a_failure_the_topic_is_read_again_and_counts_as_current_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.failing = {2}
    world.add({0: (0, 2)}, (0, 0, None), (0, 1, None), (0, 2, None))
    world.add({0: (0, 3)}, (0, 0, None), (0, 3, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    world.add({0: (0, 3)}).topic_error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    world.add({})
    world.add({0: (0, 3)}, (0, 2, None))
    assert world.run() == ["begin", "0/0", "0/1", "end", *["begin", "0/0"], "begin", "begin", *["begin", "0/2", "end"]]
    assert world.follower.is_current()


def test_a_topic_that_is_read_from_a_time_on_begins_at_its_end_where_nothing_is_as_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, since_ms=lambda: 7)
    consumer = world.add({0: (0, 9), 1: (0, 9)}, (1, 7, None), (1, 8, None))
    assert world.run() == ["begin", "1/7", "1/8", "end"]
    assert consumer.assigned == [(0, -1), (1, 7)]

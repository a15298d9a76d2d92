"""What a follower does about topics that are not there, and where it begins to read."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from prometheus_client import CollectorRegistry

from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower, TopicHandler
from isotherm.servicekit.health import Health

PATIENCE_S = 60.0


class Kafka:
    """A consumer of a Kafka that has some topics, each with one partition and one record."""

    def __init__(self, *topics: str) -> None:
        self.topics = list(topics)
        self.assigned = threading.Event()
        self.asked = threading.Event()
        """Set at the second question: what the first one found has been told by then."""
        self._questions = 0
        self._messages: list[Message] = []

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self._questions += 1
        if self._questions > 1:
            self.asked.set()
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None}) for topic in self.topics})

    def get_watermark_offsets(self, _partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 1

    def assign(self, partitions: Any) -> None:
        self._messages = [Message(topic=one.topic, partition=0, offset=0, key=b"k", value=b"v") for one in partitions]
        self.assigned.set()

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        found, self._messages = self._messages, []
        return found

    def poll(self, _timeout_s: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def close(self) -> None: ...


@pytest.mark.parametrize("has_optional", [True, False])
def test_it_goes_on_without_a_topic_that_need_not_be_there(has_optional: bool) -> None:
    kafka, health = Kafka("needed", *(["optional"] if has_optional else [])), Health()
    used: list[str] = []
    missing: list[str] = []
    is_read = threading.Event()

    def use(message: Message, _record: Any) -> None:
        used.append(message.topic() or "")
        if len(used) == 1 + has_optional:
            is_read.set()

    topics = {
        "needed": TopicHandler(bytes, use),
        "optional": TopicHandler(bytes, use, on_missing=lambda: missing.append("optional")),
    }
    counters = FollowerMetrics(CollectorRegistry())
    follower = TopicFollower("f", lambda: cast(Consumer, kafka), topics, health, counters)
    follower.start()
    assert is_read.wait(PATIENCE_S)
    follower.close()
    assert sorted(used) == ["needed", "optional"][: 1 + has_optional]
    assert missing == ([] if has_optional else ["optional"])
    assert "topics" not in health.problems()


def test_it_waits_for_a_topic_that_must_be_there() -> None:
    kafka, health = Kafka("optional"), Health()
    topics = {
        "needed": TopicHandler(bytes, lambda *_: None),
        "optional": TopicHandler(bytes, lambda *_: None, on_missing=lambda: pytest.fail("it is there")),
    }
    follower = TopicFollower("f", lambda: cast(Consumer, kafka), topics, health, FollowerMetrics(CollectorRegistry()))
    follower.start()
    assert kafka.asked.wait(PATIENCE_S)
    assert not kafka.assigned.is_set()
    assert "no topic needed; run `isotherm apply`" in health.problems()["topics"]
    kafka.topics.append("needed")
    assert kafka.assigned.wait(PATIENCE_S)
    follower.close()


class TimedKafka(Kafka):
    """A consumer of a Kafka that knows when records of two partitions were stored; each has 10 of them."""

    def __init__(self, fails: int) -> None:
        super().__init__("commands")
        self._fails = fails
        self.asked_ms: list[int] = []
        self.starts: list[int] = []

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={"commands": SimpleNamespace(partitions={0: None, 1: None})})

    def offsets_for_times(self, times: Any, timeout: float) -> Any:
        self._fails -= 1
        if self._fails >= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.asked_ms = [one.offset for one in times]
        for one in times:
            one.offset = 7 if one.partition == 0 else -1
        return times

    def get_watermark_offsets(self, _partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 10

    def assign(self, partitions: Any) -> None:
        self.starts = [one.offset for one in partitions]
        self._messages = [Message(topic="commands", partition=0, offset=9, key=b"k", value=b"v")]
        self.assigned.set()


@pytest.mark.parametrize("fails", [0, 2])
def test_it_begins_at_a_time_and_where_nothing_is_so_new_at_the_end(fails: int) -> None:
    kafka, health, is_read = TimedKafka(fails), Health(), threading.Event()
    topics = {"commands": TopicHandler(bytes, lambda *_: is_read.set(), from_ms=123)}
    follower = TopicFollower("f", lambda: cast(Consumer, kafka), topics, health, FollowerMetrics(CollectorRegistry()))
    follower.start()
    assert is_read.wait(PATIENCE_S)
    follower.close()
    # The end is a number: Kafka's word for it would be another one when the reading begins.
    assert (kafka.asked_ms, kafka.starts) == ([123, 123], [7, 10])
    assert health.problems().keys() == {"start"}, "the last record of the one partition was read, the other has none"

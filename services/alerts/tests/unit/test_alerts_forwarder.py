"""A commit of the forwarder that Kafka refuses, for all partitions or for some, is tried again until it is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.repartition import forwarder as forwarder_module
from isotherm.alerts.repartition.forwarder import PART, Forwarder, ForwarderClients
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit.avro import RegistryUnavailableError
from isotherm.servicekit.health import Health

LIMIT_S = 20.0
TOPIC, ENDS = "temperatures", {0: 7, 1: 9}

Answer = Callable[[dict[int, int]], dict[int, int | None]]
"""Takes the offsets by partition; returns the code of the error, or None, by partition. Raises KafkaException."""


class Consumer:
    """Two partitions that are read to their ends. Its commits are answered as scripted, and then they succeed."""

    def __init__(self, answers: Sequence[Answer], health: Health) -> None:
        self.commits: list[dict[int, int]] = []
        self.problems: list[str] = []
        """What the health says at each commit."""
        self.is_idle = threading.Event()
        """A whole commit interval has passed without a commit after the scripted ones."""
        self._answers, self._health = list(answers), health
        self._events: list[Any] = []
        self._idle_polls = 0

    def subscribe(self, topics: Sequence[str], on_assign: Callable[..., None], **_: object) -> None:
        assert topics == [TOPIC]
        on_assign(self, [TopicPartition(TOPIC, number) for number in ENDS])
        self._events = [end_of(number, offset) for number, offset in ENDS.items()]

    def poll(self, timeout_s: float) -> Any:
        if self._events:
            return self._events.pop()
        threading.Event().wait(timeout_s)
        self._idle_polls += 1
        if not self._answers and self._idle_polls > 5:
            self.is_idle.set()
        return None

    def consume(self, _most: int, _timeout_s: float) -> list[Any]:
        return []

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in ENDS]

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> list[Any]:
        assert not asynchronous
        self._idle_polls = 0
        self.commits.append({one.partition: one.offset for one in offsets})
        self.problems.append(str(self._health.problems().get(PART, "")))
        codes = self._answers.pop(0)(self.commits[-1]) if self._answers else dict.fromkeys(ENDS)
        return [
            SimpleNamespace(
                topic=TOPIC,
                partition=one.partition,
                offset=one.offset,
                error=None if (code := codes[one.partition]) is None else KafkaError(code),
            )
            for one in offsets
        ]

    def pause(self, _partitions: Sequence[TopicPartition]) -> None: ...

    resume = pause

    def close(self) -> None: ...


def end_of(number: int, offset: int) -> Any:
    fields = {"error": KafkaError(KafkaError._PARTITION_EOF), "topic": TOPIC, "partition": number, "offset": offset}
    return SimpleNamespace(**{name: (lambda found=found: found) for name, found in fields.items()})


def raising(code: int) -> Answer:
    def fail(_offsets: dict[int, int]) -> dict[int, int | None]:
        raise KafkaException(KafkaError(code))

    return fail


def refusing(number: int, code: int) -> Answer:
    return lambda offsets: {one: code if one == number else None for one in offsets}


@pytest.mark.parametrize(
    ("answers", "commits"),
    [
        ((), [ENDS]),
        # Only what was refused is tried again.
        ((refusing(1, KafkaError.REQUEST_TIMED_OUT),), [ENDS, {1: 9}]),
        ((refusing(0, KafkaError.NOT_COORDINATOR), refusing(0, KafkaError.NOT_COORDINATOR)), [ENDS, {0: 7}, {0: 7}]),
        # During a rebalance, or fenced, the whole request is refused.
        ((raising(KafkaError.REBALANCE_IN_PROGRESS), raising(KafkaError.ILLEGAL_GENERATION)), [ENDS, ENDS, ENDS]),
    ],
)
def test_a_refused_commit_is_tried_again_until_it_is_taken(
    answers: Sequence[Answer], commits: list[dict[int, int]]
) -> None:
    health = Health()
    consumer = Consumer(answers, health)
    others = SimpleNamespace(close=lambda: None, flush=lambda _timeout_s: 0)
    settings = AlertsSettings(name="t", input_topics=[TOPIC])
    clients = ForwarderClients(cast(Any, consumer), cast(Any, others), cast(Any, others), cast(Any, others))
    forwarder = Forwarder(settings, cast(Any, None), clients, Metrics(), health)
    forwarder.start()
    try:
        assert consumer.is_idle.wait(LIMIT_S)
        assert PART not in health.problems()
    finally:
        forwarder.close()
    assert forwarder.failure is None
    assert consumer.commits == commits
    assert ["not committed" in one for one in consumer.problems] == [False] + [True] * (len(commits) - 1)


def test_what_is_committed_is_committed_again_some_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late commit of an earlier offset may have set the group back meanwhile."""
    monkeypatch.setattr(forwarder_module, "_COMMIT_AGAIN_S", 1.0)
    health, again = Health(), threading.Event()

    def answer(_offsets: dict[int, int]) -> dict[int, int | None]:
        if len(consumer.commits) == 2:
            again.set()
        return dict.fromkeys(ENDS)

    consumer = Consumer([answer, answer], health)
    others = SimpleNamespace(close=lambda: None, flush=lambda _timeout_s: 0)
    clients = ForwarderClients(cast(Any, consumer), cast(Any, others), cast(Any, others), cast(Any, others))
    settings = AlertsSettings(name="t", input_topics=[TOPIC])
    forwarder = Forwarder(settings, cast(Any, None), clients, Metrics(), health)
    forwarder.start()
    try:
        assert again.wait(LIMIT_S)
    finally:
        forwarder.close()
    assert consumer.commits[:2] == [ENDS, ENDS]


class Record(NamedTuple):
    """A record that waits to be forwarded, as the client gives it."""

    number: int
    position: int

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.position

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def value(self) -> bytes:
        return b"?"

    def headers(self) -> None:
        return None


@pytest.mark.parametrize("missing", ["registry", "room"])
def test_a_record_that_a_close_has_kept_from_being_forwarded_is_not_committed(missing: str) -> None:
    """The registry does not answer, or the producer is full, until the service is stopped: the next one forwards it."""
    consumer, waits = Consumer([], Health()), threading.Event()

    def produce(*_: object, **__: object) -> None:
        waits.set()
        raise BufferError

    def decode(*_: object) -> Any:
        if missing == "registry":
            waits.set()
            raise RegistryUnavailableError("no answer")
        return SimpleNamespace(device_id="d")

    full = SimpleNamespace(
        close=lambda: None, flush=lambda _s: 0, produce=produce, poll=lambda s: threading.Event().wait(s)
    )
    clients = ForwarderClients(*(cast(Any, one) for one in (consumer, full, full, full)))
    forwarder = Forwarder(AlertsSettings(name="t", input_topics=[TOPIC]), cast(Any, None), clients, Metrics(), Health())
    forwarder._decode = decode  # type: ignore[assignment]  # stands for the registry
    subscribe = consumer.subscribe

    def subscribe_to_one(topics: Sequence[str], on_assign: Callable[..., None], **_: object) -> None:
        subscribe(topics, on_assign)
        consumer._events = [end_of(1, 9), Record(0, 6)]

    consumer.subscribe = subscribe_to_one  # type: ignore[method-assign]  # the stand-in with a record more
    forwarder.start()
    assert waits.wait(LIMIT_S)
    forwarder.close()
    assert forwarder.failure is None
    assert all(one.get(0, 0) <= 6 for one in consumer.commits), consumer.commits

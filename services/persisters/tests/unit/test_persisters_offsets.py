"""What is committed, what a commit confirms, and that the task asks for committed offsets until Kafka answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isotherm.persisters.api.ownership import Lease
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.consuming import offsets
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

PLACES = [TopicPartition("topic", 0)]


class Answers:
    """A consumer's `committed` that fails with these errors, one after the other, and then answers."""

    def __init__(self, *errors: int, in_answer: bool = False) -> None:
        self._errors = list(errors)
        self._in_answer = in_answer
        self.asked = 0

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        """The partitions."""
        assert timeout > 0
        self.asked += 1
        if self._errors:
            error = KafkaError(self._errors.pop(0))
            if self._in_answer:
                return [SimpleNamespace(error=None), SimpleNamespace(error=error)]
            raise KafkaException(error)
        return partitions


class Observed(Stop):
    """A stop that notes how long the task waits between two questions, in seconds, and what its health says."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.health = Health(clock=lambda: self.now_s)
        self.waits: list[tuple[float | None, str]] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        assert self.health.is_live(), "it asks for hours, and is alive"
        self.now_s += 1_000.0
        self.waits.append((timeout_s, self.health.problems()["kafka"]))
        return False


def asked(answers: Answers, stop: Stop, health: Health | None = None) -> Any:
    backoff = Backoff(base_ms=20.0, cap_ms=20.0)
    return offsets.committed(cast(Consumer, answers), PLACES, backoff, health or Health(), stop)


@pytest.mark.parametrize("in_answer", [True, False])
def test_it_is_asked_again_while_the_coordinator_moves(in_answer: bool) -> None:
    answers, stop = Answers(KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT, in_answer=in_answer), Observed()
    assert asked(answers, stop, stop.health) == PLACES
    assert answers.asked == 3
    assert len(stop.waits) == 2
    assert all(0 <= (seconds or 0.0) <= 0.02 and "not known" in problem for seconds, problem in stop.waits)


@pytest.mark.parametrize("in_answer", [True, False])
def test_a_refusal_is_an_error_and_not_an_empty_account(in_answer: bool) -> None:
    with pytest.raises(KafkaException) as refused:
        asked(Answers(KafkaError.GROUP_AUTHORIZATION_FAILED, in_answer=in_answer), Stop())
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_an_error_that_is_not_kafkas_is_raised_too() -> None:
    def fail(_partitions: object, timeout: float) -> None:
        raise KafkaException("odd")

    with pytest.raises(KafkaException, match="not known"):
        asked(cast(Answers, SimpleNamespace(committed=fail)), Stop())


def test_a_stop_ends_the_asking() -> None:
    stop = Stop()
    stop.set()
    assert asked(Answers(KafkaError._TIMED_OUT), stop) == []


class Committing:
    """A consumer that commits, with an error for some partitions or for all, on a clock; and who is told of it."""

    def __init__(self, *errors: int | None, fails: int | None = None) -> None:
        self.errors, self.fails = errors, fails
        self.now_s = 5.0
        self.health = Health()
        self.health.not_ready("kafka", "not tried yet")
        self.lease = Lease(10_000.0, lambda: self.now_s)
        self.told: list[tuple[float, bool]] = []
        self.buffers = [
            PartitionBuffer(("t", number), Counts(read=2, written=2), Backoff(), position=10 + number)
            for number in range(len(errors))
        ]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[Any] | None:
        assert not asynchronous
        assert all(Counts.from_metadata(one.metadata).written == 2 for one in offsets)
        self.now_s += 3.0
        if self.fails is not None:
            raise KafkaException(KafkaError(self.fails))
        codes = zip(offsets, self.errors, strict=True)
        errors = [(one, None if code is None else KafkaError(code)) for one, code in codes]
        return [SimpleNamespace(topic=o.topic, partition=o.partition, offset=o.offset, error=e) for o, e in errors]

    def committed(self, seconds: float, failed: bool) -> None:
        self.told.append((seconds, failed))

    def run(self, monkeypatch: pytest.MonkeyPatch) -> KafkaException | None:
        monkeypatch.setattr(offsets, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        return offsets.commit(cast(Consumer, self), self.buffers, self.health, self, self.lease)

    @property
    def is_ready(self) -> bool:
        return "kafka" not in self.health.problems()


def test_a_commit_notes_positions_and_confirms_the_lease_from_when_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Committing(None, None)
    assert world.run(monkeypatch) is None
    assert [each.committed for each in world.buffers] == [10, 11]
    assert (world.is_ready, world.told) == (True, [(3.0, False)])
    valid = []
    for world.now_s in (11.0, 11.1):
        valid.append(world.lease.is_valid)
    assert valid == [True, False]


def test_nothing_to_commit_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Committing(fails=KafkaError._TIMED_OUT)
    assert world.run(monkeypatch) is None
    assert (world.told, world.is_ready) == ([], False)


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (KafkaError.REBALANCE_IN_PROGRESS, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_commit_that_fails_keeps_what_is_uncommitted(
    monkeypatch: pytest.MonkeyPatch, code: int, is_refused: bool
) -> None:
    for world in (Committing(None, code), Committing(None, None, fails=code)):
        refused = world.run(monkeypatch)
        assert (refused is not None) is is_refused
        assert world.buffers[1].committed is None
        assert (world.is_ready, world.told) == (False, [(3.0, True)])
        assert ("offsets not committed" in world.health.problems()["kafka"]) is not is_refused
        assert world.lease.is_valid is (world.fails is None), "a member, if one partition's offset was accepted"


def test_the_first_refusal_of_several_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.OFFSET_METADATA_TOO_LARGE
    refused = Committing(*codes).run(monkeypatch)
    assert refused is not None
    assert refused.args[0].code() == codes[0]


def test_a_position_that_is_not_known_is_committed_as_the_first() -> None:
    place = offsets.position_of(PartitionBuffer(("t", 3), Counts(), Backoff()))
    assert (place.topic, place.partition, place.offset) == ("t", 3, 0)


class Ends:
    """A consumer that knows these ends from its fetches, and asks Kafka for others."""

    def __init__(self, cached: int, asked: int | None) -> None:
        self.cached, self.answer = cached, asked
        self.asked = 0

    def get_watermark_offsets(
        self, _where: TopicPartition, cached: bool = False, timeout: float = 0.0
    ) -> tuple[int, int]:
        if cached:
            return 0, self.cached
        assert 0 < timeout <= 1
        self.asked += 1
        if self.answer is None:
            raise KafkaException(KafkaError._TIMED_OUT)
        return 0, self.answer


@pytest.mark.parametrize(
    ("paused", "known", "cached", "answer", "high"),
    [
        (False, 7, 9, 20, 9),
        (False, 7, 0, 20, 0),
        (False, 7, -1001, 20, None),
        (True, 7, 5, 20, 20),
        (True, 7, 5, None, 7),
        (True, None, 5, None, 5),
        (True, None, -1001, None, None),
        (True, 0, -1001, None, 0),
    ],
)
def test_ends_come_from_fetches_and_from_kafka_for_paused_partitions(
    monkeypatch: pytest.MonkeyPatch, paused: bool, known: int | None, cached: int, answer: int | None, high: int | None
) -> None:
    now = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(offsets, "time", now)
    consumer = Ends(cached, answer)
    places = [PartitionBuffer(("t", n), Counts(), Backoff(), paused=paused, high_watermark=known) for n in range(2)]
    watermarks = offsets.Watermarks(cast(Consumer, consumer))
    watermarks.refresh(places)
    assert [place.high_watermark for place in places] == [high, high]
    # Kafka that does not answer is not asked for every other partition.
    asked = 0 if not paused else 1 if answer is None else 2
    assert consumer.asked == asked
    watermarks.refresh(places)
    assert consumer.asked == asked
    now.monotonic = lambda: 105.0
    watermarks.refresh(places)
    assert consumer.asked == 2 * asked

"""Where partitions are read from, and what the loop does when another configuration joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from isotherm.connector.distributed.generations import Fence, StaleConfigurationError
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import ProjectedRecord, Record, runs_of
from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import Share
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.consuming.fetch_positions import FetchPositions, NothingReadError
from isotherm.persisters.consuming.membership import Membership
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import KafkaSettings

PLACE = ("t", 0)


class Told:
    """A consumer of a topic with these offsets; each poll reports the next rebalance."""

    def __init__(self, first: int = 0, end: int = 0) -> None:
        self.bounds = first, end
        self.read_from: list[int] = []
        self.requests = 0
        self.rebalances: list[list[TopicPartition]] = []
        self.assigned: Callable[..., None] = lambda *_: None

    def subscribe(self, _topics: Any, *, on_assign: Any, **_: Any) -> None:
        self.assigned = on_assign

    def poll(self, _timeout_s: float) -> None:
        if self.rebalances:
            self.assigned(self, self.rebalances.pop(0))

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return partitions

    def get_watermark_offsets(self, _where: TopicPartition, **_: Any) -> tuple[int, int]:
        return self.bounds

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.requests += 1
        return [TopicPartition(one.topic, one.partition, self.bounds[one.offset == OFFSET_END]) for one in asked]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.read_from += [one.offset for one in partitions]

    def incremental_unassign(self, _partitions: Any) -> None: ...

    def resume(self, _partitions: Any) -> None: ...

    def close(self) -> None: ...


def fetching(consumer: Told, health: Health, start: str = "earliest") -> FetchPositions:
    return FetchPositions(cast(Consumer, consumer), health, start=start, stall_ms=1_000)


def buffer(committed: int | None) -> PartitionBuffer:
    return PartitionBuffer(PLACE, Counts(), Backoff(), committed=committed)


def test_a_partition_that_was_never_read_and_gives_nothing_is_fetched_anew_too() -> None:
    consumer, health, silent = Told(3, 9), Health(), buffer(None)
    looking = fetching(consumer, health)
    for number in range(3):
        looking.check({PLACE: silent}, 10_000.0 * (number + 1))
        assert "no record for 1 s" in health.problems()["reading"]
    assert consumer.read_from == [3, 3, 3]
    with pytest.raises(NothingReadError):
        looking.check({PLACE: silent}, 40_000.0)


def test_a_partition_that_was_never_read_is_fetched_anew_from_the_first_offset_of_all() -> None:
    consumer = Told(0, 9)
    fetching(consumer, Health()).check({PLACE: buffer(None)}, 10_000.0)
    assert consumer.read_from == [0]


@pytest.mark.parametrize(("bounds", "start"), [((3, 3), "earliest"), ((3, 9), "latest")])
def test_a_partition_that_was_never_read_may_have_nothing_to_give(bounds: tuple[int, int], start: str) -> None:
    consumer, health = Told(*bounds), Health()
    fetching(consumer, health, start).check({PLACE: buffer(None)}, 10_000.0)
    assert (consumer.read_from, "reading" in health.problems()) == ([], False)


def test_silent_partitions_are_asked_for_their_ends_in_one_request() -> None:
    """Each request waits behind the fetch that Kafka holds, and nothing is read meanwhile."""
    consumer = Told(3, 9)
    silent = {("t", number): PartitionBuffer(("t", number), Counts(), Backoff(), committed=9) for number in range(16)}
    fetching(consumer, Health()).check(silent, 10_000.0)
    assert (consumer.requests, consumer.read_from) == (1, [])


def test_a_topic_made_anew_is_read_when_nothing_of_the_one_before_is_left() -> None:
    """In one batch, records of both could not be distinguished by their offsets."""
    consumer, waiting = Told(0, 2), buffer(98)
    looking = fetching(consumer, Health())
    waiting.append(runs_of([Record("t", 0, offset, 0, None, b"", ()) for offset in (98, 99)])[0], 0.0)
    looking.mark_out_of_range(waiting)
    looking.check({PLACE: waiting}, 10_000.0)
    assert consumer.read_from == []

    work = InFlightBatch.prepare(
        waiting.next_batch(Share(2_000, 4_000_000)), ErrorPolicy(Policy.NOOP), lambda _: ProjectedRecord(filtered="no")
    )
    waiting.accept(work, 0.0)
    waiting.start(0.0)
    waiting.finish(None, 0.0)
    looking.check({PLACE: waiting}, 20_000.0)
    assert (consumer.read_from, waiting.position, waiting.lost) == ([0], 0, 0)


class Quiet:
    """A sink and an observer that do nothing."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return ()

    def wrote(self, *_: Any) -> None: ...
    def stored(self, *_: Any) -> None: ...

    retried = failed = settled = committed = wrote


class Newer:
    """A fence that reports a task of a newer configuration, once the test has set one."""

    def __init__(self) -> None:
        self.is_there = False

    def closed(self) -> str | None:
        return None

    def check(self) -> None:
        if self.is_there:
            raise StaleConfigurationError("tasks of a newer configuration run")
        self.is_there = True


def test_a_task_whose_partitions_stay_learns_that_a_newer_configuration_has_joined() -> None:
    """The assignor has nothing new for it then: its incremental assignment is empty."""
    consumer, quiet = Told(), Quiet()
    consumer.rebalances = [[TopicPartition("t", 0, OFFSET_BEGINNING)], []]
    loop = Loop(
        LoopSettings(["t"], writers=1),
        consumer=cast(Consumer, consumer),
        sink=quiet,
        project=lambda _: ProjectedRecord(),
        try_project_batch=lambda _: None,
        policy=ErrorPolicy(Policy.NOOP),
        send_dead_letters=lambda _: None,
        health=Health(),
        observer=quiet,
        fence=cast(Fence, Newer()),
    )
    with pytest.raises(StaleConfigurationError):
        loop.run(Stop())
    assert consumer.rebalances == []


class Overridden:
    """A configuration with these keys."""

    name = "c"

    def __init__(self, **values: str) -> None:
        self._values = values

    def text(self, key: str) -> str:
        return self._values.get(key, "")


@pytest.mark.parametrize(
    ("override", "of_process", "expected"), [("", "", 10_000), ("7000", "", 7_000), ("7000", "8000", 8_000)]
)
def test_the_lease_is_of_the_consumers_own_session(override: str, of_process: str, expected: float) -> None:
    properties = {"session.timeout.ms": of_process} if of_process else {}
    settings = PersistersSettings(kafka=KafkaSettings(properties=properties), session_timeout_ms=10_000)
    config: Any = Overridden(**{"consumer.override.session.timeout.ms": override})
    assert Membership(settings, config, 0, None).session_timeout_ms == expected


def test_a_session_timeout_that_is_no_number_is_a_mistake_of_the_configuration() -> None:
    config: Any = Overridden(**{"consumer.override.session.timeout.ms": "30s"})
    with pytest.raises(SinkConfigError, match=r"session\.timeout\.ms: '30s' is no number"):
        _ = Membership(PersistersSettings(), config, 0, None).session_timeout_ms

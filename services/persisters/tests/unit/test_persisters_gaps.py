"""Positions that the topic does not hold any more, and partitions that deliver nothing though they have records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from isotherm.connector.distributed.generations import Generation
from isotherm.persisters.api.record import Record, runs_of
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.consuming.fetch_positions import (
    FetchPositions,
    NoCommittedOffsetError,
    NothingReadError,
    OffsetGapError,
)
from isotherm.persisters.consuming.membership import Membership
from isotherm.persisters.settings import PersistersSettings
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

PLACE = ("t", 0)
STALL_MS = 60_000.0


class Topic:
    """A consumer of a topic with these first and end offsets; it notes what it is told."""

    def __init__(self, first: int, end: int) -> None:
        self.bounds = first, end
        self.calls: list[tuple[str, list[tuple[int, int]]]] = []
        self.is_away = False
        self.error: object = None

    def get_watermark_offsets(self, _where: TopicPartition, timeout: float) -> tuple[int, int]:
        assert 0 < timeout < 10
        if self.is_away:
            raise KafkaException("away")
        return self.bounds

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[Any]:
        assert 0 < timeout < 10
        return [
            SimpleNamespace(
                topic=one.topic,
                partition=one.partition,
                offset=self.bounds[one.offset == OFFSET_END],
                error=self.error,
            )
            for one in asked
        ]

    def __getattr__(self, name: str) -> Any:
        assert name in ("incremental_assign", "incremental_unassign", "resume")

        def call(partitions: list[TopicPartition]) -> None:
            offset = name == "incremental_assign"
            self.calls.append((name, [(one.partition, one.offset if offset else 0) for one in partitions]))

        return call

    @property
    def read_from(self) -> list[int]:
        return [offset for name, places in self.calls if name == "incremental_assign" for _, offset in places]


def buffer(committed: int | None = None, *, held: tuple[int, ...] = ()) -> PartitionBuffer:
    made = PartitionBuffer(PLACE, Counts(), Backoff(), committed=committed)
    if held:
        made.append(runs_of([Record("t", 0, offset, 0, None, b"", ()) for offset in held])[0], 0.0)
    return made


def out_of_range(topic: Topic, one: PartitionBuffer, **settings: Any) -> FetchPositions:
    positions = FetchPositions(cast(Consumer, topic), Health(), **settings)
    positions.mark_out_of_range(one)
    positions.check({PLACE: one}, 1.0)
    return positions


@pytest.mark.parametrize(("start", "offset"), [("earliest", OFFSET_BEGINNING), ("largest", OFFSET_END)])
def test_a_partition_is_read_from_its_committed_offset_or_from_the_start(start: str, offset: int) -> None:
    topic = Topic(0, 9)
    found = [TopicPartition("t", 0, 0), TopicPartition("t", 1, OFFSET_INVALID), TopicPartition("t", 2, 7)]
    FetchPositions(cast(Consumer, topic), Health(), start=start).assign(found)
    assert topic.calls == [
        ("incremental_assign", [(0, 0), (1, offset), (2, 7)]),
        ("resume", [(0, 0), (1, 0), (2, 0)]),
    ]


def test_a_partition_without_a_committed_offset_may_end_the_task() -> None:
    positions = FetchPositions(cast(Consumer, Topic(0, 9)), Health(), start="none")
    positions.assign([TopicPartition("t", 0, 0)])
    with pytest.raises(NoCommittedOffsetError, match=r"\['t-1'\]"):
        positions.assign([TopicPartition("t", 0, 0), TopicPartition("t", 1, OFFSET_INVALID)])


def test_what_is_gone_from_the_topic_is_counted_and_passed_over() -> None:
    topic, behind = Topic(15, 30), buffer(10)
    behind.paused = True
    positions = out_of_range(topic, behind)
    assert topic.calls == [
        ("incremental_unassign", [(0, 0)]),
        ("incremental_assign", [(0, 15)]),
        ("resume", [(0, 0)]),
    ]
    assert (behind.position, behind.lost, behind.counts.lost) == (15, 5, 5)
    assert (behind.paused, behind.read_ms) == (False, 1.0)
    positions.check({PLACE: behind}, 10_000.0)
    assert len(topic.calls) == 3


def test_a_gap_behind_records_that_have_no_outcome_is_counted_after_them() -> None:
    topic, behind = Topic(15, 30), buffer(8, held=(8, 9))
    out_of_range(topic, behind)
    assert (topic.read_from, behind.position, behind.lost, behind.counts.lost) == ([15], None, 5, 0)
    assert behind.next_offset == 10, "what waits is last"


def test_a_gap_stops_a_task_that_is_to_stop() -> None:
    topic = Topic(15, 30)
    with pytest.raises(OffsetGapError, match=r"t-0: offsets 10 to 14 are gone .* begins at 15"):
        out_of_range(topic, buffer(10), stops_at_gap=True)
    with pytest.raises(OffsetGapError, match="the topic ends at 30, before the committed offset 31"):
        out_of_range(topic, buffer(31), stops_at_gap=True)


@pytest.mark.parametrize(("committed", "offset"), [(15, 15), (20, 20), (30, 30), (None, 15), (31, 15)])
def test_a_position_that_the_topic_holds_is_read_again(committed: int | None, offset: int) -> None:
    topic, one = Topic(15, 30), buffer(committed)
    positions = out_of_range(topic, one)
    assert (topic.read_from, one.lost) == ([offset], 0)
    assert one.position == (15 if committed == 31 else None)
    positions.mark_out_of_range(one)
    positions.check({PLACE: one}, 2.0)
    assert topic.read_from == [offset] * 2, "it does not wait for the next check"


def test_a_check_waits_for_its_time_and_is_repeated_while_kafka_is_away() -> None:
    topic, one = Topic(15, 30), buffer(10)
    topic.is_away = True
    positions = out_of_range(topic, one)
    topic.is_away = False
    positions.check({PLACE: one}, 5_000.9)
    assert topic.read_from == []
    positions.check({PLACE: one}, 5_001.0)
    assert topic.read_from == [15]


def test_a_partition_that_is_gone_is_not_looked_at() -> None:
    topic, one = Topic(15, 30), buffer(10)
    positions = FetchPositions(cast(Consumer, topic), Health())
    positions.mark_out_of_range(one)
    positions.check({}, 1.0)
    positions.check({PLACE: one}, 10_000.0)
    assert topic.read_from == []


def test_a_partition_that_delivers_again_is_forgotten() -> None:
    topic, health, silent = Topic(3, 9), Health(), buffer(4)
    positions = FetchPositions(cast(Consumer, topic), health)
    positions.check({PLACE: silent}, STALL_MS - 0.1)
    assert topic.read_from == []
    positions.check({PLACE: silent}, 2 * STALL_MS)
    assert (topic.read_from, list(health.problems())) == ([4], ["start", "reading"])
    assert "t-0: no record for 60 s, though there are offsets to 9" in health.problems()["reading"]
    positions.check({PLACE: silent}, 2 * STALL_MS + 5_000)
    assert "reading" in health.problems(), "it has delivered nothing since"
    silent.append(runs_of([Record("t", 0, 4, 0, None, b"", ())])[0], 2 * STALL_MS + 6_000)
    positions.check({PLACE: silent}, 2 * STALL_MS + 10_000)
    assert "reading" not in health.problems()
    silent.waiting.clear()
    for number in range(3, 6):
        positions.check({PLACE: silent}, 2 * number * STALL_MS)
    with pytest.raises(NothingReadError):
        positions.check({PLACE: silent}, 12 * STALL_MS)
    assert topic.read_from == [4] * 4, "three times again"


def test_a_partition_that_is_gone_is_not_reported() -> None:
    topic, health, silent = Topic(3, 9), Health(), buffer(4)
    positions = FetchPositions(cast(Consumer, topic), health)
    positions.check({PLACE: silent}, STALL_MS)
    assert topic.read_from == [4]
    positions.check({}, STALL_MS + 5_000)
    assert "reading" not in health.problems()


def test_only_a_partition_that_could_deliver_is_fetched_anew() -> None:
    topic, health = Topic(3, 9), Health()
    at_end, ended, paused, halted, holding = (buffer(9), *(buffer(4) for _ in range(3)), buffer(4, held=(4,)))
    ended.end_of_partition, paused.paused, halted.halted = 9, True, True
    for one in (at_end, ended, paused, halted, holding):
        FetchPositions(cast(Consumer, topic), health).check({PLACE: one}, STALL_MS)
        assert one.read_ms == (STALL_MS if one in (at_end, ended) else 0.0)
    FetchPositions(cast(Consumer, Topic(0, 0)), health).check({PLACE: (empty := buffer())}, STALL_MS)
    assert empty.read_ms == STALL_MS
    topic.error = "leader unknown"
    FetchPositions(cast(Consumer, topic), health).check({PLACE: buffer(4)}, STALL_MS)
    assert topic.calls == []


def test_a_short_stall_is_looked_for_as_often() -> None:
    topic, silent = Topic(3, 9), buffer(4)
    positions = FetchPositions(cast(Consumer, topic), Health(), stall_ms=100.0)
    for now_ms in (100.0, 199.0, 200.0):
        positions.check({PLACE: silent}, now_ms)
    assert topic.read_from == [4, 4]


class Overridden:
    """The configuration of the connector `c`, with overrides of its consumer."""

    name = "c"

    def under(self, prefix: str) -> dict[str, str]:
        assert prefix == "consumer.override."
        return {"fetch.max.bytes": "1000", "auto.offset.reset": "latest"}


@pytest.mark.parametrize(("generation", "name"), [(None, "c-3"), (Generation(5, "abc"), "c-3.g5-abc")])
def test_a_member_names_itself_and_reads_as_the_loop_needs_it(generation: Generation | None, name: str) -> None:
    settings = PersistersSettings(session_timeout_ms=9_000, fetch_queue_kilobytes=77)
    member = Membership(settings, cast(Any, Overridden()), 3, generation)
    assert member.client_id == name
    assert member.consumer_overrides() == {
        "enable_partition_eof": True,
        "queued_max_messages_kbytes": 77,
        "fetch_queue_backoff_ms": 20,
        "max_partition_fetch_bytes": 262_144,
        "session_timeout_ms": 9_000,
        "fetch_max_bytes": "1000",
        "auto_offset_reset": "error",
    }

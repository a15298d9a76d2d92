"""Replay: a connector's group set back (or forward) to another position, so that its tasks read from there.

`plan` and `plan_offsets` are pure; `positions`, `reset_offsets` and `set_offsets` ask Kafka. The counts that a sink keeps in the
metadata of its offsets stay with them (docs/adr/0042): they say how many records were settled, and a record that is
read twice is settled twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # there, not in its __all__

from isotherm.connector.config.topic_patterns import matching
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import kafka

EXPECTED = "earliest, latest, an offset, a time (2026-01-31T12:00:00Z) or @ and epoch milliseconds"
TIMEOUT_S = 30.0

_BUSY = frozenset((KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.REBALANCE_IN_PROGRESS))


class ReplayError(Exception):
    """A replay that is refused; nothing was changed."""


class BusyError(ReplayError):
    """Tasks of the group run; once they are stopped the same replay is taken."""


class To(Enum):
    """Where a replay begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True)
class Position:
    """Where a replay begins; `value` is an offset, or epoch milliseconds."""

    to: To
    value: int = 0


@dataclass(frozen=True)
class PartitionState:
    """What is known of one partition for a group."""

    topic: str
    partition: int
    committed: int | None
    """The group's position; None when it has none, so that its tasks begin at the first record."""
    metadata: str
    """What the group's last commit said beside the offset."""
    low: int
    """The first offset that is still there."""
    high: int
    """The offset after the last record that a read_committed reader gets."""
    at_time: int | None = None
    """The first offset of the asked time or later; None when there is none, or no time was asked for."""


@dataclass(frozen=True)
class Move:
    """One partition's new position."""

    topic: str
    partition: int
    before: int | None
    after: int
    high: int
    metadata: str

    @property
    def is_change(self) -> bool:
        """Whether the group is somewhere else."""
        return self.before != self.after


def parse_position(text: str) -> Position:
    """Read a position as EXPECTED has it; a time without a zone is UTC.

    Raises ReplayError.
    """
    given = text.strip()
    if given.lower() in (To.EARLIEST.value, To.LATEST.value):
        return Position(To(given.lower()))
    if re.fullmatch(r"[0-9]{1,19}", given):
        return Position(To.OFFSET, int(given))
    try:
        return Position(To.TIME, time_ms_of(given))
    except ValueError:
        raise ReplayError(f"{text!r} is no position; expected {EXPECTED}") from None


def time_ms_of(text: str) -> int:
    """Epoch ms of an ISO 8601 time (UTC without a zone), or of `@` and epoch ms. Raises ValueError."""
    if re.fullmatch(r"@[0-9]{1,15}", text):
        return int(text[1:])
    return epoch_ms(datetime.fromisoformat(text))


def plan(states: Iterable[PartitionState], position: Position) -> list[Move]:
    """The new position of each partition: where asked, as far as the partition has it.

    An offset or time before the first record means the first, one behind the last means what comes next.

    Raises ReplayError when one offset is asked for several partitions.
    """
    chosen = sorted(states, key=lambda one: (one.topic, one.partition))
    if position.to is To.OFFSET and len(chosen) > 1:
        raise ReplayError(f"an offset belongs to one partition, and these are {len(chosen)}: choose one")
    return [
        Move(one.topic, one.partition, one.committed, _target(one, position), one.high, one.metadata) for one in chosen
    ]


def plan_offsets(states: Iterable[PartitionState], wanted: Mapping[tuple[str, int], int | None]) -> list[Move]:
    """The new positions of single partitions (topic, number): an offset as far as the partition has it, None the first.

    Raises ReplayError for partitions that are not there.
    """
    known = {(one.topic, one.partition): one for one in states}
    absent = [f"partition {number} of {topic}" for topic, number in wanted if (topic, number) not in known]
    if absent:
        raise ReplayError(f"there is no {', '.join(absent)}")
    return [
        move
        for place, offset in wanted.items()
        for move in plan([known[place]], Position(To.EARLIEST) if offset is None else Position(To.OFFSET, offset))
    ]


def _target(state: PartitionState, position: Position) -> int:
    if position.to is To.EARLIEST:
        return state.low
    if position.to is To.LATEST:
        return state.high
    wanted = position.value if position.to is To.OFFSET else state.at_time
    return state.high if wanted is None else max(state.low, min(wanted, state.high))


def positions(
    admin: AdminClient,
    group: str,
    topics: Sequence[str],
    *,
    partition: int | None = None,
    time_ms: int | None = None,
) -> list[PartitionState]:
    """Where `group` stands in `topics` (names, or one expression beginning with `^`), or in one of their partitions.

    Raises ReplayError for a topic or partition that is not there, KafkaException.
    """
    wanted = [
        TopicPartition(topic, number)
        for topic, numbers in _partitions(admin, topics).items()
        for number in numbers
        if partition in (None, number)
    ]
    if not wanted:
        what = "" if partition is None else f"partition {partition} of "
        raise ReplayError(f"there is no {what}{', '.join(topics)}")
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)], request_timeout=TIMEOUT_S)
    committed = {(one.topic, one.partition): one for one in asked[group].result().topic_partitions}
    for one in committed.values():
        if one.error is not None:
            raise KafkaException(one.error)
    at_time = {} if time_ms is None else _offsets(admin, wanted, OffsetSpec.for_timestamp(time_ms))
    return [
        PartitionState(
            topic,
            number,
            committed[topic, number].offset if committed[topic, number].offset >= 0 else None,
            committed[topic, number].metadata or "",
            low,
            high,
            found if (found := at_time.get((topic, number), -1)) >= 0 else None,
        )
        for (topic, number), (low, high) in offset_bounds(admin, wanted).items()
    ]


def reset_offsets(
    admin: AdminClient,
    group: str,
    topics: Sequence[str],
    position: Position,
    *,
    partition: int | None = None,
    dry_run: bool = False,
) -> list[Move]:
    """Set `group` to `position` in `topics`, or in one partition of them; what was done, or would be.

    Doing it again changes nothing more (except for `latest`, which moves on). A sink that writes by identity then ends
    as if it had read once.

    Raises BusyError while tasks of the group run, ReplayError for what is not there; KafkaException.
    """
    time_ms = position.value if position.to is To.TIME else None
    moves = plan(positions(admin, group, topics, partition=partition, time_ms=time_ms), position)
    if not dry_run:
        _alter(admin, group, moves)
    return moves


def set_offsets(admin: AdminClient, group: str, wanted: Mapping[tuple[str, int], int | None]) -> list[Move]:
    """Set `group` to offsets in single partitions (as `plan_offsets`), all at once; what was done.

    Raises as `reset_offsets`, before anything is changed.
    """
    topics = sorted({topic for topic, _ in wanted})
    expressions = [topic for topic in topics if topic.startswith("^")]
    if expressions:
        raise ReplayError(f"there is no topic {', '.join(expressions)}")
    moves = plan_offsets(positions(admin, group, topics), wanted)
    _alter(admin, group, moves)
    return moves


def _alter(admin: AdminClient, group: str, moves: Sequence[Move]) -> None:
    """Put a group where it is to be, in one request. Raises BusyError, KafkaException."""
    members = member_ids(admin, group)
    if members:
        raise BusyError(
            f"group {group} has running tasks ({', '.join(members)}); stop them first. A task that was killed counts "
            "until its session is over"
        )
    wanted = [TopicPartition(one.topic, one.partition, one.after, metadata=one.metadata) for one in moves]
    try:
        altered = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=TIMEOUT_S
        )
        for one in altered[group].result().topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is not None and error.code() in _BUSY:
            raise BusyError(f"group {group}: a task has started meanwhile ({error.str()})") from failure
        raise


def _partitions(admin: AdminClient, topics: Sequence[str]) -> dict[str, list[int]]:
    known = admin.list_topics(timeout=TIMEOUT_S).topics
    if len(topics) == 1 and topics[0].startswith("^"):
        # Without the anchors round it: a pattern may begin with flags, `(?i)`.
        names = matching(topics[0].removeprefix("^(").removesuffix(")$"), known)
    else:
        names = list(topics)
    missing = [name for name in names if name not in known]
    if missing:
        raise ReplayError(f"there is no topic {', '.join(missing)}")
    return {name: sorted(known[name].partitions) for name in names}


def offset_bounds(admin: AdminClient, wanted: Sequence[TopicPartition]) -> dict[tuple[str, int], tuple[int, int]]:
    """The first offset that is still there, and the one after the last record that a read_committed reader gets.

    By topic and partition. Raises KafkaException.
    """
    # The client leaves these two untyped.
    low = _offsets(admin, wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    high = _offsets(admin, wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {place: (first, high[place]) for place, first in low.items()}


def _offsets(admin: AdminClient, wanted: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    asked = admin.list_offsets(
        dict.fromkeys(wanted, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
    )
    return {(one.topic, one.partition): future.result().offset for one, future in asked.items()}


def member_ids(admin: AdminClient, group: str) -> list[str]:
    """The client ids of a group's members. Raises KafkaException."""
    asked = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)
    try:
        return sorted(member.client_id for member in asked[group].result().members)
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise

"""Replay: resets the offsets of a connector's consumer group, so that its tasks read from another position.

`plan` and `plan_offsets` are pure; `positions`, `reset_offsets` and `set_offsets` ask Kafka. The counts in the offsets'
metadata stay (docs/adr/0042): they count settled records, and a record that is read twice is settled twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # there, not in its __all__

from isotherm.connector.config.topic_patterns import matching
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.kafka.offsets import list_offsets

EXPECTED = "earliest, latest, an offset, a time (2026-01-31T12:00:00Z) or @ and epoch milliseconds"
TIMEOUT_S = 30.0

_BUSY = frozenset((KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.REBALANCE_IN_PROGRESS))


class ReplayError(Exception):
    """The replay is refused; no offset was changed."""


class BusyError(ReplayError):
    """Tasks of the group run. The same replay succeeds after they are stopped."""


class To(Enum):
    """Kinds of positions."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True)
class Position:
    """The position at which a replay begins; `value` is an offset or a time in epoch milliseconds."""

    to: To
    value: int = 0


@dataclass(frozen=True)
class PartitionState:
    """The offsets of one partition, and a group's position in it."""

    topic: str
    partition: int
    committed: int | None
    """The group's committed offset; None when it has none, and its tasks begin at the first record."""
    metadata: str
    """The metadata of the group's last commit."""
    low: int
    """The first offset that Kafka still holds."""
    high: int
    """The offset after the last record that a read_committed consumer gets."""
    at_time: int | None = None
    """The first offset at or after the requested time; None when there is none, or no time was requested."""


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
        """Whether the group's position changes."""
        return self.before != self.after


def parse_position(text: str) -> Position:
    """Read a position in one of the forms of EXPECTED; a time without a zone is UTC.

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
        raise ReplayError(f"{text!r} is not a position; expected {EXPECTED}") from None


def time_ms_of(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time (UTC without a zone) or of `@` and epoch milliseconds.

    Raises ValueError.
    """
    if re.fullmatch(r"@[0-9]{1,15}", text):
        return int(text[1:])
    return epoch_ms(datetime.fromisoformat(text))


def plan(states: Iterable[PartitionState], position: Position) -> list[Move]:
    """The new position of each partition.

    An offset or time before the first record becomes the first record, one after the last record becomes the end.

    Raises ReplayError when one offset is requested for several partitions.
    """
    chosen = sorted(states, key=lambda one: (one.topic, one.partition))
    if position.to is To.OFFSET and len(chosen) > 1:
        raise ReplayError(f"an offset belongs to one partition, but {len(chosen)} are selected: choose one")
    return [
        Move(one.topic, one.partition, one.committed, _target(one, position), one.high, one.metadata) for one in chosen
    ]


def plan_offsets(states: Iterable[PartitionState], offsets: Mapping[tuple[str, int], int | None]) -> list[Move]:
    """The new positions of single partitions, by (topic, partition); None means the first record.

    Raises ReplayError for partitions that do not exist.
    """
    known = {(one.topic, one.partition): one for one in states}
    absent = [f"partition {number} of {topic}" for topic, number in offsets if (topic, number) not in known]
    if absent:
        raise ReplayError(f"there is no {', '.join(absent)}")
    return [
        move
        for partition, offset in offsets.items()
        for move in plan([known[partition]], Position(To.EARLIEST) if offset is None else Position(To.OFFSET, offset))
    ]


def _target(state: PartitionState, position: Position) -> int:
    if position.to is To.EARLIEST:
        return state.low
    if position.to is To.LATEST:
        return state.high
    offset = position.value if position.to is To.OFFSET else state.at_time
    return state.high if offset is None else max(state.low, min(offset, state.high))


def positions(
    admin: GroupAdmin,
    group: str,
    topics: Sequence[str],
    *,
    partition: int | None = None,
    time_ms: int | None = None,
) -> list[PartitionState]:
    """The positions of `group` in `topics` (names, or one expression that begins with `^`), or in one partition.

    Raises ReplayError for a topic or partition that does not exist; KafkaException.
    """
    partitions = [
        TopicPartition(topic, number)
        for topic, numbers in _partitions(admin, topics).items()
        for number in numbers
        if partition in (None, number)
    ]
    if not partitions:
        what = "" if partition is None else f"partition {partition} of "
        raise ReplayError(f"there is no {what}{', '.join(topics)}")
    answer = admin.committed_offsets(group, partitions, timeout_s=TIMEOUT_S)
    committed = {(one.topic, one.partition): one for one in answer}
    at_time = {} if time_ms is None else _offsets(admin, partitions, OffsetSpec.for_timestamp(time_ms))
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
        for (topic, number), (low, high) in offset_bounds(admin, partitions).items()
    ]


def reset_offsets(
    admin: GroupAdmin,
    group: str,
    topics: Sequence[str],
    position: Position,
    *,
    partition: int | None = None,
    dry_run: bool = False,
) -> list[Move]:
    """Reset `group` to `position` in `topics`, or in one partition of them; the moves that were made, or would be.

    A second call changes nothing more (except for `latest`, which moves on). A sink that writes by identity then holds
    the same rows as if it had read once.

    Raises BusyError while tasks of the group run, ReplayError for missing topics and partitions; KafkaException.
    """
    time_ms = position.value if position.to is To.TIME else None
    moves = plan(positions(admin, group, topics, partition=partition, time_ms=time_ms), position)
    if not dry_run:
        _alter(admin, group, moves)
    return moves


def set_offsets(admin: GroupAdmin, group: str, offsets: Mapping[tuple[str, int], int | None]) -> list[Move]:
    """Set `group` to offsets of single partitions, as `plan_offsets`, in one request; the moves that were made.

    Raises as `reset_offsets`, before anything is changed.
    """
    topics = sorted({topic for topic, _ in offsets})
    expressions = [topic for topic in topics if topic.startswith("^")]
    if expressions:
        raise ReplayError(f"there is no topic {', '.join(expressions)}")
    moves = plan_offsets(positions(admin, group, topics), offsets)
    _alter(admin, group, moves)
    return moves


def _alter(admin: AdminClient, group: str, moves: Sequence[Move]) -> None:
    """Commit the new positions in one request. Raises BusyError, KafkaException."""
    members = member_ids(admin, group)
    if members:
        raise BusyError(
            f"group {group} has running tasks ({', '.join(members)}); stop them first. A killed task counts as running "
            "until its session times out"
        )
    offsets = [TopicPartition(one.topic, one.partition, one.after, metadata=one.metadata) for one in moves]
    try:
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        altered = admin.alter_consumer_group_offsets(request, request_timeout=TIMEOUT_S)
        for one in altered[group].result().topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() in _BUSY:
            raise BusyError(f"group {group}: a task has started meanwhile ({error.str()})") from failure
        raise


def _partitions(admin: AdminClient, topics: Sequence[str]) -> dict[str, list[int]]:
    known = admin.list_topics(timeout=TIMEOUT_S).topics
    if len(topics) == 1 and topics[0].startswith("^"):
        # Without the anchors around it, because a pattern may begin with flags, `(?i)`.
        try:
            names = matching(topics[0].removeprefix("^(").removesuffix(")$"), known)
        except re.error as error:
            raise ReplayError(str(error)) from error
    else:
        names = list(topics)
    missing = [name for name in names if name not in known]
    if missing:
        raise ReplayError(f"there is no topic {', '.join(missing)}")
    return {name: sorted(known[name].partitions) for name in names}


def offset_bounds(admin: AdminClient, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], tuple[int, int]]:
    """The first offset that Kafka still holds, and the one after the last record of a read_committed consumer.

    By topic and partition. Raises KafkaException.
    """
    # confluent-kafka has no annotations for these two.
    low = _offsets(admin, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    high = _offsets(admin, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {partition: (first, high[partition]) for partition, first in low.items()}


def _offsets(admin: AdminClient, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    numbers = [(one.topic, one.partition) for one in partitions]
    found = list_offsets(admin, numbers, spec, committed=True, timeout_s=TIMEOUT_S)
    return {partition: one.offset for partition, one in found.items()}


def member_ids(admin: AdminClient, group: str) -> list[str]:
    """The client ids of a group's members. Raises KafkaException."""
    answers = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)
    try:
        return sorted(member.client_id for member in answers[group].result().members)
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return []
        raise

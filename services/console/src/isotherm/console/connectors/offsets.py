"""Where the group of a sink's tasks stands, and putting it elsewhere while they are stopped (KIP-875)."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.connector.offsets import replay
from isotherm.console.errors import BadRequestError, ConflictError, UnavailableError
from isotherm.servicekit import kafka

_ABSENT = (KafkaError.GROUP_ID_NOT_FOUND,)
_BUSY = (KafkaError.NON_EMPTY_GROUP,)


class CommittedOffset(NamedTuple):
    """A group's position in one partition."""

    topic: str
    partition: int
    offset: int


class ConnectorOffsets(Protocol):
    """The positions of groups."""

    def read(self, group: str) -> list[CommittedOffset]:
        """Every position of a group. Raises UnavailableError."""

    def alter(self, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> list[replay.Move]:
        """Put the group at these positions (topic, partition, offset; None is the first record that is there).

        All of them or none; of two for one partition the later one counts. An offset that the partition does not have
        becomes the nearest that it has: what was done is the answer.

        Raises BadRequestError for a partition that is none, ConflictError while tasks run, UnavailableError.
        """

    def delete(self, group: str) -> None:
        """Forget every position. Raises ConflictError while tasks run, UnavailableError."""

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """As `replay.reset_offsets`. Raises BadRequestError, ConflictError while tasks run, UnavailableError."""


class KafkaOffsets:
    """The positions as Kafka's admin interface has them."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def read(self, group: str) -> list[CommittedOffset]:
        """As `ConnectorOffsets.read`."""
        with translate_kafka_errors():
            asked = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=replay.TIMEOUT_S
            )
            found = asked[group].result().topic_partitions
        return sorted(CommittedOffset(one.topic, one.partition, one.offset) for one in found if one.offset >= 0)

    def alter(self, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> list[replay.Move]:
        """As `ConnectorOffsets.alter`."""
        with translate_kafka_errors():
            return replay.set_offsets(self._admin, group, _by_place(wanted))

    def delete(self, group: str) -> None:
        """As `ConnectorOffsets.delete`."""
        with translate_kafka_errors():
            self._admin.delete_consumer_groups([group], request_timeout=replay.TIMEOUT_S)[group].result()

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """As `ConnectorOffsets.replay`."""
        with translate_kafka_errors():
            return replay.reset_offsets(self._admin, group, topics, position, partition=partition, dry_run=dry_run)


def set_initial_offsets(offsets: ConnectorOffsets, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> list[replay.Move]:
    """Let a connector that is to be created begin here, whatever one of its name left behind (KIP-995).

    Raises as `ConnectorOffsets.alter`.
    """
    # What is refused is refused here, before anything is forgotten; the counts of the one before go with its offsets.
    offsets.alter(group, wanted)
    offsets.delete(group)
    return offsets.alter(group, wanted)


@contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """What a replay and Kafka refuse, as a request is refused."""
    try:
        yield
    except replay.BusyError as refused:
        raise ConflictError(str(refused)) from None
    except replay.ReplayError as refused:
        raise BadRequestError(str(refused)) from None
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is not None and error.code() in _ABSENT:
            return
        if error is not None and error.code() in _BUSY:
            raise ConflictError("its tasks have not stopped yet; try again in a moment") from None
        raise UnavailableError(f"Kafka: {error.str() if error is not None else failure}") from failure


def as_json(found: Sequence[CommittedOffset]) -> dict[str, Any]:
    """Positions in Connect's form (`ConnectorOffsets`)."""
    return {
        "offsets": [
            {
                "partition": {"kafka_topic": one.topic, "kafka_partition": one.partition},
                "offset": {"kafka_offset": one.offset},
            }
            for one in found
        ]
    }


def said_of(wanted: Sequence[tuple[str, int, int | None]], moves: Sequence[replay.Move]) -> str:
    """What Connect says of altered offsets, and which of them became others than were asked for."""
    asked = _by_place(wanted)
    others = [
        f"{move.topic}-{move.partition} at {move.after}, because it has no {offset}"
        for move in moves
        if (offset := asked[move.topic, move.partition]) is not None and offset != move.after
    ]
    return "; ".join(["The offsets for this connector have been altered successfully", *others])


def _by_place(wanted: Sequence[tuple[str, int, int | None]]) -> dict[tuple[str, int], int | None]:
    return {(topic, partition): offset for topic, partition, offset in wanted}


def from_json(body: Mapping[str, Any]) -> list[tuple[str, int, int | None]]:
    """Positions of a request in Connect's form. Raises BadRequestError naming what is wrong."""
    entries = body.get("offsets")
    if not entries or not isinstance(entries, list):
        raise BadRequestError("Partitions / offsets need to be provided for an alter offsets request")
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> tuple[str, int, int | None]:
    try:
        partition, offset = entry["partition"], entry["offset"]
        topic, number = str(partition["kafka_topic"]), int(partition["kafka_partition"])
        wanted = None if offset is None else int(offset["kafka_offset"])
    except (KeyError, TypeError, ValueError):
        raise BadRequestError(
            f"{reprlib.repr(entry)} is no position of a sink connector; expected kafka_topic and kafka_partition in "
            "partition, and kafka_offset in offset, or null for offset"
        ) from None
    if number < 0 or (wanted is not None and wanted < 0):
        raise BadRequestError(f"{reprlib.repr(entry)}: kafka_partition and kafka_offset cannot be negative")
    return topic, number, wanted

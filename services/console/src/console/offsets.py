"""Where the group of a sink's tasks stands, and putting it elsewhere while they are stopped (KIP-875)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connector import replay
from console.errors import BadRequestError, ConflictError, UnavailableError
from servicekit import kafka

_ABSENT = (KafkaError.GROUP_ID_NOT_FOUND,)
_BUSY = (KafkaError.NON_EMPTY_GROUP,)


class Committed(NamedTuple):
    """A group's position in one partition."""

    topic: str
    partition: int
    offset: int


class Offsets(Protocol):
    """The positions of groups."""

    def read(self, group: str) -> list[Committed]:
        """Every position of a group. Raises UnavailableError."""

    def alter(self, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> None:
        """Put the group at these positions (topic, partition, offset; None is the first record that is there).

        Raises BadRequestError, ConflictError while tasks run, UnavailableError.
        """

    def delete(self, group: str) -> None:
        """Forget every position. Raises ConflictError while tasks run, UnavailableError."""

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """As `connector.replay.rewind`. Raises ConflictError, UnavailableError."""


class KafkaOffsets:
    """The positions as Kafka's admin interface has them."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def read(self, group: str) -> list[Committed]:
        """As `Offsets.read`."""
        with _answering():
            asked = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=replay.TIMEOUT_S
            )
            found = asked[group].result().topic_partitions
        return sorted(Committed(one.topic, one.partition, one.offset) for one in found if one.offset >= 0)

    def alter(self, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> None:
        """As `Offsets.alter`."""
        with _answering():
            for topic, partition, offset in wanted:
                to = (
                    replay.Position(replay.To.EARLIEST) if offset is None else replay.Position(replay.To.OFFSET, offset)
                )
                replay.rewind(self._admin, group, [topic], to, partition=partition)

    def delete(self, group: str) -> None:
        """As `Offsets.delete`."""
        with _answering():
            self._admin.delete_consumer_groups([group], request_timeout=replay.TIMEOUT_S)[group].result()

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """As `Offsets.replay`."""
        with _answering():
            return replay.rewind(self._admin, group, topics, position, partition=partition, dry_run=dry_run)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except replay.ReplayError as refused:
        raise ConflictError(str(refused)) from None
    except KafkaException as failure:
        error = kafka.error_of(failure)
        if error is not None and error.code() in _ABSENT:
            return
        if error is not None and error.code() in _BUSY:
            raise ConflictError("its tasks have not stopped yet; try again in a moment") from None
        raise UnavailableError(f"Kafka: {error.str() if error is not None else failure}") from failure


def as_json(found: Sequence[Committed]) -> dict[str, Any]:
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
            f"{entry!r} is no position of a sink connector; expected kafka_topic and kafka_partition in partition, "
            "and kafka_offset in offset, or null for offset"
        ) from None
    if number < 0 or (wanted is not None and wanted < 0):
        raise BadRequestError(f"{entry!r}: kafka_partition and kafka_offset cannot be negative")
    return topic, number, wanted

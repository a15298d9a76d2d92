"""The committed offsets of a sink connector's group: reading them, and changing them while it is stopped (KIP-875)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException

from isotherm.connector.offsets import replay
from isotherm.console.errors import BadRequestError, ConflictError, UnavailableError
from isotherm.servicekit.kafka.errors import error_of, reason_of
from isotherm.servicekit.kafka.group_offsets import GroupAdmin

_ABSENT = (KafkaError.GROUP_ID_NOT_FOUND,)
_BUSY = (KafkaError.NON_EMPTY_GROUP,)


class CommittedOffset(NamedTuple):
    """A group's committed offset in one partition."""

    topic: str
    partition: int
    offset: int


class TargetOffset(NamedTuple):
    """The offset that a group should have in one partition; None means the partition's first record."""

    topic: str
    partition: int
    offset: int | None


class ConnectorOffsets(Protocol):
    """The committed offsets of connector groups."""

    def read(self, group: str) -> list[CommittedOffset]:
        """Return all committed offsets of a group. Raises UnavailableError."""

    def alter(self, group: str, targets: Sequence[TargetOffset]) -> list[replay.Move]:
        """Set the group's offsets, all of them or none, and return what was set.

        The last target of a partition wins. An offset outside the partition becomes the nearest one inside.

        Raises BadRequestError for an unknown partition, ConflictError while tasks run, UnavailableError.
        """

    def delete(self, group: str) -> None:
        """Delete all offsets of a group. Raises ConflictError while tasks run, UnavailableError."""

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """Move the group as `replay.reset_offsets` does.

        Raises BadRequestError, ConflictError while tasks run, UnavailableError.
        """


class KafkaOffsets:
    """`ConnectorOffsets` over Kafka's admin client."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    def read(self, group: str) -> list[CommittedOffset]:
        """Read offsets as `ConnectorOffsets.read` does."""
        with translate_kafka_errors():
            found = self._admin.committed_offsets(group, timeout_s=replay.TIMEOUT_S)
        return sorted(CommittedOffset(one.topic, one.partition, one.offset) for one in found)

    def alter(self, group: str, targets: Sequence[TargetOffset]) -> list[replay.Move]:
        """Set offsets as `ConnectorOffsets.alter` does."""
        with translate_kafka_errors():
            return replay.set_offsets(self._admin, group, by_partition(targets))

    def delete(self, group: str) -> None:
        """Delete offsets as `ConnectorOffsets.delete` does."""
        with translate_kafka_errors():
            self._admin.delete_consumer_groups([group], request_timeout=replay.TIMEOUT_S)[group].result()

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """Move the group as `ConnectorOffsets.replay` does."""
        with translate_kafka_errors():
            return replay.reset_offsets(self._admin, group, topics, position, partition=partition, dry_run=dry_run)


def set_initial_offsets(offsets: ConnectorOffsets, group: str, targets: Sequence[TargetOffset]) -> list[replay.Move]:
    """Set the offsets at which a new connector begins, and drop those of an earlier connector of that name (KIP-995).

    Raises what `ConnectorOffsets.alter` raises.
    """
    # The first call refuses bad targets before anything is deleted. Deleting also drops the earlier connector's counts,
    # which are kept in the commits' metadata.
    offsets.alter(group, targets)
    offsets.delete(group)
    return offsets.alter(group, targets)


@contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """Raise RestErrors in place of the errors of Kafka and of a replay."""
    try:
        yield
    except replay.BusyError as refused:
        raise ConflictError(str(refused)) from None
    except replay.ReplayError as refused:
        raise BadRequestError(str(refused)) from None
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() in _ABSENT:
            return
        if error is not None and error.code() in _BUSY:
            raise ConflictError("its tasks have not stopped yet; try again in a moment") from None
        raise UnavailableError(f"Kafka: {reason_of(failure)}") from failure


def by_partition(targets: Sequence[TargetOffset]) -> dict[tuple[str, int], int | None]:
    """Return the target offset of each topic and partition; the last one wins."""
    return {(one.topic, one.partition): one.offset for one in targets}

"""Reading the committed offsets of consumer groups, by a consumer that is assigned nothing (docs/adr/0137).

librdkafka's own `list_consumer_group_offsets` ends the process by SIGSEGV when the coordinator of the group has moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.errors import error_of

_COORDINATOR_MOVES = frozenset(
    (
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
_BACKOFF_BASE_MS, _BACKOFF_CAP_MS = 100.0, 1_000.0


class GroupAdmin(AdminClient):
    """An admin client that also reads the committed offsets of groups. Its methods may be called from any thread."""

    def __init__(self, config: Mapping[str, Any], make_consumer: Callable[[str], Consumer]) -> None:
        """`make_consumer` makes a consumer in a group; it is closed after each question and never joins the group."""
        super().__init__(dict(config))
        self._make_consumer = make_consumer

    def committed_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None = None, *, timeout_s: float
    ) -> list[TopicPartition]:
        """Read what `committed_offsets` reads, by a consumer of its own.

        Raises KafkaException.
        """
        with closing(self._make_consumer(group)) as consumer:
            return committed_offsets(consumer, partitions, timeout_s=timeout_s)


def committed_offsets(
    consumer: Consumer, partitions: Sequence[TopicPartition] | None = None, *, timeout_s: float
) -> list[TopicPartition]:
    """Read the offsets that the consumer's group has committed, with their metadata.

    A coordinator that moves or loads is waited for. No partition has an error in the answer.

    Args:
        consumer: a consumer with the group's id; it need not be a member.
        partitions: those to read, None for all partitions of the cluster. Their offset is negative in the answer where
            the group has committed none; with None such partitions are left out.
        timeout_s: the limit for everything together, in seconds.

    Raises KafkaException; its error is the coordinator's last one when the time is over.
    """
    deadline_s = time.monotonic() + timeout_s
    if partitions is not None:
        return _read(consumer, partitions, deadline_s)
    topics = consumer.list_topics(timeout=timeout_s).topics
    every = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    return [one for one in _read(consumer, every, deadline_s) if one.offset >= 0]


def _read(consumer: Consumer, partitions: Sequence[TopicPartition], deadline_s: float) -> list[TopicPartition]:
    if not partitions:
        return []
    backoff = Backoff(base_ms=_BACKOFF_BASE_MS, cap_ms=_BACKOFF_CAP_MS)
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            found = consumer.committed(list(partitions), timeout=left_s)
        except KafkaException as failure:
            # librdkafka looks for the coordinator after this error, but does not ask the new one.
            error, pause_s = error_of(failure), backoff.next_ms() / 1000
            if error is None or error.code() not in _COORDINATOR_MOVES or time.monotonic() + pause_s >= deadline_s:
                raise
            time.sleep(pause_s)
            continue
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return found

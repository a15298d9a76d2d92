"""The one way to ask Kafka for offsets of partitions: their first, their end, or that of a time."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)


def list_offsets(
    admin: AdminClient, partitions: Iterable[tuple[str, int]], spec: OffsetSpec, *, committed: bool, timeout_s: float
) -> dict[tuple[str, int], ListOffsetsResultInfo]:
    """Ask for one offset of each partition (topic and number); `timeout_s` bounds the request in seconds.

    With `committed`, a partition ends before its first open transaction; otherwise after its last record. Raises
    KafkaException.
    """
    futures = admin.list_offsets(
        {TopicPartition(topic, number): spec for topic, number in partitions},
        isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        request_timeout=timeout_s,
    )
    return {(one.topic, one.partition): future.result() for one, future in futures.items()}

"""The one way to ask Kafka for offsets of partitions: their first, their end, or that of a time."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
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
    KafkaException, also when one partition alone has no answer.
    """
    futures = admin.list_offsets(
        {TopicPartition(topic, number): spec for topic, number in partitions},
        isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        request_timeout=timeout_s,
    )
    found = {(one.topic, one.partition): future.result() for one, future in futures.items()}
    for (topic, number), answer in found.items():
        # librdkafka 2.16 asks the leaders apart. When one of them does not answer and another one does, its partitions
        # get this offset and no error.
        if answer.offset == OFFSET_INVALID:
            reason = f"the leader of partition {number} of {topic} did not answer"
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
    return found

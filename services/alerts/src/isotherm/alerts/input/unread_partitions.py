"""Which partitions of a topic a consumer has not read to the end that they had when it began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_REQUEST_S = 10.0


class UnreadPartitions:
    """The ends of partitions, until each is reached. The consumer reports the ends of partitions."""

    def __init__(self, consumer: Consumer, topic: str, starts: Mapping[int, int]) -> None:
        """Ask for the ends. `starts` are the offsets from which partitions are read; -1 is the end.

        Raises KafkaException.
        """
        self._ends: dict[int, int] = {}
        for number, start in starts.items():
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_REQUEST_S)
            if start >= 0 and max(first, start) < end:
                self._ends[number] = end

    @property
    def numbers(self) -> frozenset[int]:
        """The partitions that have something left to read."""
        return frozenset(self._ends)

    def note(self, message: Message) -> bool:
        """Note what the consumer gave; return whether it is a record, and not the end of a partition.

        Raises KafkaException for an error.
        """
        error, number = message.error(), message.partition() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        # The end is reported only after a fetch that brought nothing; compaction may have removed the last record.
        if error is not None or (message.offset() or 0) + 1 >= self._ends.get(number, 0):
            self._ends.pop(number, None)
        return error is None


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """Return the numbers of the partitions of a topic. Raises KafkaException, also for a topic that is not there."""
    found = consumer.list_topics(topic, timeout=_REQUEST_S).topics[topic]
    if found.error is not None or not found.partitions:
        raise KafkaException(found.error or KafkaError(KafkaError._UNKNOWN_TOPIC))
    return sorted(found.partitions)


def offsets_since(consumer: Consumer, topic: str, numbers: Iterable[int], since_ms: int) -> dict[int, int]:
    """Return the offset of the first record of each partition since a time (epoch ms); -1, the end, without one.

    Raises KafkaException.
    """
    found = consumer.offsets_for_times([TopicPartition(topic, one, since_ms) for one in numbers], timeout=_REQUEST_S)
    for one in found:
        if one.error is not None:
            raise KafkaException(one.error)
    return {one.partition: one.offset for one in found}

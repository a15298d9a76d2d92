"""How far a topic is done, kept in Kafka as the committed offsets of a group that nobody joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from isotherm.aggregator.kafka.broker import REQUEST_TIMEOUT_S, BrokerError
from isotherm.aggregator.offsets import Partition
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.kafka.group_offsets import committed_offsets


class StoredPosition:
    """The committed offsets of one group. It outlasts the checkpoint."""

    def __init__(self, consumer: Consumer) -> None:
        """`consumer` has the group's id and is assigned nothing."""
        self._consumer = consumer

    def load(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the stored offset of each partition that has one. Raises BrokerError."""
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        try:
            found = committed_offsets(self._consumer, asked, timeout_s=REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {reason_of(failure)}") from failure
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def store(self, offsets: Mapping[Partition, int]) -> None:
        """Store offsets, and return when Kafka has them. Raises BrokerError."""
        given = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        try:
            for one in self._consumer.commit(offsets=given, asynchronous=False) or ():
                if one.error is not None:
                    raise KafkaException(one.error)
        except KafkaException as failure:
            raise BrokerError(f"Kafka did not store a position: {reason_of(failure)}") from failure

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

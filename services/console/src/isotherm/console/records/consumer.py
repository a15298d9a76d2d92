"""Consuming ranges of offsets of one topic, without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.console.errors import UnavailableError
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.kafka.errors import reason_of

_POLL_S = 0.2
_BATCH = 1_000


def consume_spans(
    consumer: Consumer, topic: str, spans: Mapping[int, tuple[int, int | None]], timeout_s: float
) -> Iterator[Message]:
    """Yield the messages of some partitions of a topic, in the order of offsets within each partition.

    Args:
        consumer: has `enable.partition.eof` set.
        topic: the topic.
        spans: for each partition the first offset and the offset after the last one. Reading stops earlier at the
            partition's current end, and there where the second offset is None.
        timeout_s: how long Kafka may deliver nothing.

    Raises KafkaException, and UnavailableError after the timeout.
    """
    ends = {partition: end for partition, (start, end) in spans.items() if end is None or start < end}
    consumer.assign([TopicPartition(topic, partition, spans[partition][0]) for partition in ends])
    deadline = time.monotonic() + timeout_s
    while ends:
        batch = consume_available(consumer, _BATCH, _POLL_S)
        if batch:
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            raise UnavailableError(f"Kafka did not deliver the records of {topic} in {timeout_s:.0f} s")
        for message in batch:
            partition, error = message.partition() or 0, message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition not in ends:
                continue
            offset, end = message.offset() or 0, ends[partition]
            if error is None and (end is None or offset < end):
                yield message
            if error is not None or (end is not None and offset >= end - 1):
                del ends[partition]
                consumer.incremental_unassign([TopicPartition(topic, partition)])


@contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """Raise UnavailableError in place of Kafka's errors."""
    try:
        yield
    except KafkaException as failure:
        raise UnavailableError(f"Kafka: {reason_of(failure)}") from failure

"""Records of a topic as they come from Kafka, from places to places, without a group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.console.errors import UnavailableError
from isotherm.servicekit import kafka

_POLL_S = 0.2
_BATCH = 1_000


def messages(
    consumer: Consumer, topic: str, spans: Mapping[int, tuple[int, int | None]], timeout_s: float
) -> Iterator[Message]:
    """The messages of a topic, of each partition those from an offset to before another one, in their order.

    Without the other one, or before it, a partition is over where it ends now. `consumer` tells the ends of partitions
    (`enable.partition.eof`). Raises KafkaException, and UnavailableError when Kafka gives nothing for so long.
    """
    ends = {partition: end for partition, (start, end) in spans.items() if end is None or start < end}
    consumer.assign([TopicPartition(topic, partition, spans[partition][0]) for partition in ends])
    patience_ends = time.monotonic() + timeout_s
    while ends:
        batch = _batch(consumer)
        if batch:
            patience_ends = time.monotonic() + timeout_s
        elif time.monotonic() > patience_ends:
            raise UnavailableError(f"Kafka did not give the records of {topic} in {timeout_s:.0f} s")
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


def _batch(consumer: Consumer) -> list[Message]:
    # `consume` alone waits until so many are there; what has come already is enough.
    first = consumer.poll(_POLL_S)
    return [] if first is None else [first, *consumer.consume(_BATCH, 0)]


@contextmanager
def answering() -> Iterator[None]:
    """Kafka's errors as UnavailableError."""
    try:
        yield
    except KafkaException as failure:
        error = kafka.error_of(failure)
        raise UnavailableError(f"Kafka: {error.str() if error is not None else failure}") from failure

"""Reading topics with read_committed isolation, outside any consumer group."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.settings import KafkaSettings

_REQUEST_TIMEOUT_S = 30.0
_POLL_S = 0.5
_BATCH = 500
_CLIENT = "isotherm-reader"


class UnknownTopicError(LookupError):
    """The topic does not exist in Kafka."""


def read(
    settings: KafkaSettings,
    *topics: str,
    from_beginning: bool = True,
    since_ms: int | None = None,
    until_ms: int | None = None,
    follow: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[Message, None, None]:
    """Yield the records of topics, in order within each partition.

    Args:
        settings: how to reach Kafka.
        topics: the topics to read.
        from_beginning: begin with the oldest records; otherwise only records that are written from now on.
        since_ms: begin with the first records of this time (epoch milliseconds) or later.
        until_ms: end before the first record of this time or later. Kafka counts the end of a transaction as a record
            of the time of its commit.
        follow: wait for new records instead of ending when every partition has been read to its end.
        stopped: ends the reading when it returns True.

    Raises UnknownTopicError, and KafkaException when Kafka cannot be read.
    """
    # Kafka holds a fetch that finds nothing: shortly for a reader whose end that is, longer for one that goes on.
    if follow:
        consumer = clients.consumer(settings, _CLIENT, _CLIENT, enable_auto_offset_store=False)
    else:
        consumer = clients.consumer_to_the_end(settings, _CLIENT, enable_auto_offset_store=False)
    try:
        partitions = _partitions(consumer, topics, OFFSET_BEGINNING if from_beginning else OFFSET_END)
        if since_ms is not None:
            times = [TopicPartition(of.topic, of.partition, since_ms) for of in partitions]
            partitions = consumer.offsets_for_times(times, timeout=_REQUEST_TIMEOUT_S)
        ends = {} if until_ms is None else _offsets_at(consumer, partitions, until_ms)
        consumer.assign(partitions)
        unread = {(partition.topic, partition.partition) for partition in partitions}
        while (unread or follow) and not stopped():
            for message in consume_available(consumer, _BATCH, _POLL_S):
                error = message.error()
                if error is None and ends and _is_beyond(message, ends):
                    # Once: more records may have been fetched ahead.
                    if (message.topic(), message.partition()) in unread:
                        unread.discard((message.topic(), message.partition()))
                        consumer.pause([TopicPartition(message.topic() or "", message.partition() or 0)])
                elif error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def begins_ms(settings: KafkaSettings, topic: str) -> int | None:
    """Return since when a topic is whole, in epoch milliseconds; None if no record was removed or none is left.

    Raises UnknownTopicError, and KafkaException when Kafka cannot be read.
    """
    consumer = clients.consumer_to_the_end(settings, _CLIENT, enable_auto_offset_store=False)
    try:
        first_ms: int | None = None
        for partition in _partitions(consumer, (topic,), OFFSET_BEGINNING):
            low, end = consumer.get_watermark_offsets(partition, timeout=_REQUEST_TIMEOUT_S)
            if not 0 < low < end:
                continue
            consumer.assign([TopicPartition(topic, partition.partition, low)])
            message = consumer.poll(_REQUEST_TIMEOUT_S)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if (error := message.error()) is not None:
                raise KafkaException(error)
            first_ms = max(first_ms or 0, message.timestamp()[1])
        return first_ms
    finally:
        consumer.close()


def end_offsets(settings: KafkaSettings, *topics: str) -> dict[tuple[str, int], int]:
    """Return the offset behind the last record of each partition, whatever became of its transaction.

    Raises UnknownTopicError, and KafkaException when Kafka cannot be read.
    """
    consumer = clients.consumer_to_the_end(
        settings, _CLIENT, enable_auto_offset_store=False, isolation_level="read_uncommitted"
    )
    try:
        return {
            (of.topic, of.partition): consumer.get_watermark_offsets(of, timeout=_REQUEST_TIMEOUT_S)[1]
            for of in _partitions(consumer, topics, OFFSET_END)
        }
    finally:
        consumer.close()


def _offsets_at(
    consumer: Consumer, partitions: Sequence[TopicPartition], time_ms: int
) -> dict[tuple[str | None, int | None], int]:
    """Return the first offset of a time or later, of those partitions that have one."""
    times = [TopicPartition(of.topic, of.partition, time_ms) for of in partitions]
    found = consumer.offsets_for_times(times, timeout=_REQUEST_TIMEOUT_S)
    return {(of.topic, of.partition): of.offset for of in found if of.offset >= 0}


def _is_beyond(message: Message, ends: Mapping[tuple[str | None, int | None], int]) -> bool:
    return (message.offset() or 0) >= ends.get((message.topic(), message.partition()), math.inf)


def _partitions(consumer: Consumer, topics: tuple[str, ...], offset: int) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
    for topic in topics:
        if topic not in known:
            raise UnknownTopicError(f"Kafka has no topic {topic}")
    return [TopicPartition(topic, partition, offset) for topic in topics for partition in known[topic].partitions]

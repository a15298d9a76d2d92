"""Reading topics as every reader of the suite does: read_committed, by records and never by offset arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Generator

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.servicekit import kafka as clients
from isotherm.servicekit.settings import KafkaSettings

_REQUEST_TIMEOUT_S = 30.0
_POLL_S = 0.5


class UnknownTopicError(LookupError):
    """Kafka has no such topic."""


def read(
    settings: KafkaSettings,
    *topics: str,
    from_beginning: bool = True,
    since_ms: int | None = None,
    follow: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[Message, None, None]:
    """The records of `topics`, in order within each partition, without joining a group.

    Ends when every partition was read to the end that it had when the reader came there, or, with `follow`, when
    `stopped` says so. With `from_beginning=False` only what is written from now on; with `since_ms` (epoch) what
    comes from the first record on that is so young.

    Raises UnknownTopicError, KafkaException when Kafka cannot be read.
    """
    consumer = clients.consumer(
        settings, "isotherm-reader", "isotherm-reader", enable_partition_eof=True, enable_auto_offset_store=False
    )
    try:
        partitions = _partitions(consumer, topics, OFFSET_BEGINNING if from_beginning else OFFSET_END)
        if since_ms is not None:
            asked = [TopicPartition(of.topic, of.partition, since_ms) for of in partitions]
            partitions = consumer.offsets_for_times(asked, timeout=_REQUEST_TIMEOUT_S)
        consumer.assign(partitions)
        unread = {(partition.topic, partition.partition) for partition in partitions}
        while (unread or follow) and not stopped():
            for message in consumer.consume(500, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topics: tuple[str, ...], offset: int) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
    for topic in topics:
        if topic not in known:
            raise UnknownTopicError(f"Kafka has no topic {topic}")
    return [TopicPartition(topic, partition, offset) for topic in topics for partition in known[topic].partitions]

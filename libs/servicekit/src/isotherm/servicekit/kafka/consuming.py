"""Assigning partitions to a consumer that reads them whole, and reading what it has fetched."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, Message, TopicPartition


def assign_from_start(consumer: Consumer, topic: str, partitions: Iterable[int], timeout_s: float) -> None:
    """Assign partitions of `topic` to `consumer` from their first record, so that it fetches at once.

    librdkafka 2.16 looks for the leaders of partitions that it does not know once a second, and for a logical offset
    (OFFSET_BEGINNING) every half second. So the consumer first asks for the topic, for up to `timeout_s` seconds, and
    begins at offset 0: where Kafka has deleted that, `auto.offset.reset` leads to the first record. Raises
    KafkaException.
    """
    consumer.list_topics(topic, timeout=timeout_s)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])


def consume_available(consumer: Consumer, most: int, timeout_s: float) -> list[Message]:
    """Messages and events that are there, at most `most`, after waiting up to `timeout_s` seconds for the first one.

    `Consumer.consume` waits until it has `most` of them or the time is over.
    """
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]

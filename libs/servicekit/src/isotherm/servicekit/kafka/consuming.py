"""Reading what a consumer has fetched."""

from __future__ import annotations

from confluent_kafka import Consumer, Message


def consume_available(consumer: Consumer, most: int, timeout_s: float) -> list[Message]:
    """Messages and events that are there, at most `most`, after waiting up to `timeout_s` seconds for the first one.

    `Consumer.consume` waits until it has `most` of them or the time is over.
    """
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]

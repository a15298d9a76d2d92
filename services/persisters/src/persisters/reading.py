"""Kafka's messages as the records that the loop passes round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Message

from persisters.work import Record


def record_of(message: Message) -> Record:
    """A Kafka message, one that is no error, as the loop passes it round."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers = message.headers()
    return Record(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        _headers(headers) if headers else (),
    )


def _headers(headers: Any) -> Sequence[tuple[str, bytes | None]]:
    pairs: Iterable[tuple[str, str | bytes | None]] = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)

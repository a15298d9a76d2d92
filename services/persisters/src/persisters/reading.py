"""Kafka's messages as the records that the loop passes round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Message

from persisters.work import Record


def record_of(message: Message) -> Record:
    """A Kafka message as the loop passes it round."""
    key, value = message.key(), message.value()
    return Record(
        str(message.topic()),
        int(message.partition() or 0),
        int(message.offset() or 0),
        int(message.timestamp()[1]),
        key,
        value,
        _headers(message.headers() or ()),
    )


def _headers(headers: Any) -> Sequence[tuple[str, bytes | None]]:
    pairs: Iterable[tuple[str, str | bytes | None]] = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)

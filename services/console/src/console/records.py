"""One record of a topic, as it was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from confluent_kafka import Message

from connector.dead_letters import Headers


@dataclass(frozen=True)
class Record:
    """A record and its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Epoch milliseconds; -1 when Kafka has none."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, message: Message) -> Self:
        """The record in a message that is no error."""
        return cls(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
            list(message.headers() or []),  # type: ignore[arg-type]  # always pairs when read
        )

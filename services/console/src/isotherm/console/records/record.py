"""One record of a topic, as it was read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Message

from isotherm.connector.errors.dead_letters import Headers

NUMBER = re.compile(r"[0-9]{1,9}")
"""A partition or a task as text. `str.isdecimal` takes other alphabets' digits, and more of them than `int` does."""


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

    @property
    def size_bytes(self) -> int:
        """What its key, value and headers take."""
        named = sum(len(name) + len(content or b"") for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named

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

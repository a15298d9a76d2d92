"""One consumed record of a topic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Message

from isotherm.connector.errors.dead_letters import Headers

NUMBER = re.compile(r"[0-9]{1,9}")
"""The number of a partition or task as text. `str.isdecimal` would accept other alphabets' digits and any length."""


def header_text(value: str | bytes | None) -> str:
    """Return a header's value as text; empty if it has none."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


@dataclass(frozen=True)
class Record:
    """A record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Epoch milliseconds; -1 when the record has no timestamp."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size_bytes(self) -> int:
        """Size of key, value and headers in bytes."""
        named = sum(len(name) + len(content or b"") for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the record of a message that is not an error."""
        return cls(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
            list(message.headers() or []),  # type: ignore[arg-type]  # always pairs when read
        )

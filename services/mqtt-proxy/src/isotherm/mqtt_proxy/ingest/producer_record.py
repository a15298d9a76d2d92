"""A record for a Kafka producer, and the memory that records take until Kafka has them."""

from __future__ import annotations

from typing import NamedTuple

Headers = list[tuple[str, bytes | str | None]]

RECORD_BYTES = 704
"""Bytes that a record takes beside key, value and headers: librdkafka's message and our callbacks, measured."""

_HEADER_BYTES = 64
"""Bytes that a header takes beside name and value: librdkafka copies each header for each record, measured."""


class ProducerRecord(NamedTuple):
    """A record for Kafka."""

    topic: str
    key: bytes | str | None
    value: bytes | None
    headers: Headers


def headers_bytes(headers: Headers) -> int:
    """Return the bytes that `headers` take with each record."""
    size = _HEADER_BYTES * len(headers)
    for name, value in headers:
        size += len(name)
        if value:
            size += len(value)
    return size

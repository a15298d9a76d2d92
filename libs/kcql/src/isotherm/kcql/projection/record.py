"""A record as a projection sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One record of a source, already decoded.

    Attributes:
        key, value: plain JSON or what an Avro decoder gives: dict, list, str, int, float, bool, bytes, datetime,
            None. A record is a `dict`.
        headers: by name, or pairs in their order; the last of several of one name counts. Bytes that are UTF-8
            are read as text.
        topic, partition, offset: where the record comes from; for MQTT, `topic` is the MQTT topic.
        timestamp_ms: Kafka's timestamp, in epoch milliseconds.
    """

    key: Any = None
    value: Any = None
    headers: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


def headers_of(record: Record) -> dict[str, Any]:
    """The record's headers by name, their values as text where they are UTF-8."""
    headers = record.headers
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {name: _text(value) for name, value in pairs}


def header_of(record: Record, name: str, default: Any) -> Any:
    """The last header of that name, as text where it is UTF-8."""
    headers = record.headers
    if isinstance(headers, Mapping):
        return _text(headers[name]) if name in headers else default
    for found, value in reversed(headers):
        if found == name:
            return _text(value)
    return default


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value

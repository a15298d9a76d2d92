"""The record that a projection reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One record of a source, already decoded.

    Attributes:
        key, value: values of JSON or of an Avro decoder: dict, list, str, int, float, bool, bytes, datetime,
            None. A record is a `dict`.
        headers: by name, or pairs in their order; of several headers with one name the last counts. Bytes that
            are UTF-8 are read as text.
        topic, partition, offset: the record's position; for MQTT, `topic` is the MQTT topic.
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
    """The record's headers by name; values that are UTF-8 as text."""
    headers = record.headers
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {name: _text(value) for name, value in pairs}


def header_of(record: Record, name: str, default: Any) -> Any:
    """The last header of this name, as text when it is UTF-8; `default` when there is none."""
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

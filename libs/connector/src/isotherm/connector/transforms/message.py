"""The record that transforms take and return, and its two parts with a schema: key and value."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

Schema = Any
"""An Avro schema as parsed JSON, without references to named types; see `schemas.resolved`."""


class TransformError(ValueError):
    """A transform cannot be applied to this record: the record is bad."""


class Message(NamedTuple):
    """A decoded record.

    Attributes:
        topic, partition, offset, timestamp_ms: where the record stands; the timestamp in epoch milliseconds.
        key_schema, value_schema: None for data without a schema, whose records are dicts.
        key, value: Python values; a time of `timestamp-millis` is a number of epoch milliseconds.
        headers: names and values in their order; values as they came (bytes), or those that a transform made.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key_schema: Schema
    key: Any
    value_schema: Schema
    value: Any
    headers: tuple[tuple[str, Any], ...]


Transform = Callable[[Message], Message | None]
"""Returns None for a record that is filtered. Raises TransformError."""


class Part(Enum):
    """The part of a record that a transform works on: the suffix of its class (`MaskField$Value`)."""

    KEY = "Key"
    VALUE = "Value"

    def schema(self, message: Message) -> Schema:
        """The part's schema."""
        return message.value_schema if self is Part.VALUE else message.key_schema

    def data(self, message: Message) -> Any:
        """The part itself."""
        return message.value if self is Part.VALUE else message.key

    def replaced(self, message: Message, schema: Schema, data: Any) -> Message:
        """The message with another part."""
        if self is Part.VALUE:
            return message._replace(value_schema=schema, value=data)
        return message._replace(key_schema=schema, key=data)

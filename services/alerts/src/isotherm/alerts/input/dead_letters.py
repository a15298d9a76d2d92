"""Dead-letter records made from records of any Kafka client."""

from __future__ import annotations

from typing import NamedTuple, cast

from confluent_kafka import Message

from isotherm.connector.errors.dead_letters import DeadLetterRecord, Headers, dead_letter_headers


class SourceRecord(NamedTuple):
    """A record as it was read."""

    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def source_record(message: Message) -> SourceRecord:
    """Return the record of a librdkafka message."""
    headers = cast(Headers, message.headers() or [])
    return SourceRecord(message.topic(), message.partition(), message.offset(), message.key(), message.value(), headers)


def dead_letter_record(
    source: SourceRecord, error: Exception, *, stage: str, name: str, class_name: str
) -> DeadLetterRecord:
    """Return the dead-letter record of `source`: unchanged, with the reason in headers.

    `stage` is one of Kafka Connect's stages, `name` the name of the reader.
    """
    headers = dead_letter_headers(
        error,
        stage=stage,
        connector=name,
        class_name=class_name,
        topic=source.topic,
        partition=source.partition,
        offset=source.offset,
        original=source.headers,
    )
    return DeadLetterRecord(source.key, source.value, headers)

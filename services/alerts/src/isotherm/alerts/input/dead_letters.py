"""Dead letters of records, whichever client has read them."""

from __future__ import annotations

from typing import NamedTuple, cast

from confluent_kafka import Message

from isotherm.connector.errors.dead_letters import DeadLetterRecord, Headers, dead_letter_headers


class Origin(NamedTuple):
    """A record as it came."""

    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def origin_of(message: Message) -> Origin:
    """A record that librdkafka has read."""
    headers = cast(Headers, message.headers() or [])
    return Origin(message.topic(), message.partition(), message.offset(), message.key(), message.value(), headers)


def dead_letter_record(origin: Origin, error: Exception, *, stage: str, name: str, class_name: str) -> DeadLetterRecord:
    """The dead letter of a record: as it came, with the reason; `stage` is one of Connect's, `name` the reader's."""
    headers = dead_letter_headers(
        error,
        stage=stage,
        connector=name,
        class_name=class_name,
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        original=origin.headers,
    )
    return DeadLetterRecord(origin.key, origin.value, headers)

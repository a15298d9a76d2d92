"""Dead letters of records that librdkafka has read."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

from connector.dead_letters import DeadLetter, Headers, dead_letter_headers


def letter_of(message: Message, error: Exception, *, stage: str, name: str, class_name: str) -> DeadLetter:
    """The dead letter of a record: as it came, with the reason; `stage` is one of Connect's, `name` the reader's."""
    headers = dead_letter_headers(
        error,
        stage=stage,
        connector=name,
        class_name=class_name,
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        original=cast(Headers, message.headers() or []),
    )
    return DeadLetter(message.key(), message.value(), headers)

"""Kafka's error in what its clients raise."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException


def error_of(error: BaseException | KafkaError) -> KafkaError | None:
    """The KafkaError inside a KafkaException, or the error itself."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def reason_of(error: BaseException) -> str:
    """An error's text for the user; of Kafka's errors only the description."""
    found = error_of(error)
    return str(error) if found is None else found.str()

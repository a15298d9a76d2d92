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

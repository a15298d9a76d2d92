"""The errors with which Kafka refuses a batch for one of its records."""

from __future__ import annotations

from confluent_kafka import KafkaError

REFUSED_BATCH = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    )
)
"""Errors that each record of a batch gets for one of them: Kafka stores a batch or refuses it."""

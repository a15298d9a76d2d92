"""Makes the Kafka clients of the service and of `recompute`. Only their service modules call it."""

from __future__ import annotations

from functools import partial

from isotherm.aggregator.kafka.broker import REQUEST_TIMEOUT_S, Broker
from isotherm.aggregator.kafka.output_producer import OutputProducer
from isotherm.aggregator.kafka.stored_position import StoredPosition
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

_CLIENT_ID = "isotherm-aggregator"
_DELIVERY_TIMEOUT_MS = 10_000
"""A query that loses Kafka is restarted with its batch unchanged, so waiting long only delays a stop."""


def open_broker(settings: KafkaSettings, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Broker:
    """Return the driver's own view of Kafka, beside Spark's."""
    admin = clients.admin(settings, f"{_CLIENT_ID}-admin")
    # Unread records of open transactions hold the watermark back, too, hence read_uncommitted. It never commits.
    # Where only a transaction's marker is unread, the answer is the end of the partition, and the driver waits for it.
    consumer = clients.consumer_to_the_end(
        settings,
        f"{_CLIENT_ID}-clock",
        isolation_level="read_uncommitted",
        fetch_message_max_bytes=64 * 1024,
        queued_max_messages_kbytes=1024,
    )
    return Broker(admin, consumer, request_timeout_s)


def open_position(settings: KafkaSettings, group: str) -> StoredPosition:
    """Return where `group` keeps how far a topic is done: what the corrections and the roll-ups have read."""
    return StoredPosition(clients.consumer(settings, f"{_CLIENT_ID}-position", group))


def open_output_producer(settings: KafkaSettings) -> OutputProducer:
    """Return the driver's own sender of the output, beside Spark's. It connects when it sends for the first time."""
    client_id = f"{_CLIENT_ID}-windows"
    return OutputProducer(partial(clients.producer, settings, client_id, delivery_timeout_ms=_DELIVERY_TIMEOUT_MS))

"""Makes the Kafka clients of the service and of `recompute`. Only their service modules call it."""

from __future__ import annotations

from isotherm.aggregator.kafka.broker import Broker
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

_CLIENT_ID = "isotherm-aggregator"


def open_broker(settings: KafkaSettings) -> Broker:
    """Return the driver's own view of Kafka, beside Spark's."""
    admin = clients.admin(settings, f"{_CLIENT_ID}-admin")
    # Unread records of open transactions hold the watermark back, too, hence read_uncommitted. It never commits.
    consumer = clients.consumer(
        settings,
        f"{_CLIENT_ID}-clock",
        f"{_CLIENT_ID}-clock",
        isolation_level="read_uncommitted",
        enable_partition_eof=True,
        fetch_message_max_bytes=64 * 1024,
        queued_max_messages_kbytes=1024,
    )
    return Broker(admin, consumer)

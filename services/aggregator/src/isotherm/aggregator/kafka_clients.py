"""Makes the Kafka clients of the service and of `recompute`. Only their service modules call it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

from isotherm.aggregator.kafka.broker import REQUEST_TIMEOUT_S, Broker
from isotherm.aggregator.kafka.output_producer import OutputProducer
from isotherm.aggregator.kafka.stored_position import StoredPosition
from isotherm.aggregator.kafka.writer_journal import TRANSACTION_TIMEOUT_S, WriterJournal
from isotherm.aggregator.kafka.writer_lease import SESSION_S, WriterLease
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.tracing.opening import Tracing
from isotherm.aggregator.tracing.reading_follower import ReadingFollower
from isotherm.servicekit.avro import Decoder, SchemaRegistry
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


def open_follower(
    settings: AggregatorSettings, topics: Callable[[], Sequence[str]], tracing: Tracing
) -> ReadingFollower:
    """Return what finds the traced readings of the input."""
    return ReadingFollower(
        # It never comes to an end, so Kafka may hold a fetch that finds nothing.
        partial(
            clients.consumer_to_the_end,
            settings.kafka,
            f"{_CLIENT_ID}-traces",
            enable_partition_eof=False,
            fetch_wait_max_ms=500,
        ),
        topics,
        Decoder(SchemaRegistry(settings.registry)),
        settings.timeliness,
        tracing.traces,
        tracing.windows,
    )


def open_lease(settings: AggregatorSettings, end_process: Callable[[], None]) -> WriterLease:
    """Return the lease of the aggregators of one name; `end_process` ends one that goes on when another has begun."""
    consumer = clients.consumer(
        settings.kafka,
        f"{_CLIENT_ID}-lease",
        settings.writers_group,
        session_timeout_ms=round(SESSION_S * 1000),
    )
    topic = settings.journal_topic
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    return WriterLease(consumer, open_journal(settings, name), topic, end_process)


def open_journal(settings: AggregatorSettings, name: str) -> WriterJournal:
    """Return the journal of the aggregators of one name, as the process `name` writes it."""
    client_id = f"{_CLIENT_ID}-journal"
    make_producer = partial(
        clients.producer,
        settings.kafka,
        client_id,
        transactional_id=settings.writers_group,
        transaction_timeout_ms=round(TRANSACTION_TIMEOUT_S * 1000),
        delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
        linger_ms=0,
    )
    reader = clients.consumer_to_the_end(settings.kafka, f"{client_id}-reader")
    return WriterJournal(settings.journal_topic, name, make_producer, reader)

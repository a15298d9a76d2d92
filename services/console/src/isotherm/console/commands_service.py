"""The process that settles commands: composes the settler and its clients, and runs until it is stopped (ADR 274)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from isotherm.connector.commands.records import OPEN, OPEN_SCHEMA, OUTCOME_SCHEMA, OUTCOMES
from isotherm.connector.errors import dead_letters
from isotherm.console.commands.acceptance import Limits
from isotherm.console.commands.assignment import AssignmentError, TopicsMissingError, count_partitions
from isotherm.console.commands.batch import Encoders
from isotherm.console.commands.decoding import CommandDecoder
from isotherm.console.commands.known_devices import KnownDevices
from isotherm.console.commands.metrics import CommandMetrics
from isotherm.console.commands.restoring import Restorer
from isotherm.console.commands.settler import ConsumerFailedError, Ports, Settler, StoppedError
from isotherm.console.commands.transactions import RETRY_BACKOFF_MS, TRANSACTION_TIMEOUT_MS, TransactionalWriter
from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower
from isotherm.console.settings import CommandSettings, ConsoleSettings
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Exit, Stop, collect_rarely
from isotherm.servicekit.startup import wait_until_up

_log = logs.logger(__name__)

GROUP = "isotherm-commands"
_NAME = "console-commands"
_SESSION_TIMEOUT_MS = 10_000
"""How long the commands of a process wait that was killed."""
_FETCH_WAIT_MS = 5_000
"""How long Kafka holds a fetch while there is no record; a new one answers it at once."""
_QUEUED_KBYTES = 16_384
"""How much a consumer fetches ahead. Its default of 64 MiB would be most of a small container's memory."""
_DEVICES_GROUP_BYTES = 256 * 1024
_DEVICES_MAX_DELAY_MS = 1_000
"""Kafka answers a fetch of devices when it has _DEVICES_GROUP_BYTES, or after this time."""


def run(settings: ConsoleSettings, stop: Stop) -> int:
    """Settle commands until `stop` is set, and return the exit code."""
    health, registry = Health(), CollectorRegistry()
    monitoring = MonitoringServer(settings.http, health, registry)
    monitoring.start()
    try:
        return _run(settings, stop, health, registry, monitoring.port)
    except (AssignmentError, ConsumerFailedError) as failure:
        health.not_ready("start", str(failure))
        _log.error("commands cannot be settled", reason=str(failure))
        return Exit.FAILED
    finally:
        monitoring.stop()


def _run(settings: ConsoleSettings, stop: Stop, health: Health, registry: CollectorRegistry, http_port: int) -> int:
    schemas, timeout_s = SchemaRegistry(settings.registry), settings.read_timeout_ms / 1_000
    admin = clients.admin(settings.kafka, f"{_NAME}-admin")
    metrics = CommandMetrics(registry)
    encoders = _prepared(settings, admin, schemas, health, stop)
    if encoders is None:
        return Exit.OK
    devices, device_health = KnownDevices(settings.commands.max_known_devices), Health()
    device_health.ready()
    follower = TopicFollower(
        "devices", partial(_device_consumer, settings), devices.handlers(), device_health, FollowerMetrics(registry)
    )
    decoder = CommandDecoder(schemas)
    restorer = Restorer(
        admin,
        partial(clients.consumer_to_the_end, settings.kafka, f"{_NAME}-restoring"),
        decoder,
        lambda topic: metrics.unreadable.labels(topic).inc(),
        partial(_go_on, health, stop),
        timeout_s,
    )
    consumer = clients.consumer(
        settings.kafka,
        _NAME,
        GROUP,
        # Of two topics with as many partitions it gives each member those with the same numbers; cooperative-sticky
        # need not.
        partition_assignment_strategy="range",
        enable_partition_eof=True,
        enable_auto_offset_store=False,
        session_timeout_ms=_SESSION_TIMEOUT_MS,
        fetch_wait_max_ms=_FETCH_WAIT_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
    )
    ports = Ports(
        consumer,
        admin,
        restorer,
        TransactionalWriter(partial(transactional_producer, settings)),
        decoder,
        encoders,
        lambda: None if device_health.problems() else devices.__contains__,
        _now_ms,
    )
    limits_of = partial(limits_of_partition, settings.commands)
    settler = Settler(ports, limits_of, settings.commands.dead_letter_topic, metrics, health, timeout_s)
    metrics.watch(settler.behind_s, lambda: devices.count)
    follower.start()
    collect_rarely()
    health.ready()
    _log.info("serving", group=GROUP, http_port=http_port)
    try:
        settler.run(stop)
        return Exit.OK
    finally:
        consumer.close()
        follower.close()


def _prepared(
    settings: ConsoleSettings, admin: AdminClient, schemas: SchemaRegistry, health: Health, stop: Stop
) -> Encoders | None:
    """Wait for Kafka, the topics and the registry; None if the stop comes before. Raises AssignmentError."""
    timeout_s = settings.read_timeout_ms / 1_000
    away = (KafkaException, TopicsMissingError)
    if wait_until_up("topics", lambda: count_partitions(admin, timeout_s), away, health=health, stop=stop) is None:
        return None
    topic = settings.commands.dead_letter_topic
    ensured: Callable[[], bool] = partial(dead_letters.ensure_topic, admin, topic)
    if wait_until_up("dead letters", ensured, KafkaException, health=health, stop=stop) is None:
        return None

    def encoders() -> Encoders:
        return Encoders(schemas.encoder(OPEN, OPEN_SCHEMA), schemas.encoder(OUTCOMES, OUTCOME_SCHEMA))

    not_there = (RegistryUnavailableError, SchemaNotRegisteredError)
    return wait_until_up("registry", encoders, not_there, health=health, stop=stop)


def limits_of_partition(given: CommandSettings, partitions: int) -> Limits:
    """Return the limits of one of so many partitions: its even share of what is bounded in all."""
    return Limits(
        max_payload_bytes=given.max_payload_bytes,
        max_answer_bytes=given.max_answer_bytes,
        max_lifetime_ms=given.max_lifetime_ms,
        max_open_per_device=given.max_open_per_device,
        max_open=max(1, given.max_open // partitions),
        max_rate_per_device=given.max_rate_per_device,
        grace_ms=given.grace_ms,
        max_remembered=max(1, given.max_remembered // partitions),
    )


def transactional_producer(settings: ConsoleSettings, transactional_id: str) -> Producer:
    """Return a producer of outcomes and open commands with a transactional id."""
    return clients.producer(
        settings.kafka,
        _NAME,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        **dead_letters.producer_overrides(),
    )


def _device_consumer(settings: ConsoleSettings) -> Consumer:
    return clients.consumer(
        settings.kafka,
        f"{_NAME}-devices",
        f"{_NAME}-devices",
        enable_partition_eof=True,
        enable_auto_offset_store=False,
        fetch_min_bytes=_DEVICES_GROUP_BYTES,
        fetch_wait_max_ms=_DEVICES_MAX_DELAY_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
    )


def _go_on(health: Health, stop: Stop) -> None:
    """Note that the process works. Raises StoppedError when it is to stop."""
    health.beat()
    if stop.is_set():
        raise StoppedError


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

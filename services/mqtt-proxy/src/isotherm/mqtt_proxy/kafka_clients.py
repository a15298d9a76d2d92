"""Makes the Kafka clients of the server and of the bridge, and what has clients of its own.

Only their service modules call it. It also refuses the properties with which QoS 2 would not be exactly once.
"""

from __future__ import annotations

from functools import partial

from confluent_kafka import Consumer, Producer

from isotherm.connector.standalone.reporting import Reporter
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.mqtt_proxy.delivery.transactional_writer import RETRY_BACKOFF_MS
from isotherm.mqtt_proxy.hotpath import producer_plugin
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.pods.records import MOST_BYTES
from isotherm.mqtt_proxy.processes.target_state import TargetStateReconciler
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.settings import KafkaSettings, SettingsError

_SPARE_RECORDS = 100_000
"""How far the producer's own bound lies above ours, which counts whole publishes and lets wills through."""
_MOST_CLAIMS = 1_000_000
"""How many messages a pod's supervisor buffers while Kafka is away; its processes have fewer claims."""
_OVERHEAD_BYTES = 100_000
_FOLLOW_WAIT_MS = 500
"""How long Kafka holds a fetch of a reader that follows a topic; a record ends the wait at once."""
_READ_AHEAD_KB = 16_384
"""How much the reader of the sessions topic buffers at most."""


def check_properties(settings: ProxySettings) -> None:
    """Raise SettingsError for librdkafka properties that the QoS 2 promise does not allow to be set."""
    problems = [
        f"kafka.properties.{key}: it cannot be set: QoS 2 tells by this time whether a commit was sent twice"
        for key in ("retry.backoff.ms", "retry.backoff.max.ms")
        if key in settings.kafka.properties
    ]
    if problems:
        raise SettingsError(problems)


def build_loop_producer(settings: ProxySettings, client_id: str) -> LoopProducer:
    """Return the ordered, idempotent producer of everything below QoS 2."""
    return LoopProducer(
        build_producer(settings, client_id),
        max_outstanding=settings.limits.outstanding_records + _SPARE_RECORDS,
        make_single=partial(clients.single_record_producer, settings.kafka, client_id, **_producer_limits(settings)),
    )


def build_producer(settings: ProxySettings, client_id: str) -> Producer:
    """Return a producer for `build_loop_producer`: the first one, or its successor after a fatal error."""
    return clients.producer(settings.kafka, client_id, **producer_plugin(), **_producer_limits(settings))


def build_transactional_producer(settings: ProxySettings, transactional_id: str) -> Producer:
    """Return the producer of QoS 2 publishes and of session writes, as `TransactionalWriter` needs it."""
    return clients.producer(
        settings.kafka,
        f"{transactional_id}-transactions",
        transactional_id=transactional_id,
        transaction_timeout_ms=settings.transactions.timeout_ms,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        retry_backoff_max_ms=RETRY_BACKOFF_MS,
        **_producer_limits(settings),
    )


def build_fencing_producer(settings: ProxySettings, transactional_id: str) -> Producer:
    """Return a producer with the transactional id of a process that does not exist any more, for `recovery.fence`."""
    return clients.producer(settings.kafka, transactional_id, transactional_id=transactional_id)


def build_session_consumer(settings: ProxySettings, client_id: str) -> Consumer:
    """Return a consumer for `SessionRestoration`."""
    return clients.consumer_to_the_end(settings.kafka, client_id, queued_max_messages_kbytes=_READ_AHEAD_KB)


def build_heartbeat_consumer(settings: ProxySettings, client_id: str) -> Consumer:
    """Return a consumer for `NameConflicts`."""
    return clients.consumer_to_the_end(settings.kafka, client_id)


def build_outcome_consumer(settings: KafkaSettings, client_id: str) -> Consumer:
    """Return a consumer for `recovery.is_committed`."""
    # Without auto_offset_reset=error a deleted record would look like an aborted one.
    return clients.consumer_to_the_end(settings, client_id, auto_offset_reset="error")


def build_claims_producer(settings: ProxySettings, client_id: str) -> Producer:
    """Return the producer of the claims topic. It gives up no record: the copies would differ from what happened."""
    return clients.producer(
        settings.kafka,
        client_id,
        linger_ms=1,
        delivery_timeout_ms=0,
        message_max_bytes=MOST_BYTES + _OVERHEAD_BYTES,
        queue_buffering_max_messages=_MOST_CLAIMS,
    )


def build_claims_consumer(settings: ProxySettings, client_id: str) -> Consumer:
    """Return the consumer of the claims topic, which reads it once and then follows it."""
    return clients.consumer_to_the_end(settings.kafka, client_id, fetch_wait_max_ms=_FOLLOW_WAIT_MS)


def build_open_commands_consumer(settings: ProxySettings, client_id: str) -> Consumer:
    """Return a consumer for `OpenCommandFollower`."""
    return clients.consumer_to_the_end(settings.kafka, f"{client_id}-commands", fetch_wait_max_ms=_FOLLOW_WAIT_MS)


def build_target_state(
    settings: ProxySettings, connector: str, health: Health, metrics: Metrics
) -> TargetStateReconciler:
    """Return what follows the target state of `connector` and reports the state of this process."""
    return TargetStateReconciler(
        TargetFollower(settings.kafka, settings.registry, connector),
        partial(Reporter, settings.kafka, settings.registry, connector=connector, task=settings.ordinal),
        settings.ordinal,
        health,
        metrics,
    )


def _producer_limits(settings: ProxySettings) -> dict[str, int]:
    """Return librdkafka's bounds of a producer; our own bounds are met long before them."""
    return {
        "delivery_timeout_ms": settings.delivery_timeout_ms,
        "queue_buffering_max_messages": settings.limits.outstanding_records + 2 * _SPARE_RECORDS,
        "queue_buffering_max_kbytes": 2_097_151,
    }

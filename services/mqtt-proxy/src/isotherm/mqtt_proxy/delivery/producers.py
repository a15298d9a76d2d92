"""Builds the Kafka producers for publishes below QoS 2, and checks the properties on which exactly once rests."""

from __future__ import annotations

from confluent_kafka import Producer

from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.settings import SettingsError

_SPARE_RECORDS = 100_000
"""How far the producer's own bound lies above ours, which counts whole publishes and lets wills through."""


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
        build_producer(settings, client_id), max_outstanding=settings.limits.outstanding_records + _SPARE_RECORDS
    )


def build_producer(settings: ProxySettings, client_id: str) -> Producer:
    """Return a producer for `build_loop_producer`: the first one, or its successor after a fatal error."""
    return clients.producer(settings.kafka, client_id, **producer_limits(settings))


def producer_limits(settings: ProxySettings) -> dict[str, int]:
    """Return librdkafka's bounds of a producer; our own bounds are met long before them."""
    return {
        "delivery_timeout_ms": settings.delivery_timeout_ms,
        "queue_buffering_max_messages": settings.limits.outstanding_records + 2 * _SPARE_RECORDS,
        "queue_buffering_max_kbytes": 2_097_151,
    }

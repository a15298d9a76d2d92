"""What the server of devices and the bridge make of the settings: routes, rules, producers."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from isotherm import kcql
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.mqtt_proxy.codec.errors import RouteError
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes, regex_routes
from isotherm.mqtt_proxy.ingest.translation import Rules
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit import kafka
from isotherm.servicekit.delivery import LoopProducer
from isotherm.servicekit.rates import parse_optional_rate
from isotherm.servicekit.settings import SettingsError

_SPARE_RECORDS = 100_000
"""The producer's own bound lies this far above ours, which counts whole publishes and lets wills through."""


def check_properties(settings: ProxySettings) -> None:
    """Raise SettingsError for librdkafka properties on which exactly once rests."""
    problems = [
        f"kafka.properties.{key}: it cannot be set: QoS 2 tells by this time whether a commit was sent twice"
        for key in ("retry.backoff.ms", "retry.backoff.max.ms")
        if key in settings.kafka.properties
    ]
    if problems:
        raise SettingsError(problems)


def router_of(settings: ProxySettings) -> Router:
    """The routes in the settings. Raises SettingsError naming every mistake."""
    problems, routes = [], []
    try:
        if settings.routes.strip():
            routes += kcql_routes(
                settings.routes, device_level=settings.device_level, metrics=frozenset(settings.units)
            )
    except (kcql.KcqlError, RouteError) as error:
        problems.append(f"routes: {error}")
    try:
        if settings.topic_regex_list.strip():
            routes += regex_routes(settings.topic_regex_list, device_level=settings.device_level)
    except RouteError as error:
        problems.append(f"topic_regex_list: {error}")
    if problems:
        raise SettingsError(problems)
    return Router(routes, first_match_only=settings.match == "first")


def rules_of(settings: ProxySettings) -> Rules:
    """What translation needs of the settings."""
    return Rules(
        units=settings.units,
        dead_letter_topic=settings.dead_letter_topic,
        connector=SERVICE,
        ordinal=settings.ordinal,
        drop_unrouted=settings.no_route == "drop",
        topic_bytes=settings.limits.topic_bytes,
        readings_per_publish=settings.limits.readings_per_publish,
        user_properties=settings.limits.user_properties,
        property_bytes=settings.limits.property_bytes,
        device_id=settings.device_policy,
        dead_letters=parse_optional_rate(settings.dead_letters.rate),
        # Pods are told apart by it, too, not only the processes of one.
        number=settings.ordinal,
    )


def ensure_dead_letter_topic(admin: AdminClient, settings: ProxySettings) -> None:
    """Create the dead-letter topic unless it exists; one that exists keeps its configuration."""
    bounds = settings.dead_letters
    ensure_topic(
        admin,
        settings.dead_letter_topic,
        retention_ms=bounds.retention_ms,
        retention_bytes=bounds.retention_bytes,
    )


def producer_of(settings: ProxySettings, name: str) -> LoopProducer:
    """The ordered, idempotent producer of everything below QoS 2."""
    return LoopProducer(
        make_producer(settings, name), max_outstanding=settings.limits.outstanding_records + _SPARE_RECORDS
    )


def make_producer(settings: ProxySettings, name: str) -> Producer:
    """A producer for `producer_of`, the first one or another one after a fatal error."""
    return kafka.producer(settings.kafka, name, **producer_limits(settings))


def producer_limits(settings: ProxySettings) -> dict[str, int]:
    """librdkafka's bounds of a producer."""
    # Our own bounds hold long before librdkafka's; its queue only keeps those from being met first.
    return {
        "delivery_timeout_ms": settings.delivery_timeout_ms,
        "queue_buffering_max_messages": settings.limits.outstanding_records + 2 * _SPARE_RECORDS,
        "queue_buffering_max_kbytes": 2_097_151,
    }

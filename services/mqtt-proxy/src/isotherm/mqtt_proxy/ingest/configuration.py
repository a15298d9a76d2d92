"""Builds the router and the rules of translation from the settings, for the MQTT server and for the bridge."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from isotherm import kcql
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.mqtt_proxy.ingest.routes import RouteError, Router, kcql_routes, regex_routes
from isotherm.mqtt_proxy.ingest.translation import IngestRules
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.throttling.rates import parse_optional_rate


def build_router(settings: ProxySettings) -> Router:
    """Compile the routes in the settings. Raises SettingsError that names every mistake."""
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
            routes += regex_routes(
                settings.topic_regex_list,
                device_level=settings.device_level,
                is_raw=settings.topic_regex_format == "raw",
            )
    except RouteError as error:
        problems.append(f"topic_regex_list: {error}")
    router = Router(routes, first_match_only=settings.match == "first")
    problems += [
        f"routes, topic_regex_list: a raw route must not write to {topic}, which is the service's own"
        for topic in (settings.dead_letter_topic, settings.session.topic)
        if topic in router.raw_targets
    ]
    if problems:
        raise SettingsError(problems)
    return router


def build_rules(settings: ProxySettings) -> IngestRules:
    """Return the rules of translation in the settings."""
    return IngestRules(
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
        # The ordinal separates pods as well as the processes of one pod.
        process=settings.ordinal,
        packet_ids=settings.headers.packet_id,
    )


def ensure_dead_letter_topic(admin: AdminClient, settings: ProxySettings) -> None:
    """Create the dead-letter topic unless it exists. An existing topic keeps its configuration."""
    bounds = settings.dead_letters
    ensure_topic(
        admin,
        settings.dead_letter_topic,
        retention_ms=bounds.retention_ms,
        retention_bytes=bounds.retention_bytes,
    )

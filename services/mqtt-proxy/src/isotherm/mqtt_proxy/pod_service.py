"""Composes the supervisor of one pod of several: the log of claims, and the processes that it starts (ADR 126)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial

from isotherm.mqtt_proxy.kafka_clients import build_claims_consumer, build_claims_producer, check_properties
from isotherm.mqtt_proxy.pods.log_client import LogClient
from isotherm.mqtt_proxy.pods.records import Keys
from isotherm.mqtt_proxy.processes.arbitration import Arbitration
from isotherm.mqtt_proxy.processes.pod_arbitration import PodArbitration
from isotherm.mqtt_proxy.processes.supervisor import supervise
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop

CLAIMS = schema("MqttClaims", 1)
"""The schema of the claims topic, which pods write and read."""


def run_pod(settings: ProxySettings, arguments: Sequence[str]) -> int:
    """Run the processes of this pod with the command line `arguments` until told to stop; return the exit code.

    Raises SettingsError when a port cannot be reserved or a Kafka property may not be set.
    """
    check_properties(settings)
    return supervise(settings, arguments, partial(build_arbitration, settings))


def build_arbitration(
    settings: ProxySettings, health: Health, stop: Stop, on_end: Callable[[str], None]
) -> Arbitration:
    """Return the arbitration of a new incarnation of this pod; `on_end` is called when it must end at once."""
    name, pods = ServerName(settings.name), settings.pods
    incarnation = f"{pods.host_name}/{secrets.token_hex(8)}"
    client_id = f"isotherm-{name.connector}-pod-{pods.host_name}"
    registry = SchemaRegistry(settings.registry)
    log = LogClient(
        pods.topic,
        Keys(name),
        incarnation,
        admin=clients.admin(settings.kafka, client_id),
        make_consumer=partial(build_claims_consumer, settings, client_id),
        make_producer=partial(build_claims_producer, settings, client_id),
        decoder=Decoder(registry, CLAIMS),
        make_encoder=lambda: registry.encoder(pods.topic, CLAIMS),
    )
    return PodArbitration(
        log,
        incarnation=incarnation,
        host=pods.host_name,
        processes=settings.processes,
        first_ordinal=settings.ordinal,
        health=health,
        stop=stop,
        on_end=on_end,
    )

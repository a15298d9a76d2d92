"""Composes what server and bridge, or several of their processes, have alike."""

from __future__ import annotations

from isotherm.connector.attestation.attester import Attester
from isotherm.connector.state.status import this_process
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.access.connection_limits import ConnectionLimits
from isotherm.mqtt_proxy.commands.dispatcher import CommandDispatcher
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.hotpath import attested_runs
from isotherm.mqtt_proxy.ingest.topic_encoders import TopicEncoders
from isotherm.mqtt_proxy.server.connect_handler import ConnectHandler
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.server.session_manager import SessionManager
from isotherm.mqtt_proxy.server.wills import WillScheduler
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.sessions.store import SessionStore
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.avro import SchemaRegistry


def build_server(
    settings: ProxySettings,
    *,
    pipeline: IngestPipeline,
    sessions: SessionStore,
    access: AccessControl,
    migration: SessionMigration | None = None,
    commands: CommandDispatcher | None = None,
) -> Server:
    """Compose the MQTT server of a process. `migration` is given when it is one of several, `commands` to send some."""
    limits, max_expiry_s = settings.limits, settings.session.expiry_s
    connection_limits = ConnectionLimits(limits, pipeline.metrics)
    wills = WillScheduler(limits=limits, sessions=sessions, pipeline=pipeline, access=access)
    manager = SessionManager(sessions=sessions, writer=pipeline.transactions, wills=wills, max_expiry_s=max_expiry_s)
    if migration is not None:
        migration.on_yield = manager.on_yield
    return Server(
        limits=limits,
        listener=settings.listener,
        pipeline=pipeline,
        access=access,
        connection_limits=connection_limits,
        wills=wills,
        sessions=manager,
        connect_handler=ConnectHandler(
            limits=limits,
            access=access,
            connection_limits=connection_limits,
            sessions=sessions,
            writer=pipeline.transactions,
            wills=wills,
            max_expiry_s=max_expiry_s,
            migration=migration,
            takes_subscriptions=commands is not None,
        ),
        migration=migration,
        commands=commands,
    )


def build_attester(settings: ProxySettings, registry: SchemaRegistry, topics: TopicEncoders) -> Attester:
    """Return what attests the readings that a process has acknowledged."""
    return Attester(
        registry,
        SERVICE,
        this_process(),
        interval_ms=settings.attestations.interval_ms,
        is_attested=lambda topic: topic in topics.encoders,
        make_runs=attested_runs,
    )

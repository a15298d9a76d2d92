"""The MQTT source as a connector class: translates its configuration into the settings of a bridge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    with_short_names,
)
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Problem,
    Validated,
    examine,
)
from isotherm.connector.distributed.controller import TaskPlan, task_plan
from isotherm.kcql import KcqlError
from isotherm.mqtt_proxy.ingest.routes import CLAUSES, RouteError, kcql_routes
from isotherm.mqtt_proxy.sections.bridge import BridgeSettings
from isotherm.mqtt_proxy.settings import ProxySettings

CLASS = "isotherm.MqttSource"
PREFIX = "connect.mqtt"
VERSION = version("isotherm-mqtt-proxy")
HOSTS, KCQL, GROUP = f"{PREFIX}.hosts", f"{PREFIX}.kcql", f"{PREFIX}.group"
_LOW = Importance.LOW
_PORTS = {"tcp": 1883, "mqtt": 1883, "ssl": 8883, "mqtts": 8883}
_SECURE = ("ssl", "mqtts")
_DEAD_LETTER_TOPIC, _DEAD_LETTERS = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.enable"


def _without_effect(suffix: str, why: str) -> Key:
    return Key(f"{PREFIX}.{suffix}", Type.STRING, "", "Accepted for old configuration files.", _LOW, without_effect=why)


DEFINITION = Definition(
    klass=CLASS,
    kind="source",
    aliases=("com.datamountaineer.streamreactor.connect.mqtt.source.MqttSourceConnector", "mqtt"),
    kcql_key=KCQL,
    kcql_clauses=CLAUSES,
    keys=with_short_names(
        PREFIX,
        (
            *common_keys(CLASS),
            Key(
                HOSTS,
                Type.STRING,
                None,
                "The broker: `tcp://host:port` or `ssl://host:port`.",
                Importance.HIGH,
                required=True,
            ),
            Key(
                KCQL,
                Type.STRING,
                None,
                "Statements `INSERT INTO topic SELECT fields FROM mqtt/filter`, separated by `;`.",
                Importance.HIGH,
                required=True,
            ),
            Key(f"{PREFIX}.username", Type.STRING, "", "User name at the broker."),
            Key(f"{PREFIX}.password", Type.PASSWORD, "", "Its password."),
            Key(
                f"{PREFIX}.client.id",
                Type.STRING,
                "",
                "Client id at the broker, to which `-N` is added for task N; default: the name.",
            ),
            Key(
                GROUP,
                Type.STRING,
                None,
                "Shared subscription `$share/group/filter` of the tasks; default: the name. Empty for none: one task.",
            ),
            Key(f"{PREFIX}.ssl.ca.cert", Type.STRING, "", "PEM file of the authorities to trust."),
            Key(f"{PREFIX}.ssl.cert", Type.STRING, "", "PEM file of our client certificate."),
            Key(f"{PREFIX}.ssl.key", Type.STRING, "", "PEM file of its key."),
            Key(
                f"{PREFIX}.timeout", Type.LONG, "10000", "Longest time for connecting and subscribing, ms.", minimum=100
            ),
            Key(
                f"{PREFIX}.keep.alive",
                Type.LONG,
                "30000",
                "A silent connection is closed after twice this time, ms.",
                _LOW,
                minimum=5000,
                maximum=65_535_000,
            ),
            Key(
                f"{PREFIX}.session.expiry.ms",
                Type.LONG,
                "86400000",
                "How long the broker keeps messages while the bridge is away.",
                minimum=0,
            ),
            Key(_DEAD_LETTER_TOPIC, Type.STRING, "", "Dead-letter topic.", aliases=("dead.letters.topic",)),
            Key(
                _DEAD_LETTERS,
                Type.BOOLEAN,
                "false",
                "Store dead letters in `<name>.dead-letters` and not in the service's topic.",
                aliases=("dead.letters",),
            ),
            _without_effect("service.quality", "the subscription is QoS 1: at least once"),
            _without_effect("clean", "the broker always keeps the session"),
            _without_effect("polling.timeout", "messages are stored as they arrive"),
            _without_effect("converter.throw.on.error", "an invalid message becomes a dead letter"),
            _without_effect("share.replicate", "all tasks share all statements"),
            _without_effect("log.message", "messages are not logged"),
            _without_effect("process.duplicates", "a repeated message was not acknowledged before"),
        ),
    ),
)


class MqttClasses:
    """The only connector class of this service."""

    definitions: Sequence[Definition] = (DEFINITION,)
    version = VERSION

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """Check a configuration without asking the broker; return its tasks. Raises ConfigError."""
        validated, bridge = bridge_settings(config.resolved(os.environ), self._settings)
        return task_plan(validated, validated.integer("tasks.max") if bridge.bridge.group else 1)


def bridge_settings(config: ConnectorConfig, settings: ProxySettings) -> tuple[Validated, ProxySettings]:
    """Return the validated configuration and the settings of the bridge that it configures.

    Limits, units and everything else that the configuration does not set comes from the service's `settings`. Raises
    InvalidConfigError with every problem.
    """
    validated, problems = examine(DEFINITION, config)
    broker, wrong = _broker(validated)
    problems += [*wrong, *_route_problems(validated, settings)]
    if problems:
        raise InvalidConfigError(problems, validated.notices)
    try:
        bridge = BridgeSettings.model_validate({**settings.bridge.model_dump(), **_bridge(validated), **broker})
    except ValidationError as error:
        found = [Problem(PREFIX, f"{'.'.join(map(str, one['loc']))}: {one['msg']}") for one in error.errors()]
        raise InvalidConfigError(found, validated.notices) from None
    dead_letter_topic = validated.text(_DEAD_LETTER_TOPIC)
    if not dead_letter_topic and validated.flag(_DEAD_LETTERS):
        dead_letter_topic = f"{validated.name}.dead-letters"
    return validated, settings.model_copy(
        update={
            "role": "bridge",
            "routes": validated.text(KCQL),
            "topic_regex_list": "",
            "bridge": bridge,
            "dead_letter_topic": dead_letter_topic or settings.dead_letter_topic,
        }
    )


def _broker(config: Validated) -> tuple[dict[str, Any], list[Problem]]:
    given = config.text(HOSTS)
    if not given:
        return {}, []
    if "@" in given:
        # The address may hold a password, so the message repeats nothing of it.
        return {}, [Problem(HOSTS, f"holds a user before '@'; these belong to {PREFIX}.username and {PREFIX}.password")]
    if "," in given:
        return {}, [Problem(HOSTS, f"{given!r}: expected one address; a cluster needs one name for all of its brokers")]
    try:
        address = urlsplit(given if "//" in given else f"tcp://{given}")
        host, port = address.hostname, address.port
    except ValueError as error:
        return {}, [Problem(HOSTS, f"{given!r}: {error}")]
    if address.scheme not in _PORTS or not host:
        return {}, [Problem(HOSTS, f"{given!r} is not allowed; expected {', '.join(_PORTS)}, as in tcp://host:1883")]
    secured, has_ca = address.scheme in _SECURE, bool(config.text(f"{PREFIX}.ssl.ca.cert"))
    if secured != has_ca:
        return {}, [Problem(f"{PREFIX}.ssl.ca.cert", "belongs to an ssl:// broker, and is needed for it")]
    return {"host": host, "port": port or _PORTS[address.scheme]}, []


def _bridge(config: Validated) -> dict[str, Any]:
    def text(suffix: str) -> str | None:
        return config.text(f"{PREFIX}.{suffix}") or None

    return {
        "client_id": text("client.id") or config.name,
        "username": text("username"),
        "password": text("password"),
        "cafile": text("ssl.ca.cert"),
        "certfile": text("ssl.cert"),
        "keyfile": text("ssl.key"),
        "filters": [],
        "group": config.text(GROUP) if GROUP in config.given else config.name,
        "session_expiry_s": config.integer(f"{PREFIX}.session.expiry.ms") // 1000,
        "keep_alive_s": config.integer(f"{PREFIX}.keep.alive") // 1000,
        "connect_timeout_ms": config.integer(f"{PREFIX}.timeout"),
    }


def _route_problems(config: Validated, settings: ProxySettings) -> list[Problem]:
    if not config.statements:
        return []
    try:
        kcql_routes(config.text(KCQL), device_level=settings.device_level, metrics=frozenset(settings.units))
    except (KcqlError, RouteError) as error:
        return [Problem(KCQL, str(error))]
    return []

"""The connector class that this service hosts: its keys, those of the old chain among them, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import payloads
from coap_ingest.resource import AddressError, Server, parse_server
from coap_ingest.routes import Route, compile_routes
from connector.config import ConnectorConfig
from connector.definitions import Definition, Importance, Key, Type, common_keys
from connector.validation import InvalidConfigError, Problem, Validated, validate

CLASS = "isotherm.CoapSource"
URI, KCQL = "connect.coap.uri", "connect.coap.kcql"
DEAD_LETTER_TOPIC, DEAD_LETTERS = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.enable"

_SECURITY = (
    "username",
    "password",
    "private.key.file",
    "public.key.file",
    "keystore.path",
    "keystore.pass",
    "truststore.path",
    "truststore.pass",
    "certs",
    "cert.chain.key",
)
_NO_EFFECT = {
    "host": "the system chooses the local address",
    "port": "the system chooses the local port",
    "batch.size": "the producer batches by itself",
    "error.policy": "a payload that cannot be used becomes a dead letter, and nothing is stopped by it",
    "max.retries": "everything is retried without end",
    "retry.interval": "waits between attempts are settings of the service",
}


def _key(suffix: str, type_: Type, default: str | None, doc: str, **more: object) -> Key:
    aliases = (f"connect.coap.source.{suffix}",)
    return Key(f"connect.coap.{suffix}", type_, default, doc, aliases=aliases, **more)  # type: ignore[arg-type]  # fields of Key


DEFINITION = Definition(
    klass=CLASS,
    kind="source",
    keys=(
        *common_keys(CLASS),
        _key("uri", Type.STRING, None, "The server, `coap://host:port`.", importance=Importance.HIGH, required=True),
        _key(
            "kcql",
            Type.STRING,
            None,
            "Statements `INSERT INTO topic SELECT fields FROM resource`, separated by `;`.",
            importance=Importance.HIGH,
            required=True,
        ),
        Key(
            DEAD_LETTER_TOPIC,
            Type.STRING,
            "",
            "Topic for payloads that cannot be used.",
            aliases=("dead.letters.topic",),
        ),
        Key(
            DEAD_LETTERS,
            Type.BOOLEAN,
            "false",
            "Dead letters go to `<name>.dead-letters` instead of the service's own topic.",
            aliases=("dead.letters",),
        ),
        *(_key(suffix, Type.STRING, None, "Accepted.", without_effect=why) for suffix, why in _NO_EFFECT.items()),
        Key(
            "connect.source.linger.ms",
            Type.LONG,
            None,
            "Accepted.",
            without_effect="every notification is sent at once",
        ),
        Key("connect.progress.enabled", Type.BOOLEAN, None, "Accepted.", without_effect="see /metrics"),
        *(_key(suffix, Type.PASSWORD, None, "DTLS; refused by this version.") for suffix in _SECURITY),
    ),
    aliases=(
        "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector",
        "io.lenses.streamreactor.connect.coap.source.CoapSourceConnector",
        "com.datamountaineer.streamreactor.connect.coap.source.CoapSecureSourceConnector",
        "coap-source",
    ),
    kcql_key=KCQL,
    kcql_clauses=frozenset(("IGNORE", "WITHFORMAT")),
    clause_reasons=(("WITHKEY", "readings are keyed by device, messages by resource"),),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A connector, ready to run."""

    name: str
    server: Server
    routes: tuple[Route, ...]
    dead_letter_topic: str
    notices: tuple[Problem, ...]


def plan(config: ConnectorConfig, *, units: Mapping[str, str], limits: payloads.Limits, dead_letter_topic: str) -> Plan:
    """Check a connector's configuration and compile it; `dead_letter_topic` is the service's own.

    Raises InvalidConfigError with every problem found.
    """
    validated = validate(DEFINITION, config)
    problems = [
        Problem(f"connect.coap.{suffix}", "DTLS is not supported by this version: observe over coap://")
        for suffix in _SECURITY
        if f"connect.coap.{suffix}" in validated.given
    ]
    try:
        server = parse_server(validated.text(URI))
    except AddressError as error:
        raise InvalidConfigError([Problem(URI, str(error)), *problems], validated.notices) from None
    routes, wrong = compile_routes(validated.statements, server, key=KCQL, units=units, limits=limits)
    if problems or wrong:
        raise InvalidConfigError([*problems, *wrong], validated.notices)
    return Plan(
        validated.name, server, tuple(routes), _dead_letter_topic(validated, dead_letter_topic), validated.notices
    )


def _dead_letter_topic(validated: Validated, default: str) -> str:
    if validated.text(DEAD_LETTER_TOPIC):
        return validated.text(DEAD_LETTER_TOPIC)
    return f"{validated.name}.dead-letters" if validated.flag(DEAD_LETTERS) else default

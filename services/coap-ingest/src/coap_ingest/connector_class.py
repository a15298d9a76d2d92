"""The connector class that this service hosts: its keys, those of the old chain among them, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import payloads
from coap_ingest.admission import Rate, parse_rate
from coap_ingest.client import PreSharedKey
from coap_ingest.discovery import Filters
from coap_ingest.resource import AddressError, Server, parse_server
from coap_ingest.routes import Rule, compile_rules
from connector.config import ConnectorConfig
from connector.definitions import Definition, Importance, Key, Type, common_keys
from connector.validation import InvalidConfigError, Problem, Validated, validate

CLASS = "isotherm.CoapSource"
URI, KCQL = "connect.coap.uri", "connect.coap.kcql"
LISTEN, LISTEN_RATE, LISTEN_TIMEOUT = (
    "connect.coap.listen",
    "connect.coap.listen.rate.limit",
    "connect.coap.listen.timeout.ms",
)
DEAD_LETTER_TOPIC, DEAD_LETTERS = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.enable"

IDENTITY, PRE_SHARED_KEY = "connect.coap.username", "connect.coap.password"
DISCOVERY_TYPES, DISCOVERY_INTERFACES = "connect.coap.discovery.rt", "connect.coap.discovery.if"
DISCOVERY_OBSERVABLE, DISCOVERY_INTERVAL = "connect.coap.discovery.obs", "connect.coap.discovery.interval.ms"

_CERTIFICATES = (
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
        _key(
            "uri",
            Type.LIST,
            None,
            "The servers, separated by commas: `coap://host:port`, `coap+tcp://`, `coaps://`.",
            importance=Importance.HIGH,
        ),
        Key(
            LISTEN,
            Type.STRING,
            None,
            "Instead of servers to observe: the address that devices POST and PUT to, `coap://127.0.0.1:5683`.",
            importance=Importance.HIGH,
        ),
        Key(LISTEN_RATE, Type.STRING, "100:1", "Requests of one device, `n:seconds`; more are answered 4.29."),
        Key(LISTEN_TIMEOUT, Type.LONG, "10000", "After so long without Kafka: 5.03.", minimum=1000, maximum=60000),
        _key(
            "kcql",
            Type.STRING,
            None,
            "Statements `INSERT INTO topic SELECT fields FROM resource`, separated by `;`. A `*` in the resource "
            "stands for a part of a segment, `*` alone for everything: these are discovered.",
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
        _key("username", Type.STRING, None, "DTLS: the identity that belongs to the pre-shared key."),
        _key("password", Type.PASSWORD, None, "DTLS: the pre-shared key, as text."),
        Key(
            DISCOVERY_TYPES,
            Type.LIST,
            "",
            "Discovered resources must have one of these resource types; `temp*` is a prefix.",
        ),
        Key(DISCOVERY_INTERFACES, Type.LIST, "", "Discovered resources must have one of these interfaces."),
        Key(
            DISCOVERY_OBSERVABLE, Type.BOOLEAN, "true", "Only what says that it can be observed; false polls the rest."
        ),
        Key(DISCOVERY_INTERVAL, Type.LONG, "60000", "Servers are asked again for their resources.", minimum=100),
        *(_key(suffix, Type.PASSWORD, None, "Refused: see username, password.") for suffix in _CERTIFICATES),
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
class Listen:
    """Where and how devices may send."""

    server: Server
    rate: Rate
    timeout_ms: int
    """How long a request waits for Kafka's acknowledgement."""

    @property
    def stalled_after_ms(self) -> float:
        """When something waits for so long, the next requests are not even tried."""
        return self.timeout_ms / 2


@dataclass(frozen=True, slots=True)
class Plan:
    """A connector, ready to run."""

    name: str
    servers: tuple[Server, ...]
    rules: tuple[Rule, ...]
    filters: Filters
    discovery_interval_ms: int
    psk: PreSharedKey | None
    listen: Listen | None
    dead_letter_topic: str
    notices: tuple[Problem, ...]


def plan(config: ConnectorConfig, *, units: Mapping[str, str], limits: payloads.Limits, dead_letter_topic: str) -> Plan:
    """Check a connector's configuration and compile it; `dead_letter_topic` is the service's own.

    Raises InvalidConfigError with every problem found.
    """
    validated = validate(DEFINITION, config)
    servers, problems = _servers(validated)
    problems += _security(validated, servers)
    listen, unheard = _listen(validated)
    problems += unheard
    rules, wrong = compile_rules(validated.statements, key=KCQL, units=units, limits=limits)
    if problems or wrong:
        raise InvalidConfigError([*problems, *wrong], validated.notices)
    identity, key = validated.text(IDENTITY).encode(), validated.text(PRE_SHARED_KEY).encode()
    return Plan(
        name=validated.name,
        servers=tuple(servers),
        rules=tuple(rules),
        filters=Filters(
            tuple(validated.items(DISCOVERY_TYPES)),
            tuple(validated.items(DISCOVERY_INTERFACES)),
            validated.flag(DISCOVERY_OBSERVABLE),
        ),
        discovery_interval_ms=validated.integer(DISCOVERY_INTERVAL),
        psk=PreSharedKey(identity, key) if key else None,
        listen=listen,
        dead_letter_topic=_dead_letter_topic(validated, dead_letter_topic),
        notices=validated.notices,
    )


def _servers(validated: Validated) -> tuple[list[Server], list[Problem]]:
    servers: dict[Server, None] = {}
    problems = []
    for uri in validated.items(URI):
        try:
            servers[parse_server(uri)] = None
        except AddressError as error:
            problems.append(Problem(URI, str(error)))
    return list(servers), problems


def _listen(validated: Validated) -> tuple[Listen | None, list[Problem]]:
    if LISTEN not in validated.given:
        missing = Problem(URI, f"missing: the servers to observe, or {LISTEN} for devices that send by themselves")
        return None, [] if validated.items(URI) else [missing]
    if URI in validated.given:
        return None, [Problem(LISTEN, f"not together with {URI}: FROM names resources there or here; use two files")]
    try:
        server, rate = parse_server(validated.text(LISTEN)), parse_rate(validated.text(LISTEN_RATE))
    except AddressError as error:
        return None, [Problem(LISTEN, str(error))]
    except ValueError as error:
        return None, [Problem(LISTEN_RATE, str(error))]
    if server.scheme != "coap":
        why = "over UDP only: the library's DTLS server keeps memory for every address that ever sent a datagram"
        return None, [Problem(LISTEN, f"{server.base!r}: devices can send {why}; allowed: coap")]
    return Listen(server, rate, validated.integer(LISTEN_TIMEOUT)), []


def _security(validated: Validated, servers: list[Server]) -> list[Problem]:
    problems = [
        Problem(
            f"connect.coap.{suffix}",
            "certificates and raw public keys are not supported; DTLS takes a pre-shared "
            f"key: {IDENTITY} and {PRE_SHARED_KEY}",
        )
        for suffix in _CERTIFICATES
        if f"connect.coap.{suffix}" in validated.given
    ]
    is_secured = any(server.scheme == "coaps" for server in servers)
    for key in (IDENTITY, PRE_SHARED_KEY):
        if is_secured and not validated.text(key):
            problems.append(Problem(key, "missing: a coaps:// server wants a pre-shared key and its identity"))
        elif servers and not is_secured and key in validated.given:
            problems.append(Problem(key, f"has a meaning for coaps:// only, and no server of {URI} is one"))
    return problems


def _dead_letter_topic(validated: Validated, default: str) -> str:
    if validated.text(DEAD_LETTER_TOPIC):
        return validated.text(DEAD_LETTER_TOPIC)
    return f"{validated.name}.dead-letters" if validated.flag(DEAD_LETTERS) else default

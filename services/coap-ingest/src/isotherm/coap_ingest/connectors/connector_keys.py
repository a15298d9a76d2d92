"""The configuration keys of the connector class, with those of stream-reactor's CoAP source."""

from __future__ import annotations

from dataclasses import replace

from isotherm.coap_ingest.ingest.routes import Values
from isotherm.coap_ingest.listener.identity import IDENTITY_KEY, IdentityPolicy
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    error_keys,
)

CLASS = "isotherm.CoapSource"
URI, KCQL = "connect.coap.uri", "connect.coap.kcql"
LISTEN, LISTEN_RATE, LISTEN_TIMEOUT = (
    "connect.coap.listen",
    "connect.coap.listen.rate.limit",
    "connect.coap.listen.timeout.ms",
)
LISTEN_KEYS = "connect.coap.listen.psk"
LISTEN_ACL = "connect.coap.listen.acl"
DEAD_LETTER_TOPIC, DEAD_LETTERS = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.enable"

ERROR_POLICY, MAX_RETRIES, RETRY_INTERVAL = (
    "connect.coap.error.policy",
    "connect.coap.max.retries",
    "connect.coap.retry.interval",
)
TOLERANCE = "errors.tolerance"
VALUE_CONVERTER, VALUE_SCHEMAS = "value.converter", "value.converter.schemas.enable"
MESSAGE_KEY = "connect.coap.message.key"

IDENTITY, PRE_SHARED_KEY = "connect.coap.username", "connect.coap.password"
DISCOVERY_TYPES, DISCOVERY_INTERFACES = "connect.coap.discovery.rt", "connect.coap.discovery.if"
DISCOVERY_OBSERVABLE, DISCOVERY_INTERVAL = "connect.coap.discovery.obs", "connect.coap.discovery.interval.ms"

CERTIFICATES = (
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
}

JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
CONVERTERS = {
    "avro": Values.AVRO,
    "io.confluent.connect.avro.AvroConverter": Values.AVRO,
    "json": Values.JSON,
    JSON_CONVERTER: Values.JSON,
}
"""The allowed values of `value.converter`."""
_REGISTRY = "the registry is the service's own (registry.url)"
_CONVERTERS_NO_EFFECT = {
    "schema.registry.url": _REGISTRY,
    "basic.auth.user.info": _REGISTRY,
    "basic.auth.credentials.source": _REGISTRY,
    "auto.register.schemas": "topics have the schemas of their declaration",
    "schemas.cache.size": "every schema is kept",
}
"""Keys of Connect's converters below `value.converter`, with the reason why they have no effect."""
_ERROR_DOCS = {
    ERROR_POLICY: "What happens to an invalid payload: NOOP makes it a dead letter and goes on, THROW makes it a dead "
    "letter and ends the service, RETRY is NOOP with a limit on the attempts to write to Kafka.",
    MAX_RETRIES: "Under RETRY: further attempts of a write that Kafka refused; -1 means no limit. An outage of Kafka "
    "has no limit.",
    RETRY_INTERVAL: "Longest wait between two attempts of a write that Kafka refused, in ms.",
}


def _error_keys() -> tuple[Key, ...]:
    """Return the error keys; unlike a sink, this source defaults to NOOP, because sensors send nothing twice."""
    return tuple(
        replace(key, doc=_ERROR_DOCS[key.name], default="NOOP" if key.name == ERROR_POLICY else key.default)
        for key in error_keys("connect.coap", "connect.coap.source")
    )


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
            "Instead of servers to observe: the address to which devices POST and PUT, `coap://127.0.0.1:5683` or "
            "`coaps://`.",
            importance=Importance.HIGH,
        ),
        Key(LISTEN_RATE, Type.STRING, "100:1", "Requests of one device, `n:seconds`; the answer to more is 4.29."),
        Key(
            LISTEN_KEYS,
            Type.PASSWORD,
            None,
            "For a `coaps://` listener: the devices' identities and keys, `identity:key` separated by commas or lines, "
            "usually from a file: `${file:PATH:KEY}`. Bytes are written `hex:0a1b`, in keys also `base64:Cg==`.",
        ),
        Key(
            IDENTITY_KEY,
            Type.STRING,
            "auto",
            "Where a record's device comes from: payload (a sender may write in the name of any device), topic (the "
            "segment of the path that `*` stands for), user (the identity of the sender's key). The answer to a "
            "payload that names another device is 4.03. auto: over `coaps://` topic with an ACL, else user; over "
            "`coap://` payload.",
            allowed=("auto", *(policy.value for policy in IdentityPolicy)),
        ),
        Key(
            LISTEN_ACL,
            Type.STRING,
            "",
            "For a `coaps://` listener: the paths to which each identity may send, `identity: path, path` separated by "
            "semicolons or lines; `*` as in FROM, `%u` is the identity, the identity `*` is everybody. The answer on "
            "other paths is 4.03. Empty: every path that a statement reads.",
        ),
        Key(
            LISTEN_TIMEOUT,
            Type.LONG,
            "10000",
            "After this time without Kafka the answer is 5.03, in ms.",
            minimum=1000,
            maximum=60000,
        ),
        _key(
            "kcql",
            Type.STRING,
            None,
            "Statements `INSERT INTO topic SELECT fields FROM resource`, separated by `;`. A `*` in the resource "
            "stands for a part of a segment, `*` alone for everything; discovery finds such resources.",
            importance=Importance.HIGH,
            required=True,
        ),
        Key(
            DEAD_LETTER_TOPIC,
            Type.STRING,
            "",
            "Topic for invalid payloads.",
            aliases=("dead.letters.topic",),
        ),
        Key(
            DEAD_LETTERS,
            Type.BOOLEAN,
            "false",
            "Dead letters go to `<name>.dead-letters` instead of the service's own topic.",
            aliases=("dead.letters",),
        ),
        Key(TOLERANCE, Type.STRING, "none", "all: nothing stops the service, not even THROW.", allowed=("none", "all")),
        *_error_keys(),
        Key(
            VALUE_CONVERTER,
            Type.STRING,
            "avro",
            "Encoding of values: avro or json, or Connect's AvroConverter or JsonConverter. JSON goes to topics that "
            "are not declared.",
            allowed=tuple(CONVERTERS),
        ),
        Key(
            VALUE_SCHEMAS,
            Type.BOOLEAN,
            None,
            f"JSON values are `{{schema, payload}}` envelopes; by default true for {JSON_CONVERTER}, as in Connect, "
            "and false for json.",
            Importance.LOW,
        ),
        *(
            Key(f"{VALUE_CONVERTER}.{name}", Type.STRING, None, "Accepted.", Importance.LOW, without_effect=why)
            for name, why in _CONVERTERS_NO_EFFECT.items()
        ),
        Key("key.converter", Type.STRING, None, "Accepted.", without_effect="keys are text"),
        Key(
            MESSAGE_KEY,
            Type.STRING,
            "auto",
            "Key of complete messages without WITHKEY: the resource's address, or the device (the observed server; "
            "the sender, over DTLS its identity). auto: the resource when observing, the device when listening.",
            allowed=("auto", "resource", "device"),
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
        _key("username", Type.STRING, None, "DTLS: the identity of the pre-shared key; bytes as `hex:0a1b`."),
        _key(
            "password", Type.PASSWORD, None, "DTLS: the pre-shared key: text, or bytes as `hex:0a1b` or `base64:Cg==`."
        ),
        Key(
            DISCOVERY_TYPES,
            Type.LIST,
            "",
            "Discovered resources must have one of these resource types; `temp*` is a prefix.",
        ),
        Key(DISCOVERY_INTERFACES, Type.LIST, "", "Discovered resources must have one of these interfaces."),
        Key(DISCOVERY_OBSERVABLE, Type.BOOLEAN, "true", "Only resources marked observable; false polls the others."),
        Key(
            DISCOVERY_INTERVAL,
            Type.LONG,
            "60000",
            "Interval between two requests for a server's resources, in ms.",
            minimum=100,
        ),
        *(_key(suffix, Type.PASSWORD, None, "Refused: see username, password.") for suffix in CERTIFICATES),
    ),
    aliases=(
        "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector",
        "io.lenses.streamreactor.connect.coap.source.CoapSourceConnector",
        "com.datamountaineer.streamreactor.connect.coap.source.CoapSecureSourceConnector",
        "coap-source",
    ),
    kcql_key=KCQL,
    kcql_clauses=frozenset(("IGNORE", "WHERE", "WITHFORMAT", "WITHKEY", "KEYDELIMITER")),
)

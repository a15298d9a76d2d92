"""The connector class that this service hosts: a configuration, checked, as a plan that can be run."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isotherm import payloads
from isotherm.coap_ingest.coap.psk import PreSharedKey, parse_keys, pre_shared_key
from isotherm.coap_ingest.coap.resource import AddressError, Server, parse_server
from isotherm.coap_ingest.connectors import connector_keys as keys
from isotherm.coap_ingest.ingest.routes import (
    MessageKey,
    Rule,
    Values,
    compile_rules,
)
from isotherm.coap_ingest.listener.identity import IdentityPolicy, PathAcl, parse_acl
from isotherm.coap_ingest.listener.rate_limits import Rate, parse_rate
from isotherm.coap_ingest.observe.discovery import Filters
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Problem,
    Validated,
    validate,
)
from isotherm.connector.errors.policies import ErrorPolicy, Policy

_ANY_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # they are refused


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and how devices may send."""

    server: Server
    rate: Rate
    timeout_ms: int
    """How long a request waits for Kafka's acknowledgement."""
    keys: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """Over DTLS: the devices' pre-shared keys by identity."""
    identity: IdentityPolicy = IdentityPolicy.PAYLOAD
    acl: PathAcl | None = None

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
    errors: ErrorPolicy
    notices: tuple[Problem, ...]


def plan(
    config: ConnectorConfig,
    *,
    units: Mapping[str, str],
    limits: payloads.Limits,
    dead_letter_topic: str,
    allow_anonymous: bool = False,
) -> Plan:
    """Check a connector's configuration and compile it; `dead_letter_topic` is the service's own.

    With `allow_anonymous` a listener without DTLS may have another address than loopback.

    Raises InvalidConfigError with every problem found.
    """
    validated = validate(keys.DEFINITION, config)
    servers, problems = _servers(validated)
    psk, insecure = _security(validated, servers)
    problems += insecure
    listen, unheard = _listen(validated, allow_anonymous=allow_anonymous)
    problems += unheard
    rules, wrong = compile_rules(
        validated.statements,
        key=keys.KCQL,
        units=units,
        limits=limits,
        values=_values(validated),
        message_key=_message_key(validated),
    )
    problems += _keys_from_payloads(listen, rules)
    if problems or wrong:
        raise InvalidConfigError([*problems, *wrong], validated.notices)
    return Plan(
        name=validated.name,
        servers=tuple(servers),
        rules=tuple(rules),
        filters=Filters(
            tuple(validated.items(keys.DISCOVERY_TYPES)),
            tuple(validated.items(keys.DISCOVERY_INTERFACES)),
            validated.flag(keys.DISCOVERY_OBSERVABLE),
        ),
        discovery_interval_ms=validated.integer(keys.DISCOVERY_INTERVAL),
        psk=psk,
        listen=listen,
        dead_letter_topic=_dead_letter_topic(validated, dead_letter_topic),
        errors=ErrorPolicy(
            Policy[validated.text(keys.ERROR_POLICY).upper()],
            validated.integer(keys.MAX_RETRIES),
            validated.integer(keys.RETRY_INTERVAL),
            tolerate_all=validated.text(keys.TOLERANCE).lower() == "all",
            dead_letters=True,
        ),
        notices=validated.notices,
    )


def _servers(validated: Validated) -> tuple[list[Server], list[Problem]]:
    servers: dict[Server, None] = {}
    problems = []
    for uri in validated.items(keys.URI):
        try:
            servers[parse_server(uri)] = None
        except AddressError as error:
            problems.append(Problem(keys.URI, str(error)))
    return list(servers), problems


def _listen(validated: Validated, *, allow_anonymous: bool) -> tuple[Listen | None, list[Problem]]:
    if keys.LISTEN not in validated.given:
        missing = Problem(
            keys.URI, f"missing: the servers to observe, or {keys.LISTEN} for devices that send by themselves"
        )
        return None, [] if validated.items(keys.URI) else [missing]
    if keys.URI in validated.given:
        return None, [
            Problem(keys.LISTEN, f"not together with {keys.URI}: FROM names resources there or here; use two files")
        ]
    try:
        server, rate = parse_server(validated.text(keys.LISTEN)), parse_rate(validated.text(keys.LISTEN_RATE))
    except AddressError as error:
        return None, [Problem(keys.LISTEN, str(error))]
    except ValueError as error:
        return None, [Problem(keys.LISTEN_RATE, str(error))]
    device_keys, problems = _device_keys(validated, server)
    if server.scheme == "coap" and not (allow_anonymous or _is_loopback(server.host)):
        why = (
            f"{server.base!r} is reached from other machines, and over coap:// nobody says who he is: name a coaps:// "
            f"address with {keys.LISTEN_KEYS}, an address of loopback, or set allow_anonymous=true"
        )
        problems.append(Problem(keys.LISTEN, why))
    policy, acl, unclear = _identity(validated, is_secured=server.scheme == "coaps")
    timeout_ms = validated.integer(keys.LISTEN_TIMEOUT)
    return Listen(server, rate, timeout_ms, device_keys, policy, acl), [*problems, *unclear]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _identity(validated: Validated, *, is_secured: bool) -> tuple[IdentityPolicy, PathAcl | None, list[Problem]]:
    said, acl = validated.text(keys.LISTEN_IDENTITY).lower(), None
    has_acl = bool(validated.text(keys.LISTEN_ACL))
    if said != "auto":
        policy = IdentityPolicy(said)
    elif is_secured:
        policy = IdentityPolicy.TOPIC if has_acl else IdentityPolicy.USER
    else:
        policy = IdentityPolicy.PAYLOAD
    problems = []
    if policy is IdentityPolicy.USER and not is_secured:
        problems.append(Problem(keys.LISTEN_IDENTITY, "user has a meaning for a coaps:// listener only"))
    if has_acl and not is_secured:
        problems.append(Problem(keys.LISTEN_ACL, "has a meaning for a coaps:// listener only"))
    elif has_acl:
        try:
            acl = parse_acl(validated.text(keys.LISTEN_ACL))
        except ValueError as error:
            problems.append(Problem(keys.LISTEN_ACL, str(error)))
    elif policy is IdentityPolicy.TOPIC and is_secured:
        why = "missing: with identity = topic every device could send to the paths of the others"
        problems.append(Problem(keys.LISTEN_ACL, why))
    return policy, acl, problems


def _keys_from_payloads(listen: Listen | None, rules: Sequence[Rule]) -> list[Problem]:
    """A key that the payload names could be another device's."""
    if listen is None or listen.identity is IdentityPolicy.PAYLOAD:
        return []
    why = f"WITHKEY takes the key from the payload, {keys.LISTEN_IDENTITY} = {listen.identity.value} does not (in"
    return [Problem(keys.KCQL, f"{why} {rule.statement.text!r})") for rule in rules if rule.statement.with_key]


def _device_keys(validated: Validated, server: Server) -> tuple[Mapping[bytes, bytes], list[Problem]]:
    if server.scheme not in ("coap", "coaps"):
        why = f"{server.base!r}: devices can send over UDP and DTLS only; allowed: coap, coaps"
        return {}, [Problem(keys.LISTEN, why)]
    if server.scheme == "coap":
        is_given = keys.LISTEN_KEYS in validated.given
        return {}, [Problem(keys.LISTEN_KEYS, "has a meaning for a coaps:// listener only")] if is_given else []
    if server.host in _ANY_ADDRESSES:
        return {}, [Problem(keys.LISTEN, f"{server.base!r}: over DTLS the library listens on one address; name it")]
    try:
        return parse_keys(validated.text(keys.LISTEN_KEYS)), []
    except ValueError as error:
        return {}, [Problem(keys.LISTEN_KEYS, str(error))]


def _security(validated: Validated, servers: list[Server]) -> tuple[PreSharedKey | None, list[Problem]]:
    problems = [
        Problem(
            f"connect.coap.{suffix}",
            "certificates and raw public keys are not supported; DTLS takes a pre-shared "
            f"key: {keys.IDENTITY} and {keys.PRE_SHARED_KEY}",
        )
        for suffix in keys.CERTIFICATES
        if f"connect.coap.{suffix}" in validated.given
    ]
    is_secured = any(server.scheme == "coaps" for server in servers)
    for key in (keys.IDENTITY, keys.PRE_SHARED_KEY):
        if is_secured and not validated.text(key):
            problems.append(Problem(key, "missing: a coaps:// server wants a pre-shared key and its identity"))
        elif not is_secured and key in validated.given:
            problems.append(Problem(key, f"has a meaning for coaps:// only, and no server of {keys.URI} is one"))
    if problems or not is_secured:
        return None, problems
    try:
        return pre_shared_key(validated.text(keys.IDENTITY), validated.text(keys.PRE_SHARED_KEY)), []
    except ValueError as error:
        return None, [Problem(keys.PRE_SHARED_KEY, str(error))]


def _values(validated: Validated) -> Values:
    said = validated.text(keys.VALUE_CONVERTER).lower()
    values = next(values for name, values in keys.CONVERTERS.items() if name.lower() == said)
    if values is not Values.JSON:
        return values
    is_connects = said == keys.JSON_CONVERTER.lower()
    has_schema = validated.flag(keys.VALUE_SCHEMAS) if validated.text(keys.VALUE_SCHEMAS) else is_connects
    return Values.JSON_WITH_SCHEMA if has_schema else values


def _message_key(validated: Validated) -> MessageKey:
    said = validated.text(keys.MESSAGE_KEY).lower()
    if said == "auto":
        return MessageKey.DEVICE if keys.LISTEN in validated.given else MessageKey.RESOURCE
    return MessageKey(said)


def _dead_letter_topic(validated: Validated, default: str) -> str:
    if validated.text(keys.DEAD_LETTER_TOPIC):
        return validated.text(keys.DEAD_LETTER_TOPIC)
    return f"{validated.name}.dead-letters" if validated.flag(keys.DEAD_LETTERS) else default

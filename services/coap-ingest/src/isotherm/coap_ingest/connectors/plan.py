"""Compiles a connector's configuration to a plan that can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isotherm import payloads
from isotherm.coap_ingest.coap.psk import PreSharedKey, pre_shared_key
from isotherm.coap_ingest.coap.resource import AddressError, Server, parse_server
from isotherm.coap_ingest.connectors import connector_keys as keys
from isotherm.coap_ingest.connectors.listen_keys import read_listen_plan
from isotherm.coap_ingest.ingest.routes import MessageKey, Rule, Values, compile_rules
from isotherm.coap_ingest.listener.plan import ListenPlan
from isotherm.coap_ingest.observe.link_filter import LinkFilter
from isotherm.coap_ingest.observe.plan import ObservePlan
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Problem,
    Validated,
    validate,
)
from isotherm.connector.errors.policies import ErrorPolicy, Policy


@dataclass(frozen=True, slots=True)
class ConnectorPlan:
    """One connector, checked and compiled: it either observes servers or listens for devices."""

    name: str
    rules: tuple[Rule, ...]
    observe: ObservePlan
    """Has no servers when the connector listens."""
    listen: ListenPlan | None
    psk: PreSharedKey | None
    """The key that the observed DTLS servers expect."""
    dead_letter_topic: str
    errors: ErrorPolicy
    notices: tuple[Problem, ...]


def plan_for(config: ConnectorConfig, settings: CoapIngestSettings) -> ConnectorPlan:
    """Compile a configuration whose references are resolved. Raises ConfigError."""
    return compile_plan(
        config,
        units=settings.units,
        limits=settings.limits(),
        dead_letter_topic=settings.dead_letter_topic,
        allow_anonymous=settings.allow_anonymous,
    )


def compile_plan(
    config: ConnectorConfig,
    *,
    units: Mapping[str, str],
    limits: payloads.Limits,
    dead_letter_topic: str,
    allow_anonymous: bool = False,
) -> ConnectorPlan:
    """Check a connector's configuration and compile it; `dead_letter_topic` is the service's own.

    With `allow_anonymous` a listener without DTLS may have an address other than loopback.

    Raises InvalidConfigError with every problem found.
    """
    validated = validate(keys.DEFINITION, config)
    servers, problems = _servers(validated)
    psk, psk_problems = _pre_shared_key(validated, servers)
    rules, kcql_problems = compile_rules(
        validated.statements,
        key=keys.KCQL,
        units=units,
        limits=limits,
        values=_values(validated),
        message_key=_message_key(validated),
    )
    listen, listen_problems = read_listen_plan(validated, rules, allow_anonymous=allow_anonymous)
    problems = [*problems, *psk_problems, *listen_problems, *kcql_problems]
    if problems:
        raise InvalidConfigError(problems, validated.notices)
    return ConnectorPlan(
        name=validated.name,
        rules=tuple(rules),
        observe=_observe_plan(validated, servers, rules),
        listen=listen,
        psk=psk,
        dead_letter_topic=_dead_letter_topic(validated, dead_letter_topic),
        errors=_error_policy(validated),
        notices=validated.notices,
    )


def _observe_plan(validated: Validated, servers: list[Server], rules: list[Rule]) -> ObservePlan:
    return ObservePlan(
        validated.name,
        tuple(servers),
        tuple(rules),
        LinkFilter(
            tuple(validated.items(keys.DISCOVERY_TYPES)),
            tuple(validated.items(keys.DISCOVERY_INTERFACES)),
            validated.flag(keys.DISCOVERY_OBSERVABLE),
        ),
        validated.integer(keys.DISCOVERY_INTERVAL),
    )


def _error_policy(validated: Validated) -> ErrorPolicy:
    return ErrorPolicy(
        Policy[validated.text(keys.ERROR_POLICY).upper()],
        validated.integer(keys.MAX_RETRIES),
        validated.integer(keys.RETRY_INTERVAL),
        tolerate_all=validated.text(keys.TOLERANCE).lower() == "all",
        dead_letters=True,
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


def _pre_shared_key(validated: Validated, servers: list[Server]) -> tuple[PreSharedKey | None, list[Problem]]:
    """Read the key for observed DTLS servers, and refuse the keys of certificates."""
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
            problems.append(Problem(key, "missing: a coaps:// server needs a pre-shared key and its identity"))
        elif not is_secured and key in validated.given:
            problems.append(Problem(key, f"has a meaning for coaps:// only, and no server of {keys.URI} is one"))
    if problems or not is_secured:
        return None, problems
    try:
        return pre_shared_key(validated.text(keys.IDENTITY), validated.text(keys.PRE_SHARED_KEY)), []
    except ValueError as error:
        return None, [Problem(keys.PRE_SHARED_KEY, str(error))]


def _values(validated: Validated) -> Values:
    name = validated.text(keys.VALUE_CONVERTER).lower()
    values = next(values for converter, values in keys.CONVERTERS.items() if converter.lower() == name)
    if values is not Values.JSON:
        return values
    # Connect's own converter writes schemas by default, the short name `json` does not.
    default = name == keys.JSON_CONVERTER.lower()
    with_schema = validated.flag(keys.VALUE_SCHEMAS) if validated.text(keys.VALUE_SCHEMAS) else default
    return Values.JSON_WITH_SCHEMA if with_schema else values


def _message_key(validated: Validated) -> MessageKey:
    name = validated.text(keys.MESSAGE_KEY).lower()
    if name == "auto":
        return MessageKey.DEVICE if keys.LISTEN in validated.given else MessageKey.RESOURCE
    return MessageKey(name)


def _dead_letter_topic(validated: Validated, default: str) -> str:
    if validated.text(keys.DEAD_LETTER_TOPIC):
        return validated.text(keys.DEAD_LETTER_TOPIC)
    return f"{validated.name}.dead-letters" if validated.flag(keys.DEAD_LETTERS) else default

"""Reads the `connect.coap.listen*` keys: the address of the CoAP server, its limits, and who may send what."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from isotherm.coap_ingest.coap.psk import parse_keys
from isotherm.coap_ingest.coap.resource import AddressError, Server, parse_server
from isotherm.coap_ingest.connectors import connector_keys as keys
from isotherm.coap_ingest.ingest.routes import Rule
from isotherm.coap_ingest.listener.identity import IDENTITY_KEY, IdentityPolicy, PathAcl, parse_acl
from isotherm.coap_ingest.listener.plan import ListenPlan
from isotherm.connector.config.validation import Problem, Validated
from isotherm.servicekit.throttling.rates import parse_rate

_ANY_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # they are refused
_DTLS_ONLY = "has a meaning for a coaps:// listener only"


def read_listen_plan(
    validated: Validated, rules: Sequence[Rule], *, allow_anonymous: bool
) -> tuple[ListenPlan | None, list[Problem]]:
    """Return the plan of the listener, or None when the connector observes servers; and the problems found.

    With `allow_anonymous` a listener without DTLS may have an address other than loopback.
    """
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
            f"{server.base!r} is reached from other machines, and coap:// does not authenticate senders: use a "
            f"coaps:// address with {keys.LISTEN_KEYS}, a loopback address, or set allow_anonymous=true"
        )
        problems.append(Problem(keys.LISTEN, why))
    policy, acl, identity_problems = _identity(validated, is_secured=server.scheme == "coaps")
    timeout_ms = validated.integer(keys.LISTEN_TIMEOUT)
    plan = ListenPlan(validated.name, server, tuple(rules), rate, timeout_ms, device_keys, policy, acl)
    return plan, [*problems, *identity_problems, *_check_with_key(plan)]


def _check_with_key(plan: ListenPlan) -> list[Problem]:
    """Refuse WITHKEY when the payload does not decide the device, because the key could name another device."""
    if plan.identity is IdentityPolicy.PAYLOAD:
        return []
    why = f"WITHKEY takes the key from the payload, {IDENTITY_KEY} = {plan.identity.value} does not (in"
    return [Problem(keys.KCQL, f"{why} {rule.statement.text!r})") for rule in plan.rules if rule.statement.with_key]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _identity(validated: Validated, *, is_secured: bool) -> tuple[IdentityPolicy, PathAcl | None, list[Problem]]:
    name, acl = validated.text(IDENTITY_KEY).lower(), None
    has_acl = bool(validated.text(keys.LISTEN_ACL))
    if name != "auto":
        policy = IdentityPolicy(name)
    elif is_secured:
        policy = IdentityPolicy.TOPIC if has_acl else IdentityPolicy.USER
    else:
        policy = IdentityPolicy.PAYLOAD
    problems = []
    if policy is IdentityPolicy.USER and not is_secured:
        problems.append(Problem(IDENTITY_KEY, f"user {_DTLS_ONLY}"))
    if has_acl and not is_secured:
        problems.append(Problem(keys.LISTEN_ACL, _DTLS_ONLY))
    elif has_acl:
        try:
            acl = parse_acl(validated.text(keys.LISTEN_ACL))
        except ValueError as error:
            problems.append(Problem(keys.LISTEN_ACL, str(error)))
    elif policy is IdentityPolicy.TOPIC and is_secured:
        why = "missing: with identity = topic every device could send to the paths of the others"
        problems.append(Problem(keys.LISTEN_ACL, why))
    return policy, acl, problems


def _device_keys(validated: Validated, server: Server) -> tuple[Mapping[bytes, bytes], list[Problem]]:
    if server.scheme not in ("coap", "coaps"):
        why = f"{server.base!r}: devices can send over UDP and DTLS only; allowed: coap, coaps"
        return {}, [Problem(keys.LISTEN, why)]
    if server.scheme == "coap":
        is_given = keys.LISTEN_KEYS in validated.given
        return {}, [Problem(keys.LISTEN_KEYS, _DTLS_ONLY)] if is_given else []
    if server.host in _ANY_ADDRESSES:
        return {}, [
            Problem(keys.LISTEN, f"{server.base!r}: over DTLS the library listens on one address; name that address")
        ]
    try:
        return parse_keys(validated.text(keys.LISTEN_KEYS)), []
    except ValueError as error:
        return {}, [Problem(keys.LISTEN_KEYS, str(error))]

"""A broker that asks for logins (SASL/PLAIN) and refuses what no ACL allows, and the log of its decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

ADMIN = "admin"
"""The user of brokers and controllers, who may do everything."""
PROTOCOL = "SASL_PLAINTEXT"

_PROPERTIES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:{admin}
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.clients.plain.sasl.jaas.config={login}
listener.name.controller.plain.sasl.jaas.config={login}
"""
_LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="{password}"{users};'
)

LOGGING = """\
logger.authorizer.name=kafka.authorizer.logger
logger.authorizer.level=DEBUG
"""
"""Log4j 2's properties with which the authorizer logs each decision."""

_DECISION = re.compile(
    r"Principal = (?P<principal>\S+) is (?P<decision>Allowed|Denied) operation = (?P<operation>\S+) from host = \S+ "
    r"on resource = (?P<resource>[A-Za-z]+):LITERAL:(?P<name>.*?) for request = (?P<request>\S+) "
    r"with resourceRefCount = \d+(?: based on rule (?P<rule>.*))?"
)


class Decision(NamedTuple):
    """One decision of the authorizer."""

    principal: str
    operation: str
    resource: str
    """Kind of the resource, as Kafka prints it: Topic, Group, TransactionalId, Cluster."""
    name: str
    request: str
    """The kind of the request, for example Fetch."""


class AccessLog(NamedTuple):
    """The decisions of a broker's authorizer, each one once."""

    allowed: frozenset[Decision]
    denied: frozenset[Decision]


def properties(users: Mapping[str, str]) -> str:
    """Return the lines of ``server.properties`` by which these users log in, and the authorizer refuses.

    Raises ValueError for a password that is not letters and digits only: neither JAAS nor properties are quoted here.
    """
    for name, password in users.items():
        if not password.isalnum():
            raise ValueError(f"the password of {name} has other characters than letters and digits")
    known = "".join(f' user_{name}="{password}"' for name, password in users.items())
    login = _LOGIN.format(user=ADMIN, password=users[ADMIN], users=known)
    return _PROPERTIES.format(admin=ADMIN, login=login)


def client_properties(user: str, password: str) -> dict[str, str]:
    """Return librdkafka's properties for a login."""
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def read_log(text: str) -> AccessLog:
    """Read the decisions of the authorizer from a broker's log."""
    found: dict[str, set[Decision]] = {"Allowed": set(), "Denied": set()}
    for match in _DECISION.finditer(text):
        part = match.groupdict()
        found[part["decision"]].add(
            Decision(part["principal"], part["operation"], part["resource"], part["name"], part["request"])
        )
    return AccessLog(frozenset(found["Allowed"]), frozenset(found["Denied"]))

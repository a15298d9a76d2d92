"""The ACLs that the services need: the topic book and `access.yaml`, for the principals of an installation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from isotherm.connector.config import dead_letter_topics
from isotherm.schemas import Topic
from isotherm.schemas.access import Access, Every, Operation, Permission, Resource

CONTROL_TOPICS = "isotherm."
_PLACEHOLDERS = ("{connector}", "{worker_group}")
_BOOK = "The topic book names it as a {role} of the topic."


class Pattern(StrEnum):
    """How an ACL's name is compared with that of a resource, in Kafka's words."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Acl(NamedTuple):
    """One ACL: a principal may do one operation, from any host."""

    principal: str
    resource: Resource
    pattern: Pattern
    name: str
    operation: Operation

    def __str__(self) -> str:
        kind = self.resource.name.lower()
        return f"{self.principal} {self.operation} {kind} {self.name}{'*' if self.pattern is Pattern.PREFIXED else ''}"


class NamesError(ValueError):
    """The names of services, connectors or worker groups cannot be used."""


@dataclass(frozen=True)
class Installation:
    """What an installation calls its principals, connectors and worker groups, each by service."""

    principals: Mapping[str, str] = field(default_factory=dict)
    """Services that it does not name have the principal `User:isotherm-SERVICE`."""
    connectors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """A name that ends with `*` stands for all that begin so."""
    worker_groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def principal(self, service: str) -> str:
        """Return the principal of a service."""
        return self.principals.get(service, f"User:isotherm-{service}")


def required_acls(
    topics: Sequence[Topic], accesses: Sequence[Access], installation: Installation, services: Sequence[str] = ()
) -> dict[Acl, str]:
    """Return the ACLs of the services, each with the reason, sorted; those of all services unless some are named.

    Services that share the principal of a named one come with it: what the principal may do is all of that.
    `accesses` are that of the suite and what an installation adds to it. Raises NamesError.
    """
    permissions = merged(accesses)
    _check_services("services", services, permissions)
    for place in ("principals", "connectors", "worker_groups"):
        _check_services(place, getattr(installation, place), permissions)
    principals = {service: installation.principal(service) for service in sorted(permissions)}
    for principal in principals.values():
        _check_principal(principal)
    chosen = {principals[service] for service in services or principals}
    found: dict[Acl, str] = {}
    for service, principal in principals.items():
        if principal not in chosen:
            continue
        for permission in (*_of_book(service, topics), *permissions[service]):
            for pattern, name in _resources(permission, service, topics, permissions, installation):
                for operation in permission.operations:
                    found.setdefault(Acl(principal, permission.resource, pattern, name, operation), permission.why)
    return dict(sorted(found.items()))


def merged(accesses: Sequence[Access]) -> dict[str, tuple[Permission, ...]]:
    """Return the permissions of each service in all files."""
    services = {service for access in accesses for service in access.services}
    return {name: tuple(one for access in accesses for one in access.services.get(name, ())) for name in services}


def _of_book(service: str, topics: Sequence[Topic]) -> Iterator[Permission]:
    for topic in topics:
        if service in set(topic.writers) - topic.planned_writers:
            yield Permission(Resource.TOPIC, (Operation.WRITE,), _BOOK.format(role="writer"), name=topic.name)
        if service in _readers(topic):
            yield Permission(Resource.TOPIC, (Operation.READ,), _BOOK.format(role="reader"), name=topic.name)


def _readers(topic: Topic) -> set[str]:
    return {reader.service for reader in topic.readers} - topic.planned_readers


def _resources(
    permission: Permission,
    service: str,
    topics: Sequence[Topic],
    permissions: Mapping[str, Sequence[Permission]],
    installation: Installation,
) -> Iterator[tuple[Pattern, str]]:
    """Yield what a permission is about."""
    if permission.prefix:
        yield Pattern.PREFIXED, permission.prefix
    elif permission.read_by:
        for topic in topics:
            if not topic.name.startswith(CONTROL_TOPICS) and _readers(topic) & set(permission.read_by):
                yield Pattern.LITERAL, topic.name
    elif permission.all is Every.DECLARED:
        yield from ((Pattern.LITERAL, topic.name) for topic in topics)
    elif permission.all is Every.DEAD_LETTERS:
        for other, theirs in permissions.items():
            for one in theirs:
                if one.resource is Resource.TOPIC and one.name.endswith(dead_letter_topics.SUFFIX):
                    yield from _named(one.name, other, installation)
    else:
        yield from _named(permission.name, permission.of or service, installation)


def _named(text: str, service: str, installation: Installation) -> Iterator[tuple[Pattern, str]]:
    """Yield what a name with at most one placeholder stands for."""
    placeholder = next((one for one in _PLACEHOLDERS if one in text), None)
    if placeholder is None:
        yield Pattern.LITERAL, text
        return
    before, _, after = text.partition(placeholder)
    for name in _names_of(placeholder, service, installation):
        if not name.endswith("*"):
            yield Pattern.LITERAL, f"{before}{name}{after}"
            continue
        # Kafka has no suffixes: what stands behind the name is lost, so that the name must say something.
        if not before + name.removesuffix("*"):
            raise NamesError(f"{name!r}: it would stand for every topic; name a prefix, as in readings-*")
        yield Pattern.PREFIXED, before + name.removesuffix("*")


def _names_of(placeholder: str, service: str, installation: Installation) -> Sequence[str]:
    named = installation.connectors if placeholder == "{connector}" else installation.worker_groups
    return named.get(service, ())


def _check_principal(principal: str) -> None:
    kind, _, name = principal.partition(":")
    # `User:*` is everybody, whom no installation calls its service.
    if not kind or name.strip() in ("", "*"):
        raise NamesError(f"principals: {principal!r} is not of the form User:name")


def _check_services(place: str, named: Sequence[str] | Mapping[str, object], known: Mapping[str, object]) -> None:
    if unknown := sorted(set(named) - known.keys()):
        raise NamesError(f"{place}: {unknown[0]!r} is not one of {', '.join(sorted(known))}")

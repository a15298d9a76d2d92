"""What each service may do in Kafka beyond the topics for which the topic book names it (`access.yaml`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_DATA = files("isotherm.schemas")
_SELECTORS = ("name", "prefix", "all", "read_by")


class Resource(StrEnum):
    """Kinds of resources, by their keys in the file."""

    TOPIC = "topics"
    GROUP = "groups"
    TRANSACTIONAL_ID = "transactional_ids"


class Operation(StrEnum):
    """Kafka's operations on these resources."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"


class Every(StrEnum):
    """Values of `all`."""

    DECLARED = "declared"
    DEAD_LETTERS = "dead-letters"


@dataclass(frozen=True, slots=True)
class Permission:
    """What a service may do with some resources. One of `name`, `prefix`, `all` and `read_by` is given."""

    resource: Resource
    operations: tuple[Operation, ...]
    why: str
    name: str = ""
    prefix: str = ""
    """All resources whose names begin so."""
    all: Every | None = None
    read_by: tuple[str, ...] = ()
    """The topics that these services read by the topic book, without control topics."""
    of: str = ""
    """The service whose connectors or worker groups a placeholder in `name` stands for; empty: its own."""


@dataclass(frozen=True, slots=True)
class Access:
    """The content of one file."""

    services: Mapping[str, tuple[Permission, ...]]
    without_principal: Mapping[str, str]
    """Readers and writers of the topic book that have no principal of their own, each with the reason."""


class AccessError(ValueError):
    """The file does not have the documented form."""


@cache
def access() -> Access:
    """Return what the suite's own services may do."""
    return parse_access((_DATA / "access.yaml").read_text(encoding="utf-8"))


def parse_access(text: str) -> Access:
    """Read a file of the form of `access.yaml`. Raises AccessError that names the place."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AccessError(f"no YAML: {error}") from error
    _only(document, ("services", "without_principal"), "the file")
    services = {
        service: tuple(_permissions(service, parts)) for service, parts in _mapping(document, "services").items()
    }
    return Access(services, {name: str(why) for name, why in _mapping(document, "without_principal").items()})


def _permissions(service: str, parts: Any) -> Iterable[Permission]:
    _only(parts, [resource.value for resource in Resource], service)
    for resource in Resource:
        for number, entry in enumerate(_list(parts.get(resource.value, []), f"{service}, {resource}"), 1):
            yield _permission(resource, entry, f"{service}, entry {number} of {resource}")


def _permission(resource: Resource, entry: Any, place: str) -> Permission:
    _only(entry, (*_SELECTORS, "may", "of", "why"), place)
    chosen = [key for key in _SELECTORS if key in entry]
    if len(chosen) != 1:
        raise AccessError(f"{place}: it needs one of {', '.join(_SELECTORS)}")
    if resource is not Resource.TOPIC and chosen[0] not in ("name", "prefix"):
        raise AccessError(f"{place}: {chosen[0]} is for topics only")
    operations = _list(entry.get("may", []), f"{place}: may")
    if not entry[chosen[0]] or not operations:
        raise AccessError(f"{place}: {chosen[0]} and may must not be empty")
    try:
        return Permission(
            resource,
            tuple(Operation(one) for one in operations),
            str(entry.get("why", "")),
            name=str(entry.get("name", "")),
            prefix=str(entry.get("prefix", "")),
            all=Every(entry["all"]) if "all" in entry else None,
            read_by=tuple(_list(entry.get("read_by", []), f"{place}: read_by")),
            of=str(entry.get("of", "")),
        )
    except ValueError as error:
        raise AccessError(f"{place}: {error}") from error


def _list(entry: Any, place: str) -> list[Any]:
    if not isinstance(entry, list):
        raise AccessError(f"{place}: no list")
    return entry


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise AccessError(f"{key}: no mapping")
    return found


def _only(entry: Any, keys: Iterable[str], place: str) -> None:
    """Raise AccessError unless `entry` is a mapping with no other keys than these."""
    if not isinstance(entry, dict):
        raise AccessError(f"{place}: no mapping")
    if unknown := sorted(str(key) for key in entry.keys() - set(keys)):
        raise AccessError(f"{place}: unknown key {unknown[0]}; known are {', '.join(keys)}")

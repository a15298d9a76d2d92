"""The declared topics, the Avro schemas of their records, and examples of every record.

It holds data only. A reader pins the version that it knows with `schema(record, version)`. It imports no other package
of the suite and must not know servers or services.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

_DATA = files(__name__)

Compatibility = str

_TOPIC_KEYS = {
    "name",
    "description",
    "owner",
    "record",
    "key",
    "partitions",
    "config",
    "compatibility",
    "writers",
    "readers",
    "planned",
    "semantics",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A service that reads a topic, and the schema version it pins."""

    service: str
    version: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A declared topic: everything needed to create it and to understand its records."""

    name: str
    description: str
    owner: str
    """The service that decides what the topic carries."""
    record: str | None
    """The record's name; None for a topic without records."""
    version: int | None
    """The newest version of the record, which a writer may write. Each writer pins the version that it writes."""
    key: Mapping[str, str]
    """`field` when the key is one field of the value; else `format`, `description`."""
    partitions: int
    config: Mapping[str, str]
    """Kafka's topic configuration."""
    compatibility: Compatibility | None
    writers: tuple[str, ...]
    readers: tuple[Reader, ...]
    planned_writers: frozenset[str]
    """Writers that do not write the topic yet."""
    planned_readers: frozenset[str]
    """Readers that do not read the topic yet."""
    semantics: Mapping[str, Any]
    """Rules that Avro cannot express: times, units, order, headers."""


@dataclass(frozen=True, slots=True)
class Example:
    """One message of a topic; timestamps in `value` are epoch milliseconds, bytes are the UTF-8 form of a text."""

    topic: str
    name: str
    key: str
    value: Mapping[str, Any]
    headers: Mapping[str, str]


@cache
def _schema_text(record: str, version: int) -> str:
    path = _DATA / "avro" / record / f"v{version}.avsc"
    if not path.is_file():
        raise LookupError(f"no schema {record} v{version}")
    return path.read_text(encoding="utf-8")


def schema(record: str, version: int) -> dict[str, Any]:
    """The Avro schema of `record` in `version`, as parsed JSON; each call returns a new copy.

    Raises LookupError when there is none.
    """
    parsed: dict[str, Any] = json.loads(_schema_text(record, version))
    return parsed


def versions(record: str) -> tuple[int, ...]:
    """The versions of `record`, oldest first; empty for an unknown record."""
    folder = _DATA / "avro" / record
    if not folder.is_dir():
        return ()
    return tuple(sorted(int(entry.name[1:].removesuffix(".avsc")) for entry in folder.iterdir()))


def records() -> tuple[str, ...]:
    """The names of all records."""
    return tuple(sorted(entry.name for entry in (_DATA / "avro").iterdir()))


@cache
def topics() -> tuple[Topic, ...]:
    """All declared topics, by name."""
    return tuple(_topic(entry) for entry in _sorted(_DATA / "topics"))


def topic(name: str) -> Topic:
    """The declared topic of this name.

    Raises LookupError when it is not declared.
    """
    for declared in topics():
        if declared.name == name:
            return declared
    raise LookupError(f"no topic {name} is declared")


def examples(topic_name: str) -> tuple[Example, ...]:
    """The examples of a topic; empty when it has none."""
    folder = _DATA / "examples" / topic_name
    if not folder.is_dir():
        return ()
    return tuple(_example(topic_name, entry) for entry in _sorted(folder))


def _sorted(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _topic(entry: Traversable) -> Topic:
    declared: dict[str, Any] = yaml.safe_load(entry.read_text(encoding="utf-8"))
    unknown = sorted(declared.keys() - _TOPIC_KEYS)
    if unknown:
        raise ValueError(f"{entry.name}: unknown key {unknown[0]}; a topic has {', '.join(sorted(_TOPIC_KEYS))}")
    record, planned = declared["record"], declared.get("planned", {})
    return Topic(
        name=declared["name"],
        description=declared["description"],
        owner=declared["owner"],
        record=record,
        version=None if record is None else versions(record)[-1],
        key=declared["key"] or {},
        partitions=declared["partitions"],
        config={key: str(value) for key, value in declared["config"].items()},
        compatibility=declared["compatibility"],
        writers=tuple(declared["writers"]),
        readers=tuple(Reader(**reader) for reader in declared["readers"]),
        planned_writers=frozenset(planned.get("writers", ())),
        planned_readers=frozenset(planned.get("readers", ())),
        semantics=declared["semantics"],
    )


def _example(topic_name: str, entry: Traversable) -> Example:
    content: dict[str, Any] = json.loads(entry.read_text(encoding="utf-8"))
    fields = schema(record, versions(record)[-1])["fields"] if (record := topic(topic_name).record) else []
    texts = [field["name"] for field in fields if field["type"] == "bytes" and field["name"] in content["value"]]
    value = {**content["value"], **{name: content["value"][name].encode() for name in texts}}
    return Example(topic_name, entry.name.removesuffix(".json"), content["key"], value, content["headers"])

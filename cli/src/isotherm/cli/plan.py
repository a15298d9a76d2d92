"""The plan of `isotherm apply`: compares declared topics and subjects with the servers' state. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JsonSchema = Mapping[str, Any]


class Outcome(StrEnum):
    """The result, or planned result, of one step."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    CHANGED = "changed config"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True)
class DeclaredTopic:
    """A declared topic; `config` holds only what differs from the broker's defaults."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeclaredSubject:
    """A declared subject with all versions of its schema, the oldest first."""

    name: str
    versions: Sequence[JsonSchema]
    compatibility: str = "FULL_TRANSITIVE"


@dataclass(frozen=True)
class ActualTopic:
    """A topic of the broker, with its effective configuration."""

    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class ActualSubject:
    """A subject of the registry.

    `registered` says for each declared version whether it exists; `refusals` has the reason for each declared version
    that the registry finds incompatible.
    """

    compatibility: str | None
    registered: Sequence[bool]
    refusals: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step: `kind` is topic or subject, `version` is the schema version, if the step is about one."""

    kind: str
    name: str
    outcome: Outcome
    detail: str = ""
    version: int | None = None

    def __str__(self) -> str:
        version = f" version {self.version}" if self.version is not None else ""
        return f"{self.outcome}: {self.kind} {self.name}{version}" + (f" ({self.detail})" if self.detail else "")


def topic_steps(declared: DeclaredTopic, actual: ActualTopic | None) -> Step:
    """Return the step that changes a topic to its declaration.

    Another partition count is refused: it would move keys to other partitions and break the order of a device.
    """
    if actual is None:
        config = ", ".join(f"{key}={value}" for key, value in sorted(declared.config.items()))
        partitions = f"{declared.partitions} partition{'s' if declared.partitions > 1 else ''}"
        return Step("topic", declared.name, Outcome.CREATED, f"{partitions}, {config}" if config else partitions)
    if actual.partitions != declared.partitions:
        return Step(
            "topic",
            declared.name,
            Outcome.REFUSED,
            f"it has {actual.partitions} partitions, declared are {declared.partitions}; another count would break the "
            "order per key, so move the data to a new topic or change the declaration",
        )
    changes = config_changes(declared, actual)
    if changes:
        detail = ", ".join(f"{key}: {actual.config.get(key)} -> {value}" for key, value in sorted(changes.items()))
        return Step("topic", declared.name, Outcome.CHANGED, detail)
    return Step("topic", declared.name, Outcome.UNCHANGED)


def config_changes(declared: DeclaredTopic, actual: ActualTopic) -> dict[str, str]:
    """Return the declared configuration that differs from the topic's."""
    return {key: value for key, value in declared.config.items() if actual.config.get(key) != value}


def subject_steps(declared: DeclaredSubject, actual: ActualSubject | None) -> Iterator[Step]:
    """Yield the steps that change a subject to its declaration, in their required order."""
    if actual is None:
        yield Step("subject", declared.name, Outcome.REGISTERED, f"compatibility {declared.compatibility}", 1)
        for version in range(2, len(declared.versions) + 1):
            yield Step("subject", declared.name, Outcome.REGISTERED, "", version)
        return
    changed = False
    if actual.compatibility != declared.compatibility:
        changed = True
        yield Step(
            "subject",
            declared.name,
            Outcome.CHANGED,
            f"compatibility: {actual.compatibility} -> {declared.compatibility}",
        )
    for version, is_registered in enumerate(actual.registered, start=1):
        if is_registered:
            continue
        changed = True
        if version in actual.refusals:
            yield Step("subject", declared.name, Outcome.REFUSED, actual.refusals[version], version)
        else:
            yield Step("subject", declared.name, Outcome.REGISTERED, "", version)
    if not changed:
        yield Step("subject", declared.name, Outcome.UNCHANGED)


def text_of(schema: JsonSchema) -> str:
    """Return the text of a schema, which must be the same for registering and looking up."""
    return json.dumps(schema)

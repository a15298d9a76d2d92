"""What `isotherm apply` would change: declared topics and subjects against those that the servers have.

Pure: the servers' state comes in as plain values, the steps go out as plain values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JsonSchema = Mapping[str, Any]


class Outcome(StrEnum):
    """What became, or would become, of one declared thing."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    CHANGED = "changed config"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True)
class DeclaredTopic:
    """A topic as the suite declares it; `config` holds only what it wants to differ from the broker's defaults."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeclaredSubject:
    """A subject with every version of its schema, oldest first."""

    name: str
    versions: Sequence[JsonSchema]
    compatibility: str = "FULL_TRANSITIVE"


@dataclass(frozen=True)
class ActualTopic:
    """A topic as the broker has it, with its effective configuration."""

    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class ActualSubject:
    """A subject as the registry has it; `registered` says of each declared version whether it is there.

    `refusals` holds the registry's reason for each declared version that its compatibility check refuses.
    """

    compatibility: str | None
    registered: Sequence[bool]
    refusals: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One line of the report: `kind` is topic or subject, `version` the schema version that a step is about."""

    kind: str
    name: str
    outcome: Outcome
    detail: str = ""
    version: int | None = None

    def __str__(self) -> str:
        version = f" version {self.version}" if self.version is not None else ""
        return f"{self.outcome}: {self.kind} {self.name}{version}" + (f" ({self.detail})" if self.detail else "")


def topic_steps(declared: DeclaredTopic, actual: ActualTopic | None) -> Step:
    """The one step that brings a topic to its declaration.

    A different partition count is refused: it would move keys to other partitions and break the order of a device.
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
    """The declared configuration that the topic does not have."""
    return {key: value for key, value in declared.config.items() if actual.config.get(key) != value}


def subject_steps(declared: DeclaredSubject, actual: ActualSubject | None) -> Iterator[Step]:
    """The steps that bring a subject to its declaration, in the order in which they have to happen."""
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
    """A schema as the text that is registered and looked up; both must be the same for the same schema."""
    return json.dumps(schema)

"""The sinks that are installed: the entry points of the group `isotherm.sinks`, of this package and of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from isotherm.persisters.sinks.plugin import SinkKind

GROUP = "isotherm.sinks"


class Installed(NamedTuple):
    """What the entry points of a group gave."""

    kinds: Mapping[str, SinkKind]
    """By name, in the order of the names."""
    problems: Sequence[str]
    """Why other entry points give no sink, one sentence each."""


def installed_sinks() -> Mapping[str, SinkKind]:
    """Return the sinks that are installed, by the names that `--sink` takes, in their order."""
    return installed().kinds


@cache
def installed() -> Installed:
    """Return the installed sinks, and what is wrong with those that cannot be used; looked up once in a process."""
    return read_entry_points(entry_points(group=GROUP))


def read_entry_points(points: Iterable[EntryPoint]) -> Installed:
    """Load entry points. One that is broken makes a problem, and not the end of a worker that needs another sink."""
    kinds: dict[str, SinkKind] = {}
    origins: dict[str, str] = {}
    problems: list[str] = []
    for point in sorted(points, key=lambda one: (one.name, one.value)):
        origin = _origin(point)
        try:
            kind = point.load()
        except Exception as error:
            problems.append(f"the sink {point.name!r} of {origin} cannot be imported: {type(error).__name__}: {error}")
            continue
        why = _unusable(point, kind, kinds, origins)
        if why is not None:
            problems.append(f"the sink {point.name!r} of {origin} is not used: {why}")
            continue
        kinds[kind.name] = kind
        origins[kind.name] = origin
    return Installed(kinds, problems)


def find_sink(klass: str, kinds: Iterable[SinkKind]) -> SinkKind | None:
    """Return the one of `kinds` that answers to a connector class; None if there is none."""
    return next((kind for kind in kinds if kind.definition.answers_to(klass)), None)


def unknown_class(klass: str, kinds: Iterable[SinkKind]) -> str:
    """Return the message about a connector class that none of `kinds` answers to: it names all that are there."""
    known = ", ".join(f"{kind.definition.klass} ({kind.name})" for kind in kinds) or "none"
    others = "".join(f"; {problem}" for problem in installed().problems)
    return f"connector.class: {klass!r} is no sink that is installed ({known}){others}"


def _unusable(point: EntryPoint, kind: object, kinds: Mapping[str, SinkKind], origins: Mapping[str, str]) -> str | None:
    if not isinstance(kind, SinkKind):
        return f"{point.value} is no SinkKind but {type(kind).__name__}"
    if kind.name != point.name:
        return f"it calls itself {kind.name!r}, and its entry point must have that name"
    if kind.name in kinds:
        return f"{origins[kind.name]} has a sink of this name"
    for known in kinds.values():
        names = (kind.definition.klass, *kind.definition.aliases)
        if taken := [name for name in names if known.definition.answers_to(name)]:
            return f"{known.name!r} of {origins[known.name]} answers to {', '.join(taken)} already"
    return None


def _origin(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else point.dist.name

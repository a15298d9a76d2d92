"""Rows whose ids come again with other contents, and what a batch does to each id. Pure. See docs/adr/0047.

Where a revision says which row is newer, the store compares it. Everywhere else the later row of a key wins, and a
request that arrives late must not make an earlier one win: an id is changed only from what it was when it was read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

import orjson

from isotherm.persisters.records.plan import Plan

Key = TypeVar("Key", bound=Hashable)


def comes_again(plan: Plan) -> bool:
    """Whether several records may make rows of one id that differ.

    Without PK the id is the record's place in its topic, which has one record, or the identity that its schema
    declares. An identity with the event time in it names something that happened once: its rows are equal.
    """
    if plan.statement.primary_key or plan.statement.mode == "UPSERT":
        return True
    return bool(plan.identity) and plan.event_time not in plan.identity


class Kind(Enum):
    """What is done to an id."""

    PUT = auto()
    MERGE = auto()
    DELETE = auto()


@dataclass(eq=False)
class Effect:
    """What one request does to one id."""

    kind: Kind
    document: bytes = b""
    pipeline: str | None = None
    rows: list[int] = field(default_factory=list)
    """The places in the batch of the rows that it stands for, in order."""
    parts: list[Effect] = field(default_factory=list)
    """What each of several rows does by itself, to find the one that the store refuses; empty for a single row."""

    def takes(self, later: Effect) -> bool:
        """Whether this effect can do what `later` does as well, right behind it; it has then taken that over."""
        if later.kind is Kind.MERGE and self.kind is Kind.PUT and self.pipeline is not None:
            # The pipeline is for the first document alone.
            return False
        if later.kind is self.kind is Kind.MERGE and not _composes(
            orjson.loads(self.document), orjson.loads(later.document)
        ):
            return False
        self.parts = [*(self.parts or [self._alone()]), *(later.parts or [later])]
        if later.kind is not Kind.MERGE:
            self.kind, self.document, self.pipeline = later.kind, later.document, later.pipeline
        elif self.kind is Kind.DELETE:
            self.kind, self.document = Kind.PUT, later.document
        else:
            self.document = orjson.dumps(merged(orjson.loads(self.document), orjson.loads(later.document)))
        self.rows = [*self.rows, *later.rows]
        return True

    def halves(self) -> list[Effect]:
        """What the first half of several rows does, and the second, in as few effects as possible."""
        middle = len(self.parts) // 2
        return [
            effect
            for half in (self.parts[:middle], self.parts[middle:])
            for effects in fold(("", part._alone()) for part in half).values()
            for effect in effects
        ]

    def _alone(self) -> Effect:
        return Effect(self.kind, self.document, self.pipeline, self.rows)


def fold(effects: Iterable[tuple[Key, Effect]]) -> dict[Key, list[Effect]]:
    """What the rows of a batch do to each id, in as few effects as possible, which are to happen in their order."""
    found: dict[Key, list[Effect]] = {}
    for id_, effect in effects:
        known = found.setdefault(id_, [])
        if not known or not known[-1].takes(effect):
            known.append(effect)
    return found


def _composes(change: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether two partial documents can be one: an object behind a null or a value replaces what was there before."""
    for name, value in later.items():
        if isinstance(value, Mapping) and name in change:
            before = change[name]
            if not isinstance(before, Mapping) or not _composes(before, value):
                return False
    return True


def merged(document: Any, change: Any) -> Any:
    """A document with a partial one merged into it, as Elasticsearch's update API does: objects recursively."""
    if not isinstance(document, Mapping) or not isinstance(change, Mapping):
        return change
    return {**document, **{name: merged(document.get(name), value) for name, value in change.items()}}

"""Rows whose ids occur again with other contents, and what a batch does to each id. Pure. See docs/adr/0047.

If a revision says which row is newer, the store compares revisions. Otherwise the later row of a key wins, and a
request that arrives late must not make an earlier row win: an id is changed only from the state in which it was read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

import orjson

from isotherm.persisters.api.plan import Plan

Key = TypeVar("Key", bound=Hashable)


def may_repeat_ids(plan: Plan) -> bool:
    """Whether several records may make different rows of one id.

    Without PK the id is the record's topic, partition and offset, which only one record has, or the identity that its
    schema declares. An identity that contains the event time names something that happened once, so its rows are equal.
    """
    if plan.statement.primary_key or plan.statement.mode == "UPSERT":
        return True
    return bool(plan.identity) and plan.event_time not in plan.identity


class EffectKind(Enum):
    """What an effect does to an id."""

    PUT = auto()
    MERGE = auto()
    DELETE = auto()


@dataclass(eq=False)
class Effect:
    """What one request does to one id."""

    kind: EffectKind
    document: bytes = b""
    pipeline: str | None = None
    rows: list[int] = field(default_factory=list)
    """The indices in the batch of the rows that the effect stands for, in order."""
    parts: list[Effect] = field(default_factory=list)
    """The effect of each of several rows by itself, to find the row that the store refuses; empty for a single row."""

    def absorb(self, later: Effect) -> bool:
        """Add `later`, which directly follows, to this effect if one request can do both; returns whether it did."""
        if later.kind is EffectKind.MERGE and self.kind is EffectKind.PUT and self.pipeline is not None:
            # The pipeline is for the first document only.
            return False
        if later.kind is self.kind is EffectKind.MERGE and not _composes(
            orjson.loads(self.document), orjson.loads(later.document)
        ):
            return False
        self.parts = [*(self.parts or [self._alone()]), *(later.parts or [later])]
        if later.kind is not EffectKind.MERGE:
            self.kind, self.document, self.pipeline = later.kind, later.document, later.pipeline
        elif self.kind is EffectKind.DELETE:
            self.kind, self.document = EffectKind.PUT, later.document
        else:
            self.document = orjson.dumps(merged(orjson.loads(self.document), orjson.loads(later.document)))
        self.rows = [*self.rows, *later.rows]
        return True

    def halves(self) -> list[Effect]:
        """Return the effects of the first half of the rows and of the second half, as few effects as possible."""
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
    """Return what the rows of a batch do to each id, in as few effects as possible, to be applied in order."""
    found: dict[Key, list[Effect]] = {}
    for id_, effect in effects:
        known = found.setdefault(id_, [])
        if not known or not known[-1].absorb(effect):
            known.append(effect)
    return found


def _composes(change: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether two partial documents can be merged into one: an object after a null or a value replaces it."""
    for name, value in later.items():
        if isinstance(value, Mapping) and name in change:
            before = change[name]
            if not isinstance(before, Mapping) or not _composes(before, value):
                return False
    return True


def merged(document: Any, change: Any) -> Any:
    """Merge a partial document into a document as Elasticsearch's update API does: objects recursively."""
    if not isinstance(document, Mapping) or not isinstance(change, Mapping):
        return change
    return {**document, **{name: merged(document.get(name), value) for name, value in change.items()}}

"""What a writer of an append-only structure is about to do, so that a crash in between can be made good. Pure.

Before items are appended, the intent says which: for each partition its last offset and a checksum of each item, and
the structure's tail before them. After a crash the structure itself tells which of them arrived: each `add_all`
appends all or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson


@dataclass(frozen=True)
class Append:
    """Items of one partition that are added by one call."""

    lane: str
    offset: int
    """Of the last record in it."""
    checksums: Sequence[int]


@dataclass(frozen=True)
class Intent:
    """Appends of different partitions, sent together: each of them may or may not have happened."""

    tail: int
    """Sequence of the structure's last item before them; -1 for an empty one."""
    appends: Sequence[Append]


@dataclass(frozen=True)
class State:
    """What is known of one structure: the last offset of each partition in it, and an intent in progress."""

    markers: dict[str, int] = field(default_factory=dict)
    intent: Intent | None = None

    def intending(self, intent: Intent) -> State:
        """About to append."""
        return replace(self, intent=intent)

    def settled(self, landed: Iterable[Append]) -> State:
        """Of the intent in progress, these appends happened and no others."""
        return State({**self.markers, **{one.lane: one.offset for one in landed}})

    def to_json(self) -> str:
        """As text that `from_json` reads back."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str | None) -> State:
        """The state in `text`; a fresh one for None."""
        if text is None:
            return cls()
        document: dict[str, Any] = orjson.loads(text)
        found = document["intent"]
        if found is None:
            return cls(document["markers"])
        return cls(document["markers"], Intent(found["tail"], [Append(**one) for one in found["appends"]]))


def landed(intent: Intent, first: int, seen: Sequence[int]) -> list[Append]:
    """The appends whose items are in a structure with items of checksums `seen` from sequence `first` on.

    Items that are overwritten already cannot be seen. An append of which nothing is left counts as not done, since
    repeating it adds nothing twice, unless one behind it stands in its place: then it must have come before.
    """
    found: list[Append] = []
    unseen: list[Append] = []
    place = intent.tail + 1
    for append in intent.appends:
        expected = list(append.checksums)
        visible = expected[max(0, first - place) :]
        at = max(0, place - first)
        if visible and list(seen[at : at + len(visible)]) == visible:
            found += [*unseen, append]
            unseen.clear()
        elif _holds(seen, expected):
            found.append(append)
        elif not visible:
            unseen.append(append)
        place += len(expected)
    return found


def _holds(seen: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether the items stand somewhere together: somebody else may append to the structure too."""
    count = len(expected)
    return any(list(seen[at : at + count]) == expected for at in range(len(seen) - count + 1))

"""What a writer of an append-only structure is about to do, so that a crash in between can be made good. Pure.

Before items are appended, the intent says which: their partition and last offset, the structure's tail before them,
and a checksum of each. After a crash the structure itself tells whether they arrived: `add_all` appends all or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson


@dataclass(frozen=True)
class Intent:
    """One append that may or may not have happened."""

    lane: str
    offset: int
    """Of the last record in it."""
    tail: int
    """Sequence of the structure's last item before it; -1 for an empty one."""
    checksums: Sequence[int]


@dataclass(frozen=True)
class State:
    """What is known of one structure: the last offset of each partition in it, and an append in progress."""

    markers: dict[str, int] = field(default_factory=dict)
    intent: Intent | None = None

    def intending(self, intent: Intent) -> State:
        """About to append."""
        return replace(self, intent=intent)

    def done(self) -> State:
        """The append in progress happened."""
        if self.intent is None:
            return self
        return State({**self.markers, self.intent.lane: self.intent.offset})

    def abandoned(self) -> State:
        """The append in progress did not happen."""
        return State(self.markers)

    def to_json(self) -> str:
        """As text that `from_json` reads back."""
        document: dict[str, Any] = {"markers": self.markers}
        if self.intent is not None:
            document["intent"] = {**self.intent.__dict__, "checksums": list(self.intent.checksums)}
        return orjson.dumps(document).decode()

    @classmethod
    def from_json(cls, text: str | None) -> State:
        """The state in `text`; a fresh one for None."""
        if text is None:
            return cls()
        document = orjson.loads(text)
        found = document.get("intent")
        return cls(document["markers"], None if found is None else Intent(**found))


def is_done(intent: Intent, first: int, seen: Sequence[int]) -> bool:
    """Whether the items of `intent` are in a structure with items of checksums `seen` from sequence `first` on.

    Items that are overwritten already cannot be seen; an append of which nothing is left counts as not done, since
    repeating it cannot be noticed either.
    """
    expected = list(intent.checksums)
    overwritten = max(0, first - (intent.tail + 1))
    visible = expected[overwritten:]
    if visible and list(seen[: len(visible)]) == visible:
        return True
    # Somebody else appends to the structure too: the items may stand further on, but always together.
    count = len(expected)
    return any(list(seen[at : at + count]) == expected for at in range(len(seen) - count + 1))

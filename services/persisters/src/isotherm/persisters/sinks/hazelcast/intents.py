"""What a writer of an append-only structure is about to do, so that the next writer can repair a crash. Pure.

Before items are appended, the intent says which: for each partition its last offset, a checksum of each item, and the
structure's tail before them. After a crash the structure itself shows which of them arrived: each `add_all` appends all
of its items or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

_PARTITION = "lane"
"""The stored name of an append's partition, which must stay as the cluster holds it."""


@dataclass(frozen=True)
class Append:
    """Items of one partition that one call adds."""

    partition: str
    """The partition's name, see `structures.Source.partition_key`."""
    offset: int
    """Offset of the last record in it."""
    checksums: Sequence[int]


@dataclass(frozen=True)
class Intent:
    """Appends of different partitions that are sent together: each may or may not have happened."""

    tail: int
    """Sequence of the structure's last item before them; -1 for an empty structure."""
    appends: Sequence[Append]


@dataclass(frozen=True)
class StructureState:
    """What is known of one structure: the last offset of each partition in it, and an intent in progress."""

    markers: dict[str, int] = field(default_factory=dict)
    intent: Intent | None = None

    def adopting(self, partition: str, former: str) -> StructureState:
        """Return the state with the marker of the partition name `former` under `partition`, unless that
        has a marker.
        """
        if partition in self.markers or former not in self.markers:
            return self
        markers = dict(self.markers)
        markers[partition] = markers.pop(former)
        return replace(self, markers=markers)

    def intending(self, intent: Intent) -> StructureState:
        """Return the state with an intent in progress."""
        return replace(self, intent=intent)

    def settled(self, landed: Iterable[Append]) -> StructureState:
        """Return the state after the intent: of its appends, exactly these happened."""
        return StructureState({**self.markers, **{one.partition: one.offset for one in landed}})

    def to_json(self) -> str:
        """Return the state as text that `from_json` reads."""
        intent = None
        if self.intent is not None:
            appends = [
                {_PARTITION: one.partition, "offset": one.offset, "checksums": one.checksums}
                for one in self.intent.appends
            ]
            intent = {"tail": self.intent.tail, "appends": appends}
        return orjson.dumps({"markers": self.markers, "intent": intent}).decode()

    @classmethod
    def from_json(cls, text: str | None) -> StructureState:
        """Read the state from text; None gives an empty state."""
        if text is None:
            return cls()
        document: dict[str, Any] = orjson.loads(text)
        found = document["intent"]
        if found is None:
            return cls(document["markers"])
        appends = [Append(one[_PARTITION], one["offset"], one["checksums"]) for one in found["appends"]]
        return cls(document["markers"], Intent(found["tail"], appends))


def landed(intent: Intent, first: int, seen: Sequence[int]) -> list[Append]:
    """Return the appends whose items a structure holds, which shows items of checksums `seen` from sequence `first` on.

    Each item stands for one append at most: of two appends with equal items, one of which happened, one is found. The
    items after the tail are divided among the appends, in whatever order they came, with items of others between them,
    so that as many items as possible belong to an append.

    Items that are overwritten already cannot be seen. An append of which nothing is left counts as not done, because
    repeating it adds nothing twice, unless later appends stand in its position: then it must have come before them.
    """
    lost = max(0, first - intent.tail - 1)
    kinds: dict[tuple[int, ...], list[Append]] = {}
    for append in intent.appends:
        kinds.setdefault(tuple(append.checksums), []).append(append)
    search = _Search(list(kinds), [*[None] * lost, *seen], lost)
    best = search.best(0, tuple(map(len, kinds.values())))
    counts = list(best.counts)
    if best.visible and not best.skipped:
        counts = [sum(both) for both in zip(counts, best.unseen, strict=True)]
    found = {id(one) for count, same in zip(counts, kinds.values(), strict=True) for one in same[:count]}
    return [append for append in intent.appends if id(append) in found]


_Counts = tuple[int, ...]
"""How many appends of each kind."""


class _Parse(NamedTuple):
    """One way to divide the items, from some index on."""

    visible: int
    """Items that can be seen and belong to appends."""
    skipped: int
    """Items before the last append that cannot be seen any more and belong to no append."""
    counts: _Counts
    """Appends of which something can be seen."""
    unseen: _Counts
    """Appends of which nothing is left."""


class _Search:
    """Finds the division that gives most items to appends. Kinds are appends with the same items."""

    def __init__(self, kinds: Sequence[tuple[int, ...]], items: Sequence[int | None], lost: int) -> None:
        self._kinds, self._items, self._lost = kinds, items, lost
        self._none = (0,) * len(kinds)
        self._known: dict[tuple[int, _Counts], _Parse] = {}

    def best(self, at: int, left: _Counts) -> _Parse:
        """Return the best division from `at` on with the appends that are `left`."""
        known = self._known.get((at, left))
        if known is None:
            known = self._known[at, left] = self._find(at, left)
        return known

    def _find(self, at: int, left: _Counts) -> _Parse:
        found = _Parse(0, 0, self._none, self._none)
        if not any(left):
            return found
        most = min(
            len(self._items) - max(at, self._lost),
            sum(count * len(kind) for count, kind in zip(left, self._kinds, strict=True)),
        )
        for place in range(at, len(self._items)):
            for number, kind in enumerate(self._kinds):
                if left[number] and self._stands(kind, place):
                    way = self._with(number, at, place, left)
                    if (way.visible, -way.skipped) > (found.visible, -found.skipped):
                        found = way
            if found.visible >= most and not found.skipped:
                break
            most = min(most, len(self._items) - max(place + 1, self._lost))
            if found.visible > most:
                break
        return found

    def _with(self, number: int, at: int, place: int, left: _Counts) -> _Parse:
        length = len(self._kinds[number])
        rest = self.best(place + length, _changed(left, number, -1))
        visible = min(length, place + length - self._lost)
        skipped = max(0, min(place, self._lost) - at) + rest.skipped
        if visible > 0:
            return _Parse(rest.visible + visible, skipped, _changed(rest.counts, number, 1), rest.unseen)
        if not rest.visible:
            # No item after it shows that it happened.
            return rest
        return _Parse(rest.visible, skipped, rest.counts, _changed(rest.unseen, number, 1))

    def _stands(self, kind: tuple[int, ...], place: int) -> bool:
        end = place + len(kind)
        if end > len(self._items):
            return False
        start = max(0, self._lost - place)
        if start >= len(kind):
            return True
        is_begun = kind[start] == self._items[place + start]
        return is_begun and list(kind[start:]) == list(self._items[place + start : end])


def _changed(counts: _Counts, number: int, by: int) -> _Counts:
    return (*counts[:number], counts[number] + by, *counts[number + 1 :])

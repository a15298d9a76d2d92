"""Records of several partitions in the order in which they were written, and how far a group has come. No IO.

A service that is behind reads one partition far ahead of another; a device whose windows are on both would be given
the later ones first, and the earlier ones would be stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass
class _Lane(Generic[T]):
    waiting: deque[tuple[int, int, T]] = field(default_factory=deque)
    """Time, offset, record."""
    position: int | None = None
    end: int | None = None
    """The partition's end, while nothing behind it was read."""


class Merge(Generic[T]):
    """Holds records back until each partition has one, or is known to have none; the earliest has its turn."""

    def __init__(self) -> None:
        self._lanes: dict[Place, _Lane[T]] = {}

    def assign(self, places: Iterable[Place]) -> None:
        """These partitions are read from now on, beside those that were."""
        for place in places:
            self._lanes.setdefault(place, _Lane())

    def revoke(self, places: Iterable[Place]) -> None:
        """These partitions are read no more; what waited of them is forgotten."""
        for place in places:
            self._lanes.pop(place, None)

    def add(self, place: Place, offset: int, written_ms: int, record: T) -> None:
        """A record was read; of a partition that is not ours it has no effect."""
        lane = self._lanes.get(place)
        if lane is not None:
            lane.waiting.append((written_ms, offset, record))
            lane.end = None

    def ended(self, place: Place, end: int) -> None:
        """A partition was read up to its end, `end` being the next offset there."""
        lane = self._lanes.get(place)
        if lane is not None:
            lane.end = end

    def take(self) -> T | None:
        """The record whose turn it is; None while it is not known which."""
        if any(not lane.waiting and lane.end is None for lane in self._lanes.values()):
            return None
        lanes = [lane for lane in self._lanes.values() if lane.waiting]
        if not lanes:
            return None
        lane = min(lanes, key=lambda one: one.waiting[0][0])
        _, offset, record = lane.waiting.popleft()
        lane.position = offset + 1
        return record

    def positions(self) -> dict[Place, int]:
        """The offset behind what was taken of each partition: its end, where nothing waits, also behind markers."""
        found = {
            place: lane.end if lane.end is not None and not lane.waiting else lane.position
            for place, lane in self._lanes.items()
        }
        return {place: position for place, position in found.items() if position is not None}

    def crowded(self, limit: int) -> set[Place]:
        """The partitions of which more than `limit` records wait for those of others."""
        return {place for place, lane in self._lanes.items() if len(lane.waiting) > limit}


class ForwardedClock:
    """The time up to which everything that was in the partitions is known to be forwarded, by whichever replica."""

    def __init__(self) -> None:
        self.told_ms = 0
        self._asked: tuple[int, Mapping[Place, int]] | None = None

    def see(self, now_ms: int, ends: Mapping[Place, int], committed: Mapping[Place, int]) -> int:
        """Take in an answer of Kafka that was asked for at `now_ms`; returns the time that it tells, in epoch ms.

        Under a steady load the group is never at the ends of now: it reaches those that were asked for earlier.
        """
        for at_ms, wanted in (self._asked or (now_ms, ends), (now_ms, ends)):
            if all(committed.get(place, 0) >= end for place, end in wanted.items()):
                self.told_ms, self._asked = at_ms, None
        if self.told_ms != now_ms and self._asked is None:
            self._asked = (now_ms, ends)
        return self.told_ms

"""Which offsets of each partition a table holds, as a property of its snapshots. Pure."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MOST_RANGES = 100
"""Ranges of a partition that a property lists: every snapshot of the table repeats them, and so its metadata."""


@dataclass(frozen=True)
class OffsetRanges:
    """A set of offsets, as ranges that are in order and do not touch; the end of a range is not in it."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self.ranges, offset, key=lambda one: one[0])
        return place > 0 and offset < self.ranges[place - 1][1]

    def plus(self, begin: int, end: int, *, without: Iterable[int] = ()) -> OffsetRanges:
        """Return the set with the offsets from `begin` to before `end`, but for those of `without`.

        Where that makes more than MOST_RANGES, the smallest gaps are closed, the oldest of them first: the records in
        them count as held. A gap of failed records is small, one of records that were never read is not.
        """
        added = []
        for offset in sorted({*without, end}):
            if begin < min(offset, end):
                added.append((begin, min(offset, end)))
            begin = max(begin, offset + 1)
        return OffsetRanges(_bounded(_joined([*self.ranges, *added])))


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def _bounded(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    excess = len(ranges) - MOST_RANGES
    if excess <= 0:
        return ranges
    gaps = sorted((after[0] - before[1], before[1], after[0]) for before, after in pairwise(ranges))
    return _joined([*ranges, *((begin, end) for _, begin, end in gaps[:excess])])


class Source(NamedTuple):
    """A partition of a topic. The id (KIP-516) tells a topic from one of the same name that was there before it."""

    topic: str
    topic_id: str
    partition: int


class Held(NamedTuple):
    """What a table holds of a partition, and which connector wrote it."""

    connector: str
    offsets: OffsetRanges


def to_property(held: Mapping[Source, Held]) -> str:
    """Return what a snapshot's property says about partitions."""
    return json.dumps(
        [[*source, one.connector, one.offsets.ranges] for source, one in sorted(held.items())], separators=(",", ":")
    )


def from_property(text: str) -> dict[Source, Held]:
    """Read a snapshot's property. Raises ValueError for something else."""
    try:
        return {
            Source(str(topic), str(topic_id), int(partition)): Held(
                str(connector), OffsetRanges(tuple((int(begin), int(end)) for begin, end in ranges))
            )
            for topic, topic_id, partition, connector, ranges in json.loads(text)
        }
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text[:100]!r} does not say which offsets a table holds") from error

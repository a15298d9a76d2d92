"""Roll-ups and sliding windows: longer windows that are made of finished, shorter ones (ADR 0200, ADR 0262). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

MAX_PARTS = 10_000
"""Most windows of which one roll-up is made: they are merged as one array."""
MAX_OVERLAP = 100
"""Most sliding windows that a time lies in: so often each part of them is merged."""


class Declared(Protocol):
    """A roll-up as the settings declare it."""

    @property
    def length_ms(self) -> int: ...

    @property
    def slide_ms(self) -> int | None: ...

    @property
    def output_topic(self) -> str: ...

    @property
    def grouped_topic(self) -> str: ...


@dataclass(frozen=True)
class Rollup:
    """Windows of one length, and the shorter windows that they are made of."""

    name: str
    length_ms: int
    output_topic: str
    grouped_topic: str
    """Empty: there are no groups of these windows."""
    part_ms: int
    """The length of the shorter windows, of which the longer one has a whole number."""
    part_topic: str
    slide_ms: int | None = None
    """The distance between the starts of two windows; None: they follow each other."""

    @property
    def step_ms(self) -> int:
        """Return the distance between the starts of two windows."""
        return self.slide_ms or self.length_ms

    def start_of(self, time_ms: int) -> int:
        """Return the start of the window that a time belongs to, in epoch ms."""
        return time_ms // self.length_ms * self.length_ms


def plan(window_ms: int, output_topic: str, declared: Mapping[str, Declared]) -> Sequence[Rollup]:
    """Return the roll-ups by ascending length, each made of the longest windows that it has a whole number of.

    Sliding windows begin and end with one of these, and are no parts themselves: they overlap. Raises ValueError naming
    the roll-up that cannot be made.
    """
    known = [(window_ms, output_topic)]
    rollups = []
    for name, one in sorted(declared.items(), key=lambda entry: entry[1].length_ms):
        slide_ms = one.slide_ms
        step_ms = math.gcd(one.length_ms, slide_ms or one.length_ms)
        parts = [(length, topic) for length, topic in known if length < one.length_ms and step_ms % length == 0]
        if not parts:
            slide = "" if slide_ms is None else f", slide_ms {slide_ms}"
            raise ValueError(
                f"windows.{name}: length_ms {one.length_ms}{slide} must be a multiple of window_ms {window_ms}"
            )
        if slide_ms is not None and one.length_ms > MAX_OVERLAP * slide_ms:
            raise ValueError(
                f"windows.{name}: slide_ms {slide_ms} is not allowed: must be {-(-one.length_ms // MAX_OVERLAP)} or "
                f"more, so that a time lies in {MAX_OVERLAP} windows or fewer"
            )
        part_ms, part_topic = parts[-1]
        if one.length_ms > MAX_PARTS * part_ms:
            raise ValueError(
                f"windows.{name}: length_ms {one.length_ms} is more than {MAX_PARTS} windows of {part_ms} ms; declare "
                "windows between them"
            )
        topics = one.output_topic, one.grouped_topic
        rollups.append(Rollup(name, one.length_ms, *topics, part_ms, part_topic, slide_ms))
        if slide_ms is None:
            known.append((one.length_ms, one.output_topic))
    for shorter, longer in pairwise(rollups):
        if shorter.length_ms == longer.length_ms:
            raise ValueError(f"windows.{longer.name}: length_ms {longer.length_ms} is that of windows.{shorter.name}")
    return rollups

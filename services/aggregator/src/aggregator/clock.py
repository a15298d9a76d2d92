"""How far time has come: the one thing that moves the watermark. Pure (ADR 0030).

Time has come to T when every record that a front door took in before T has been read, in every partition. What is
still unread in a partition bears the ingest time of its first record; a partition that is read to its end has nothing
to say against the wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unread:
    """A partition with unread records; `ingest_time_ms` is that of the first, None when it cannot be told."""

    ingest_time_ms: int | None


def reached_ms(
    asked_at_ms: int, unread: Iterable[Unread], newest_read_ms: int | None, *, idle_flush: bool
) -> int | None:
    """How far time has come, in epoch ms; None when that cannot be told now.

    `asked_at_ms` is the wall clock's time before the ends of the partitions were asked for, `newest_read_ms` the
    newest ingest time that was read. Without `idle_flush` the wall clock counts for nothing.
    """
    firsts = [partition.ingest_time_ms for partition in unread]
    if any(first is None for first in firsts):
        return None
    if firsts:
        # The wall clock bounds what a wrong ingest time in the future can do.
        return min(asked_at_ms, *(first for first in firsts if first is not None))
    return asked_at_ms if idle_flush else newest_read_ms


@dataclass(frozen=True)
class Ticks:
    """When a tick is worth a micro-batch: only when it lets the watermark pass the end of a window."""

    window_ms: int
    slide_ms: int
    max_skew_ms: int
    delay_ms: int

    def tick_ms(self, reached_ms: int) -> int:
        """The event time of the clock's row: that of the furthest reading that could have come by then."""
        return reached_ms + self.max_skew_ms

    def watermark_ms(self, reached_ms: int) -> int:
        """The watermark that follows from the tick."""
        return self.tick_ms(reached_ms) - self.delay_ms

    def is_due(self, reached_ms: int, watermark_ms: int) -> bool:
        """Whether a window may end between the watermark as it is and as it would be."""
        step = math.gcd(self.window_ms, self.slide_ms)
        return self.watermark_ms(reached_ms) // step > watermark_ms // step

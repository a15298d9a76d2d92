"""How far time has come: the one thing that moves the watermark. Pure (ADR 0030).

Time has come to T when every record that the brokers appended before T has been read, in every partition. What is still
unread in a partition was appended at the time of its first unread record or later; a partition that is read to its end
will be appended to no earlier than the brokers' present time. The driver's own clock says nothing about either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_LEAST_RATE = 0.999
"""How fast the brokers' clocks go at least by ours: NTP slews a clock by 500 parts in a million."""


class BrokerTime:
    """The least that the brokers' clocks can show now.

    It is the newest time of a record that was heard, and what has passed since by the monotonic clock of this host,
    which knows of no time of day: a driver whose clock is an hour off changes nothing.
    """

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._heard: tuple[int, float] | None = None

    def hear(self, time_ms: int) -> None:
        """Take in the time at which a broker appended a record (epoch ms); what is known already changes nothing."""
        now_ms = self.now_ms()
        if now_ms is None or time_ms > now_ms:
            self._heard = (time_ms, self._elapsed_s())

    def now_ms(self) -> int | None:
        """Epoch ms; None before anything was heard."""
        if self._heard is None:
            return None
        time_ms, at_s = self._heard
        return time_ms + int((self._elapsed_s() - at_s) * 1000 * _LEAST_RATE)


@dataclass(frozen=True)
class Unread:
    """A partition with unread records, and what its first one says; None is what cannot be told."""

    appended_ms: int | None
    """When the broker appended it. Kafka says so, whatever is in the record."""
    ingest_time_ms: int | None = None

    def is_timely(self, publish_delay_ms: int) -> bool:
        """Whether its two times agree, so that neither a broker nor an ingest service far ahead is believed alone."""
        if self.appended_ms is None or self.ingest_time_ms is None:
            return False
        return self.appended_ms <= self.ingest_time_ms + publish_delay_ms


def reached_ms(
    now_ms: int | None,
    unread: Iterable[Unread],
    newest_read_ms: int | None,
    *,
    idle_flush: bool,
) -> int | None:
    """How far time has come, in epoch ms; None when that cannot be told now.

    `now_ms` is the brokers' time before the ends of the partitions were asked for, `newest_read_ms` the newest append
    time that was read. Without `idle_flush` it says nothing, nor does a partition that is read to its end.
    """
    found = list(unread)
    firsts = [partition.appended_ms for partition in found if partition.appended_ms is not None]
    if len(firsts) < len(found):
        return None
    if not idle_flush:
        return min(firsts, default=newest_read_ms)
    # Also where every partition has unread records: a broker that is ahead, and put right, appends in the past again.
    return None if now_ms is None else min([now_ms, *firsts])


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

"""How far the input has been read, in broker time. Only this moves the watermark (ADR 0030). Pure.

The input is read until T when every record that a broker appended before T has been read, in every partition. In a
partition with unread records, the first unread record and all records after it were appended at its append time or
later. A broker appends the next record of a partition that is read to its end no earlier than the brokers' present
time. The driver's wall clock plays no part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_MIN_RATE = 0.999
"""The slowest rate of the brokers' clocks against ours. NTP slews a clock by at most 500 parts in a million."""


class BrokerClock:
    """A lower bound of the time that the brokers' clocks show now.

    It is the newest append time observed, plus the time that has passed since then on this host's monotonic clock. A
    driver whose wall clock is an hour off changes nothing.
    """

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._newest: tuple[int, float] | None = None

    def observe(self, time_ms: int) -> None:
        """Take the time (epoch ms) at which a broker appended a record. An older time has no effect."""
        now_ms = self.now_ms()
        if now_ms is None or time_ms > now_ms:
            self._newest = (time_ms, self._elapsed_s())

    def now_ms(self) -> int | None:
        """Return the bound in epoch ms; None before the first observation."""
        if self._newest is None:
            return None
        time_ms, observed_s = self._newest
        return time_ms + int((self._elapsed_s() - observed_s) * 1000 * _MIN_RATE)


@dataclass(frozen=True)
class UnreadPartition:
    """A partition with unread records, described by its first one. None stands for a time that is not known."""

    appended_ms: int | None
    """When the broker appended the record, in epoch ms. Kafka reports it whatever the record holds."""
    ingest_time_ms: int | None = None

    def is_plausible(self, max_publish_delay_ms: int) -> bool:
        """Return whether the two times agree.

        A broker whose clock is far ahead, or an ingest service whose clock is far ahead, is not trusted alone.
        """
        if self.appended_ms is None or self.ingest_time_ms is None:
            return False
        return self.appended_ms <= self.ingest_time_ms + max_publish_delay_ms


def read_until_ms(
    now_ms: int | None,
    unread: Iterable[UnreadPartition],
    newest_read_ms: int | None,
    *,
    advance_when_idle: bool,
) -> int | None:
    """Return how far the input has been read, in epoch ms of broker time; None when that is not known now.

    `now_ms` is the brokers' time from before the end offsets were requested. `newest_read_ms` is the newest append time
    of a record that was read. Without `advance_when_idle` only records move time: `now_ms` and partitions that are read
    to their end are ignored.
    """
    partitions = list(unread)
    firsts = [partition.appended_ms for partition in partitions if partition.appended_ms is not None]
    if len(firsts) < len(partitions):
        return None
    if not advance_when_idle:
        return min(firsts, default=newest_read_ms)
    # The bound by `now_ms` holds even where every partition has unread records: after the clock of a broker that was
    # ahead is corrected, the broker appends at earlier times again.
    return None if now_ms is None else min([now_ms, *firsts])


@dataclass(frozen=True)
class TickSchedule:
    """When a tick is worth a micro-batch: only when it moves the watermark past the end of a window. All in ms."""

    window_ms: int
    slide_ms: int
    max_skew_ms: int
    delay_ms: int
    """The delay of Spark's watermark."""

    def tick_ms(self, read_until_ms: int) -> int:
        """Return the event time of the clock's row: that of the furthest reading on time that can have come by then."""
        return read_until_ms + self.max_skew_ms

    def watermark_ms(self, read_until_ms: int) -> int:
        """Return the watermark that follows from the tick."""
        return self.tick_ms(read_until_ms) - self.delay_ms

    def is_due(self, read_until_ms: int, watermark_ms: int) -> bool:
        """Return whether a window can end between the present watermark and the one that the tick would bring."""
        step = math.gcd(self.window_ms, self.slide_ms)
        return self.watermark_ms(read_until_ms) // step > watermark_ms // step

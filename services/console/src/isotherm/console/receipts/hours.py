"""Which hours of event time need a receipt. Pure. Times are epoch milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from isotherm.connector.receipts.receipt import HOUR_MS, Receipt

_CLOCK_ERROR_MS = 60_000
"""How much the clocks of this machine and of a broker may differ."""
_REMEMBERED_MS = 48 * HOUR_MS
"""Receipts are remembered longer than late readings count: a clock that was ahead may have made some of them."""


class TopicHour(NamedTuple):
    """An hour of event time of a topic of readings."""

    topic: str
    start_ms: int


class IssuedReceipt(NamedTuple):
    """What is remembered of a receipt: the topic may have those of years."""

    revision: int
    issued_ms: int
    readings: int
    parts_digest: bytes
    looked_ms: int
    """When the readings of the hour were looked at last; those that were in Kafka then are in the receipt."""


class ReceiptHours:
    """The receipts that were issued, and the hours that wait for one.

    One thread asks and settles; others may bring receipts or ask how long an hour waits meanwhile.
    """

    def __init__(self, topics: Iterable[str], *, delay_ms: int, late_ms: int) -> None:
        """Begin without receipts.

        Args:
            topics: the topics of readings.
            delay_ms: how long after its end an hour gets its receipt.
            late_ms: how long after its start late readings that are appended make another one.
        """
        self._topics, self._delay_ms, self._late_ms = tuple(topics), delay_ms, late_ms
        self._lock = threading.Lock()
        self._newest: dict[TopicHour, IssuedReceipt] = {}
        self._early: set[TopicHour] = set()
        """Hours whose receipt was seen to be of the future."""
        self._last: dict[str, int] = {}
        """The last hour of each topic that needs no first receipt any more."""
        self._late: dict[TopicHour, None] = {}
        """Hours for which readings came after their receipt; the first one first."""

    def take(self, receipt: Receipt) -> None:
        """Note a receipt that is in the topic."""
        hour = TopicHour(receipt.topic, receipt.start_ms)
        with self._lock:
            known = self._newest.get(hour)
            if known is None or receipt.revision >= known.revision:
                issued_ms = receipt.issued_ms
                self._newest[hour] = IssuedReceipt(
                    receipt.revision, issued_ms, receipt.readings, receipt.parts_digest(), issued_ms
                )
            self._last[receipt.topic] = max(receipt.start_ms, self._last.get(receipt.topic, 0))

    def take_record(self, record: Mapping[str, Any]) -> None:
        """Note a decoded record of the topic. Raises ValueError for one that nobody issues."""
        self.take(Receipt.of(record))

    def begin(self, now_ms: int) -> None:
        """Look at the hours again of which late readings counted when the last receipt was issued.

        Some may have been noted before a restart. The first receipt of a topic without any is that of the last whole
        hour, however long that hour has to wait.
        """
        first_ms = self._complete_ms(now_ms) - HOUR_MS
        with self._lock:
            for topic in self._topics:
                self._last.setdefault(topic, first_ms)
            known = sorted(
                hour
                for hour in self._newest
                if hour.topic in self._topics and hour.start_ms >= self._last[hour.topic] - self._late_ms
            )
            self._late.update(dict.fromkeys(known))

    def newest(self, hour: TopicHour) -> IssuedReceipt | None:
        """Return the receipt of an hour that counts."""
        return self._newest.get(hour)

    def next(self, now_ms: int, without: Collection[str] = ()) -> TopicHour | None:
        """Return an hour that needs a receipt now: the oldest that has none, or else one with late readings.

        A receipt of the future was issued while the clock was wrong, and counts as none. Hours of the topics `without`
        have to wait.
        """
        first = self._next_first(now_ms, without)
        if first is not None:
            return first
        with self._lock:
            return next((hour for hour in self._late if hour.topic not in without), None)

    def wait_ms(self, now_ms: int) -> int:
        """Return how long until the next hour is complete."""
        return self._complete_ms(now_ms) + 2 * HOUR_MS + self._delay_ms - now_ms

    def behind_ms(self, now_ms: int) -> int:
        """Return how long the oldest hour has been waiting for its first receipt; 0 while none does."""
        hour = self._next_first(now_ms, ())
        return 0 if hour is None else now_ms - hour.start_ms - HOUR_MS - self._delay_ms

    def note_late(self, hour: TopicHour, appended_ms: int) -> None:
        """Note a reading that was read of another hour; it matters if the receipt of that hour may lack it."""
        known = self._newest.get(hour)
        if (
            known is not None
            and appended_ms >= known.looked_ms - _CLOCK_ERROR_MS
            and hour.start_ms >= appended_ms - self._late_ms
        ):
            with self._lock:
                self._late[hour] = None

    def is_early(self, receipt: IssuedReceipt, now_ms: int) -> bool:
        """Whether a receipt is of the future."""
        return receipt.issued_ms > now_ms + _CLOCK_ERROR_MS

    def settle(self, hour: TopicHour, looked_ms: int) -> None:
        """Note that an hour, which was looked at then, needs nothing more; forget old receipts of its topic."""
        kept_ms = hour.start_ms - self._late_ms - _REMEMBERED_MS
        with self._lock:
            self._late.pop(hour, None)
            self._early.discard(hour)
            self._last[hour.topic] = max(hour.start_ms, self._last.get(hour.topic, 0))
            if known := self._newest.get(hour):
                issued_ms = min(known.issued_ms, looked_ms)
                self._newest[hour] = known._replace(issued_ms=issued_ms, looked_ms=looked_ms)
            self._newest = {
                one: receipt
                for one, receipt in self._newest.items()
                if one.topic != hour.topic or one.start_ms >= kept_ms or one in self._late or one in self._early
            }

    def _next_first(self, now_ms: int, without: Collection[str]) -> TopicHour | None:
        """Return the oldest complete hour without a receipt."""
        complete_ms = self._complete_ms(now_ms)
        with self._lock:
            self._early.update(hour for hour, one in self._newest.items() if self.is_early(one, now_ms))
            # A topic may hold readings of months. Its first receipt is that of the last whole hour.
            firsts = {topic: self._last.get(topic, complete_ms - HOUR_MS) + HOUR_MS for topic in self._topics}
            hours = [*self._early, *(TopicHour(topic, start_ms) for topic, start_ms in firsts.items())]
        due = [hour for hour in hours if hour.start_ms <= complete_ms and hour.topic not in without]
        return min(due, key=lambda hour: hour.start_ms, default=None)

    def _complete_ms(self, now_ms: int) -> int:
        """Return the start of the newest hour that is complete."""
        end_ms = now_ms - self._delay_ms
        return end_ms - end_ms % HOUR_MS - HOUR_MS

"""Sequence numbers for readings without a device time: (arrival in ms, sequence) never repeats.

A reading's identity is (device, metric, event time, sequence). Without a device time the event time is the arrival. Two
connections can carry readings of one device within one millisecond, so the numbers belong to the process and not to
the connection. When the clock steps back, the same millisecond occurs twice; the numbers then continue above every
number that was used.
"""

from __future__ import annotations

_PROCESS_BITS = 32


class SequenceGenerator:
    """Sequence numbers of one process.

    `process` is the number of the process among those that share the devices; it separates their numbers.
    """

    __slots__ = ("_first", "_latest_ms", "_ms", "_next", "_start", "_used")

    def __init__(self, process: int = 0) -> None:
        self._first = process << _PROCESS_BITS
        self._start = self._first
        self._next = self._first
        self._used = self._first
        self._ms = -1
        self._latest_ms = -1

    def take(self, now_ms: int, count: int) -> int:
        """Return the first of `count` consecutive numbers for an arrival at `now_ms`, in epoch milliseconds."""
        if now_ms != self._ms:
            self._move_to(now_ms)
        first = self._next
        self._next = first + count
        return first

    def _move_to(self, now_ms: int) -> None:
        self._used = max(self._used, self._next)
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
            self._start = self._first
        elif now_ms < self._ms:
            self._start = self._used
        self._ms = now_ms
        self._next = self._start

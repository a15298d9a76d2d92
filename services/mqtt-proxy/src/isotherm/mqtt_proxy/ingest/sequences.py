"""Numbers that tell readings without a time of their own apart: (arrival in ms, sequence) never repeats. Pure.

The reading's identity is (device, metric, event time, sequence), and without a time of the device's the event time is
the arrival. Two connections can carry readings of one device within one millisecond, so the numbers are of the process,
not of the connection; `number` sets those of several processes apart. A clock that is stepped back meets milliseconds
for the second time: there the numbers go on above every one that was used.
"""

from __future__ import annotations

_PROCESS_BITS = 32


class Sequences:
    """The sequences of one process; `number` is its number among those that share the devices."""

    __slots__ = ("_first", "_latest_ms", "_ms", "_next", "_start", "_used")

    def __init__(self, number: int = 0) -> None:
        self._first = number << _PROCESS_BITS
        self._start = self._first
        self._next = self._first
        self._used = self._first
        self._ms = -1
        self._latest_ms = -1

    def take(self, now_ms: int, count: int) -> int:
        """The first of `count` consecutive sequences for what arrived at `now_ms`."""
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

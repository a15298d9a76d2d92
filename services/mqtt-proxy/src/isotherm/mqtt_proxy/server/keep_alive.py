"""The keep-alive of a connection (MQTT 5.0 section 3.1.2.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_ONE_POLL_S = 0.001
"""A timer of this time runs after the loop has polled all sockets once."""


class KeepAlive:
    """Calls `on_silence` with the seconds of silence after 1.5 times the keep-alive without a packet.

    While `is_reading` returns False the server itself does not read, so no silence counts. `last_packet_s` is the loop
    time of the last packet.

    uvloop runs the due timers after the callbacks of one poll and before the next poll. When those callbacks take
    long, a packet that came in time waits in its socket while the timer runs. So the sockets are polled once more
    before silence is established.
    """

    __slots__ = ("_has_polled", "_is_reading", "_limit_s", "_loop", "_on_silence", "_timer", "last_packet_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_reading: Callable[[], bool], on_silence: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._is_reading = is_reading
        self._on_silence = on_silence
        self._limit_s = 0.0
        self._has_polled = False
        self._timer: asyncio.TimerHandle | None = None
        self.last_packet_s = loop.time()

    def await_connect(self, timeout_s: float, on_timeout: Callable[[], None]) -> None:
        """Call `on_timeout` after this time, unless `start` or `cancel` comes before."""
        self._timer = self._loop.call_later(timeout_s, on_timeout)

    def start(self, keep_alive_s: int) -> None:
        """Watch for silence from now on; 0 seconds for never."""
        self.cancel()
        self.last_packet_s = self._loop.time()
        self._limit_s = keep_alive_s * 1.5
        if keep_alive_s:
            self._timer = self._loop.call_later(self._limit_s, self._check)

    def cancel(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        left_s = self._limit_s
        if self._is_reading():
            left_s += self.last_packet_s - self._loop.time()
        if left_s > 0:
            self._has_polled = False
            self._timer = self._loop.call_later(left_s, self._check)
        elif not self._has_polled:
            self._has_polled = True
            self._timer = self._loop.call_later(_ONE_POLL_S, self._check)
        else:
            self._on_silence(self._limit_s)

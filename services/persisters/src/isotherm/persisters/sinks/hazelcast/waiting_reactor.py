"""Lets the Hazelcast client's reactor sleep until there is something to do. See docs/adr/0101.

The client's event loop polls its sockets every 10 ms, whatever it waits for: 100 wake-ups a second at rest. The short
poll covers two faults: a wake-up from another thread can be lost, and a new timer does not wake the loop. This module
corrects both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hazelcast import reactor

_LONGEST_WAIT_S = 0.1
"""The client's own timer for broken connections (`InvocationService._CLEAN_RESOURCES_PERIOD`) runs as often."""
_POLL_RESOLUTION_S = 0.001
"""The loop's poll takes whole milliseconds and cuts the rest off."""
_PIPE_BYTES = 4096


class Waker(reactor._PipedWaker):
    """Wakes the event loop by a byte in a pipe; one byte is under way at most."""

    def handle_read(self) -> None:
        """Empty the pipe, and only then let wake-ups send a byte again.

        The client does it the other way round: the byte of a wake-up in between is read as well, but stays noted as
        under way, and no later wake-up sends one. A wake-up that sends no byte here is not lost, because the loop looks
        at its connections and timers again before it waits.
        """
        with suppress(OSError):
            while len(os.read(self._read_fd, _PIPE_BYTES)) == _PIPE_BYTES:
                continue
        self.awake = False

    def close(self) -> None:
        """Close the pipe. A wake-up after that would write to whatever gets the number of its descriptor next."""
        self.awake = True
        super().close()  # type: ignore[no-untyped-call]  # the client leaves it untyped


class WaitingLoop(reactor._WakeableLoop):
    """The client's event loop, waiting until a socket is ready, a timer is due, or another thread wakes it."""

    _waker_class = Waker

    def run_loop(self) -> None:
        """Wait once, and handle the sockets that are ready."""
        # The client's own copy where Python has none any more.
        asyncore: Any = vars(reactor)["asyncore"]
        asyncore.loop(timeout=self._wait_s(), use_poll=True, map=self._map, count=1)

    def add_timer(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call `callback` in the loop's thread after `delay` seconds; return the timer."""
        timer = super().add_timer(delay, callback)  # type: ignore[no-untyped-call]  # the client leaves it untyped
        self.wake_loop()  # type: ignore[no-untyped-call]  # as above
        return timer

    def _wait_s(self) -> float:
        if self._new_timers:
            return 0.0
        if not self._timers:
            return _LONGEST_WAIT_S
        due_s: float = self._timers[0][0] - time.time()
        return min(_LONGEST_WAIT_S, max(0.0, due_s) + _POLL_RESOLUTION_S)


def install() -> None:
    """Let every client that is made from now on use `WaitingLoop`."""
    module: Any = reactor
    module._WakeableLoop = WaitingLoop

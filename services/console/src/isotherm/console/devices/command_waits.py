"""Requests that wait for the final outcome of a command: the follower of outcomes wakes them; they hold no thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from isotherm.console.devices.command_log import CommandLog, Key
from isotherm.console.errors import UnavailableError

MAX_WAITS = 500
"""Most requests that wait at a time; each holds a connection and some kilobytes."""


class OutcomeWaits:
    """Waits for final outcomes in any event loop, woken from any thread."""

    def __init__(self, log: CommandLog, max_waits: int = MAX_WAITS) -> None:
        self._log, self._max_waits = log, max_waits
        self._lock = threading.Lock()
        self._waiting: dict[Key, set[_Wait]] = {}
        self._count = 0
        self._is_closed = False
        log.on_final = self._wake

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._count

    async def wait(self, key: Key, timeout_ms: int) -> None:
        """Return when the command has its final outcome, when the time is over, or when the console stops.

        Raises UnavailableError when too many requests wait already.
        """
        wait = _Wait()
        self._add(key, wait)
        try:
            # Whatever comes after this look sets the event.
            known = self._log.get(key)
            if self._is_closed or (known is not None and known.final is not None):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await wait.event.wait()
        finally:
            self._remove(key, wait)

    def close(self) -> None:
        """Let all requests that wait answer now, and those that come wait no more: the console stops."""
        with self._lock:
            self._is_closed = True
            waiting = [one for of in self._waiting.values() for one in of]
        for one in waiting:
            one.wake()

    def _add(self, key: Key, wait: _Wait) -> None:
        with self._lock:
            if self._count >= self._max_waits:
                raise UnavailableError(f"{self._max_waits} requests wait for outcomes at this moment; try again")
            self._count += 1
            self._waiting.setdefault(key, set()).add(wait)

    def _remove(self, key: Key, wait: _Wait) -> None:
        with self._lock:
            self._count -= 1
            waiting = self._waiting[key]
            waiting.discard(wait)
            if not waiting:
                del self._waiting[key]

    def _wake(self, key: Key) -> None:
        with self._lock:
            waiting = list(self._waiting.get(key, ()))
        for one in waiting:
            one.wake()


class _Wait:
    """A request that waits in the running event loop."""

    def __init__(self) -> None:
        self._loop, self.event = asyncio.get_running_loop(), asyncio.Event()

    def wake(self) -> None:
        """Wake the request from any thread."""
        with suppress(RuntimeError):  # The loop has ended, and the request with it.
            self._loop.call_soon_threadsafe(self.event.set)

"""Restarts of a server: what one observer notices, the observers of the server's other resources act on."""

from __future__ import annotations

import time
from collections.abc import Callable

AskSoon = Callable[[float], None]
"""Ask the server again within this many ms."""

_SPREAD_MS = 1_000.0
_QUIET_MS = 10_000.0


class RestartDetector:
    """Connects the observers of one server.

    A server that restarts loses all observations at once, but each observer misses its own only after Max-Age. When the
    first observer notices, the detector makes the others ask again within `spread_ms`. It does so once in `quiet_ms`,
    because what the others find then is the same restart.
    """

    def __init__(
        self,
        spread_ms: float = _SPREAD_MS,
        quiet_ms: float = _QUIET_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spread_ms = spread_ms
        self._quiet_ms = quiet_ms
        self._clock = clock
        self._observers: list[AskSoon] = []
        self._notified_at = float("-inf")

    def subscribe(self, ask_soon: AskSoon) -> None:
        """Notify this observer of restarts that others notice."""
        self._observers.append(ask_soon)

    def unsubscribe(self, ask_soon: AskSoon) -> None:
        """Stop notifying this observer."""
        self._observers.remove(ask_soon)

    def report_restart(self, reporter: AskSoon) -> None:
        """Notify all observers except `reporter`, who saw the server answer after an outage."""
        now = self._clock()
        if (now - self._notified_at) * 1000 < self._quiet_ms:
            return
        self._notified_at = now
        for ask_soon in self._observers:
            if ask_soon != reporter:
                ask_soon(self._spread_ms)

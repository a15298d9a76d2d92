"""Holds the publishes of a connection while a rate is exceeded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from isotherm.mqtt_proxy.access.connection_limits import ConnectionLimits, RateMeter

_MIN_PAUSE_S = 0.02
"""Minimum pause of a rate-limited connection in seconds, so that many of them do not wake the loop continuously."""


class PublishRates:
    """The rates of one connection: its own, and those of all connections. At least one meter is given.

    `resume` is called when the connection may continue. A rate delays publishes and drops none.
    """

    __slots__ = ("_limits", "_loop", "_meters", "_resume", "_timer")

    def __init__(
        self,
        limits: ConnectionLimits,
        meters: tuple[RateMeter, ...],
        loop: asyncio.AbstractEventLoop,
        resume: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._meters = meters
        self._loop = loop
        self._resume = resume
        self._timer: asyncio.TimerHandle | None = None

    def count(self, payload_bytes: int) -> None:
        """Count a publish."""
        for meter in self._meters:
            meter.count(payload_bytes)

    def must_wait(self) -> bool:
        """Return whether the next publish must wait; `resume` is called when it need not any more."""
        if self._timer is not None:
            return True
        now_s = time.monotonic()
        wait_s = max(meter.wait_s(now_s) for meter in self._meters)
        if not wait_s:
            return False
        self._limits.count_pause(now_s)
        self._timer = self._loop.call_later(max(wait_s, _MIN_PAUSE_S), self._on_timer)
        return True

    def cancel(self) -> None:
        """Resume no more: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._resume()

"""Rate-limited log lines for events that a device or a server can cause at any rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from structlog.stdlib import BoundLogger


class SparseLog:
    """Logs `message` at most once in `interval_s` seconds, with the number of events since the last line.

    The line also holds the details of the newest event, each under its name with the prefix `last_`.
    """

    def __init__(
        self,
        log: BoundLogger,
        message: str,
        *,
        level: Literal["warning", "error"] = "warning",
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._level = level
        self._message = message
        self._interval_s = interval_s
        self._clock = clock
        self._times = 0
        self._logged_s = float("-inf")

    def __call__(self, **last: Any) -> None:
        """Count one event with its details, and write the line when the interval has passed."""
        self._times += 1
        now_s = self._clock()
        if now_s - self._logged_s >= self._interval_s:
            details = {f"last_{name}": value for name, value in last.items()}
            getattr(self._log, self._level)(self._message, times=self._times, **details)
            self._times, self._logged_s = 0, now_s

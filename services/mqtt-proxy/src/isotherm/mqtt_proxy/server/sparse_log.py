"""Log lines for what a device can cause as often as it likes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from isotherm.servicekit import logs

_log = logs.logger(__name__)


class SparseLog:
    """Logs a warning once in `interval_s` at most: how often it happened since, and what it was the last time."""

    def __init__(self, message: str, *, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._message = message
        self._interval_s = interval_s
        self._clock = clock
        self._times = 0
        self._logged_s = float("-inf")

    def __call__(self, **last: Any) -> None:
        """It happened."""
        self._times += 1
        now_s = self._clock()
        if now_s - self._logged_s >= self._interval_s:
            _log.warning(self._message, times=self._times, **{f"last_{name}": value for name, value in last.items()})
            self._times, self._logged_s = 0, now_s

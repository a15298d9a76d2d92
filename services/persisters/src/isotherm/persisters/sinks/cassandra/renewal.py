"""When to connect anew: a driver that does not find back to its servers must not keep a connector away for ever.

The driver connects again to a server that was down, and has a state for it that tells its threads apart: one handles
that the server is up. When that one does not end, nobody uses the server any more, though it answers. It was seen after
a server was killed while the driver was young (seed 19 of the fault runs); only new connections help.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.servicekit import logs

_log = logs.logger(__name__)

RENEW_AFTER_S = 30.0
"""Much longer than the driver needs to find a server that is back: it tries every second."""


class Renewal:
    """Counts how long no write has reached a server; safe for several threads."""

    def __init__(self, connect_anew: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`connect_anew` raises Unavailable while no server answers, SinkConfigError if one refuses us."""
        self._connect_anew, self._clock = connect_anew, clock
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._is_busy = self._is_closed = False

    def succeeded(self) -> None:
        """Note that a server has answered."""
        self._since_s = None

    def failed(self) -> None:
        """Note that no server has answered; connect anew when that has lasted for long. Only one thread at a time."""
        with self._lock:
            now_s = self._clock()
            if self._since_s is None:
                self._since_s = now_s
            if self._is_closed or self._is_busy or now_s - self._since_s < RENEW_AFTER_S:
                return
            self._is_busy, self._since_s = True, now_s
        try:
            self._connect_anew()
        except (Unavailable, SinkConfigError) as away:
            _log.warning("no server takes new connections either", reason=str(away))
        else:
            _log.warning("connected anew: the driver had not found back to its servers")
        finally:
            self._is_busy = False

    def close(self) -> None:
        """Connect no more."""
        with self._lock:
            self._is_closed = True

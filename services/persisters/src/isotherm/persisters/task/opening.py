"""Opening a sink that may not be available yet, and closing one that may not be available any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from isotherm.persisters.api.sink import Sink, Unavailable
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_HEARTBEAT_S = 1.0
"""Longest wait between two heartbeats: a back-off may be longer than a task without a heartbeat counts as alive."""
_CLOSE_TIMEOUT_S = 2.0
"""How long the end of the task waits for the sink's client. The end of the process ends a client that hangs."""


def open_sink(sink: Sink, stop: Stop, health: Health, backoff: Backoff, on_wait: Callable[[], None]) -> bool:
    """Open the sink, again and again with back-off, until it is available.

    `on_wait` is called about once a second while it is not. Returns False if `stop` came first. Raises SinkConfigError.
    """
    while not stop.is_set():
        try:
            sink.open()
        except Unavailable as away:
            health.beat()
            health.not_ready("sink", str(away))
            wait_ms = max(backoff.next_ms(), away.retry_after_ms or 0.0)
            _log.warning("sink not available, trying again", reason=str(away), wait_ms=round(wait_ms))
            until_s = time.monotonic() + wait_ms / 1000
            while not stop.wait(min(wait_ms / 1000, _HEARTBEAT_S)) and time.monotonic() < until_s:
                health.beat()
                on_wait()
        else:
            health.ready("sink")
            return True
    return False


def close_sink(sink: Sink) -> None:
    """Close the sink, or leave that to the end of the process if it takes long."""
    closing = threading.Thread(target=sink.close, name="sink-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_TIMEOUT_S)

"""Waiting for a server while a service starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

T = TypeVar("T")


def wait_until_up(
    part: str,
    action: Callable[[], T],
    away: type[Exception] | tuple[type[Exception], ...],
    *,
    health: Health,
    stop: Stop,
    backoff: Backoff | None = None,
) -> T | None:
    """Call `action` until it returns, and return its result; return None when the stop is requested first.

    While `action` raises one of `away`, the server is unavailable: `health` shows `part` as not ready with the reason,
    and the next call follows after the next pause of `backoff`. Blocks the calling thread. Raises every other exception
    of `action`.
    """
    # Health counts a process as dead after 30 s without a beat, so no pause may last that long.
    backoff = backoff or Backoff(cap_ms=10_000)
    while not stop.is_set():
        health.beat()
        try:
            result = action()
        except away as error:
            health.not_ready(part, str(error))
            wait_ms = backoff.next_ms()
            _log.warning("waiting for a server", part=part, reason=str(error), retry_in_ms=round(wait_ms))
            stop.wait(wait_ms / 1000)
        else:
            health.ready(part)
            return result
    return None

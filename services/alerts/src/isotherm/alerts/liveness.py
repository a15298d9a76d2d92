"""Keeps the service live while its main loop waits for a server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from isotherm.servicekit.health import Health

_BEAT_S = 1.0


async def is_done_within(health: Health, limit_s: float, *tasks: asyncio.Future[Any]) -> bool:
    """Wait until one of the tasks is done, for at most `limit_s`, and beat meanwhile; return whether one is done.

    Cancels no task.
    """
    deadline_s = time.monotonic() + limit_s
    while not any(task.done() for task in tasks):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        health.beat()
        await asyncio.wait(tasks, timeout=min(left_s, _BEAT_S), return_when=asyncio.FIRST_COMPLETED)
    return True

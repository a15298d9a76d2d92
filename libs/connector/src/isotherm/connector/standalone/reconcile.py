"""A standalone task that does what is wanted of its connector: runs, is paused, is restarted, in one process.

For work in a thread, and for work on an event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetState
from isotherm.servicekit.lifecycle import Exit, Stop

_LOOK_S = 0.2


def reconcile(
    target: Callable[[], Target | None],
    task: int,
    stop: Stop,
    work: Callable[[Stop], int],
    idle: Callable[[State | None], None],
) -> int:
    """Do `work` while the connector is to be STARTED, each time with a Stop of its own; the exit code.

    `target` says what is wanted, None as long as nobody knows. While nothing is to be done `idle` is called again and
    again with the state (None: not known yet). Work that ends by itself ends all.
    """
    while not stop.is_set():
        asked = target()
        if asked is None or asked.state is not TargetState.STARTED:
            idle(None if asked is None else State(asked.state.value))
            stop.wait(_LOOK_S)
            continue
        spec = asked.state, asked.restarts_of(task)
        with _halted_when(lambda: stop.is_set() or _spec(target(), task) != spec) as halt:  # noqa: B023 -- ends with the turn
            code = work(halt)
            if code != Exit.OK or not halt.is_set():
                return code
    return Exit.OK


async def reconcile_async(
    target: Callable[[], Target | None],
    task: int,
    stop: Stop,
    work: Callable[[Stop], Coroutine[Any, Any, None]],
    idle: Callable[[State | None], None],
) -> None:
    """As `reconcile`, for a coroutine function. What `work` raises ends all, as does its end by itself."""
    loop = asyncio.get_running_loop()
    stopping = loop.create_task(stop.wait_async())
    try:
        while not stop.is_set():
            asked = target()
            if asked is None or asked.state is not TargetState.STARTED:
                idle(None if asked is None else State(asked.state.value))
                await asyncio.wait([stopping], timeout=_LOOK_S)
                continue
            spec, halt = _spec(asked, task), Stop()
            working = loop.create_task(work(halt))
            while not working.done() and not halt.is_set():
                await asyncio.wait([stopping, working], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set() or _spec(target(), task) != spec:
                    halt.set()
            await working
            if not halt.is_set():
                return
    finally:
        stopping.cancel()


def _spec(target: Target | None, task: int) -> tuple[TargetState, int] | None:
    return None if target is None else (target.state, target.restarts_of(task))


@contextmanager
def _halted_when(changed: Callable[[], bool]) -> Iterator[Stop]:
    halt, over = Stop(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if changed():
                halt.set()
                return

    watching = threading.Thread(target=watch, name="wanted", daemon=True)
    watching.start()
    try:
        yield halt
    finally:
        over.set()
        watching.join()

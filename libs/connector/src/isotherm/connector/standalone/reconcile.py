"""Reconciles a standalone task with its connector's target state: runs, pauses and restarts it in one process.

`reconcile` is for work in a thread, `reconcile_async` for work on an event loop.
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

_CHECK_INTERVAL_S = 0.2


def reconcile(
    target: Callable[[], Target | None],
    task: int,
    stop: Stop,
    work: Callable[[Stop], int],
    idle: Callable[[State | None], None],
) -> int:
    """Run `work` while the target state is STARTED, each time with a Stop of its own; the exit code.

    `target` returns the target, None while it is unknown. While the task must not run, `idle` is called repeatedly with
    the state (None: unknown). Work that returns by itself ends the loop.
    """
    while not stop.is_set():
        desired = target()
        if desired is None or desired.state is not TargetState.STARTED:
            idle(None if desired is None else State(desired.state.value))
            stop.wait(_CHECK_INTERVAL_S)
            continue
        spec = desired.state, desired.restarts_of(task)
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
    """As `reconcile`, for a coroutine function; an exception of `work` ends the loop too."""
    loop = asyncio.get_running_loop()
    stopping = loop.create_task(stop.wait_async())
    try:
        while not stop.is_set():
            desired = target()
            if desired is None or desired.state is not TargetState.STARTED:
                idle(None if desired is None else State(desired.state.value))
                await asyncio.wait([stopping], timeout=_CHECK_INTERVAL_S)
                continue
            spec, halt = _spec(desired, task), Stop()
            working = loop.create_task(work(halt))
            while not working.done() and not halt.is_set():
                await asyncio.wait([stopping, working], timeout=_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
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
        while not over.wait(_CHECK_INTERVAL_S):
            if changed():
                halt.set()
                return

    watching = threading.Thread(target=watch, name="target-state", daemon=True)
    watching.start()
    try:
        yield halt
    finally:
        over.set()
        watching.join()

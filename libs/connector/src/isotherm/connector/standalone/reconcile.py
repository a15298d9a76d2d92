"""Reconciles a standalone task with its connector's target state: runs, pauses and restarts it in one process.

`reconcile` is for work in a thread, `reconcile_async` for work on an event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetState
from isotherm.servicekit.lifecycle import Exit, Stop

_IDLE_INTERVAL_S = 1.0
"""How often `idle` is called while the task must not run. A new target and the stop do not wait for that."""

_Spec = tuple[TargetState, int]
"""What a run is started with: the target state and the number of restarts."""

Watch = Callable[[Callable[[], None]], Callable[[], None]]
"""Calls a callback from any thread at every change of the target, until the function that it returns is called."""


def reconcile(
    target: Callable[[], Target | None],
    task: int,
    stop: Stop,
    work: Callable[[Stop], int],
    idle: Callable[[State | None], None],
    watch: Watch,
) -> int:
    """Run `work` while the target state is STARTED, each time with a Stop of its own; the exit code.

    `target` returns the target, None while it is unknown; `watch` calls back when that changes. While the task must not
    run, `idle` is called repeatedly with the state (None: unknown). Work that returns by itself ends the loop.
    """
    changed = threading.Event()
    runs = _Runs(target, task, stop)

    def check() -> None:
        runs.end_outdated()
        changed.set()

    ends = [watch(check), stop.on_set(check)]
    try:
        while not stop.is_set():
            changed.clear()
            desired = target()
            if desired is None or desired.state is not TargetState.STARTED:
                idle(None if desired is None else State(desired.state.value))
                changed.wait(_IDLE_INTERVAL_S)
                continue
            halt = runs.begin(desired)
            code = work(halt)
            if code != Exit.OK or not halt.is_set():
                return code
        return Exit.OK
    finally:
        for end in ends:
            end()


async def reconcile_async(
    target: Callable[[], Target | None],
    task: int,
    stop: Stop,
    work: Callable[[Stop], Coroutine[Any, Any, None]],
    idle: Callable[[State | None], None],
    watch: Watch,
) -> None:
    """As `reconcile`, for a coroutine function; an exception of `work` ends the loop too."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    runs = _Runs(target, task, stop)

    def wake() -> None:
        # The follower's thread may report a change while the loop is being closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(changed.set)

    ends = [watch(wake), stop.on_set(wake)]
    try:
        while not stop.is_set():
            changed.clear()
            desired = target()
            if desired is None or desired.state is not TargetState.STARTED:
                idle(None if desired is None else State(desired.state.value))
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _IDLE_INTERVAL_S)
                continue
            halt = runs.begin(desired)
            working = loop.create_task(work(halt))
            working.add_done_callback(lambda _done: changed.set())
            while not working.done() and not halt.is_set():
                await changed.wait()
                changed.clear()
                runs.end_outdated()
            await working
            if not halt.is_set():
                return
    finally:
        for end in ends:
            end()


@dataclass(frozen=True)
class _Run:
    spec: _Spec
    halt: Stop


class _Runs:
    """The runs of the work, one after the other; a run is stopped when its spec is no longer the target's."""

    def __init__(self, target: Callable[[], Target | None], task: int, stop: Stop) -> None:
        self._target, self._task, self._stop = target, task, stop
        self._run: _Run | None = None

    def begin(self, desired: Target) -> Stop:
        """Begin the next run; return its Stop."""
        run = self._run = _Run(self._spec(desired), Stop())
        # The target may have changed between the look at it and here.
        self.end_outdated()
        return run.halt

    def end_outdated(self) -> None:
        """Stop the run if the process stops or the target is another one now. Safe to call from any thread."""
        run = self._run
        if run is None or run.halt.is_set():
            return
        desired = self._target()
        if self._stop.is_set() or desired is None or self._spec(desired) != run.spec:
            run.halt.set()

    def _spec(self, target: Target) -> _Spec:
        return target.state, target.restarts_of(self._task)

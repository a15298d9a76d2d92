"""A standalone task that is paused, resumed and restarted without its process ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from isotherm.connector.standalone.reconcile import reconcile, reconcile_async
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetState
from isotherm.servicekit.lifecycle import Exit, Stop

PATIENCE_S = 120.0


class ChangingTarget:
    """A target that a test changes, with the callbacks of a follower of the control topic."""

    def __init__(self, target: Target | None = None) -> None:
        self._target = target
        self._callbacks: list[Callable[[], None]] = []

    def __call__(self) -> Target | None:
        return self._target

    def change(self, target: Target | None) -> None:
        self._target = target
        for callback in tuple(self._callbacks):
            callback()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def is_watched(self) -> bool:
        return bool(self._callbacks)


def test_a_task_is_paused_resumed_restarted_and_stopped() -> None:
    stop = Stop()
    steps: list[object] = []
    # What is wanted next, as soon as the step before it has been reached.
    targets: list[Target | None] = [
        Target(),
        Target(TargetState.PAUSED),
        Target(restarts=1),
        Target(restarts=1, task_restarts={"1": 5}),
        Target(restarts=1, task_restarts={"0": 1, "1": 5}),
        Target(TargetState.STOPPED),
    ]
    wanted = ChangingTarget()
    reached = threading.Event()

    def work(halt: Stop) -> int:
        steps.append(wanted())
        reached.set()
        assert halt.wait(PATIENCE_S)
        return Exit.OK

    def idle(state: State | None) -> None:
        if not steps or steps[-1] is not state:
            steps.append(state)
        reached.set()

    def ask() -> None:
        for target in targets:
            assert reached.wait(PATIENCE_S)
            reached.clear()
            wanted.change(target)
            if target is not None and target.task_restarts == {"1": 5}:
                # Another task's restart is not ours: nothing is reached.
                reached.set()
        assert reached.wait(PATIENCE_S)
        while steps[-1] is not State.STOPPED:
            threading.Event().wait(0.02)
        stop.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert reconcile(wanted, 0, stop, work, idle, wanted.watch) == Exit.OK
    asking.join(PATIENCE_S)
    assert not wanted.is_watched
    assert steps[0] is None
    assert State.PAUSED in steps
    assert steps[-1] is State.STOPPED
    assert Target(restarts=1) in steps
    assert steps[-2] == Target(restarts=1, task_restarts={"0": 1, "1": 5})


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.OK])
def test_work_that_fails_or_ends_by_itself_ends_all(code: Exit) -> None:
    wanted = ChangingTarget(Target())
    assert reconcile(wanted, 0, Stop(), lambda _halt: code, lambda _state: None, wanted.watch) == code


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110 -- nothing in the loop tells it
            await asyncio.sleep(0.01)


async def test_work_on_an_event_loop_is_paused_resumed_restarted_and_stopped() -> None:
    stop = Stop()
    began: list[Target | None] = []
    ended: list[Target | None] = []
    idle: list[State | None] = []
    wanted = ChangingTarget()

    async def work(halt: Stop) -> None:
        began.append(wanted())
        await halt.wait_async()
        ended.append(wanted())

    running = asyncio.create_task(reconcile_async(wanted, 3, stop, work, idle.append, wanted.watch))
    await until(lambda: None in idle)
    wanted.change(Target())
    await until(lambda: len(began) == 1)
    wanted.change(Target(TargetState.PAUSED))
    await until(lambda: State.PAUSED in idle)
    assert ended == [Target(TargetState.PAUSED)], "it is paused when its work has ended"
    wanted.change(Target(restarts=1))
    await until(lambda: len(began) == 2)
    wanted.change(Target(restarts=2))
    await until(lambda: len(began) == 3)
    # Another task's restart is not ours.
    wanted.change(Target(restarts=2, task_restarts={"4": 1}))
    stop.set()
    await running
    assert not wanted.is_watched
    assert (len(began), len(ended)) == (3, 3)


async def test_failing_work_on_an_event_loop_ends_all() -> None:
    async def fail(_halt: Stop) -> None:
        raise OSError("lost")

    wanted = ChangingTarget(Target())
    with pytest.raises(OSError, match="lost"):
        await reconcile_async(wanted, 0, Stop(), fail, lambda _state: None, wanted.watch)


async def test_work_on_an_event_loop_that_ends_by_itself_ends_all() -> None:
    began: list[Stop] = []

    async def work(halt: Stop) -> None:
        began.append(halt)

    wanted = ChangingTarget(Target())
    await reconcile_async(wanted, 0, Stop(), work, lambda _state: None, wanted.watch)
    assert len(began) == 1


def test_a_change_while_the_work_is_being_started_ends_it() -> None:
    wanted, stop = ChangingTarget(Target()), Stop()
    looks: list[Target | None] = []
    seen: list[bool] = []

    def target() -> Target | None:
        """As if the follower had read the next record after this look at the target, and before anybody listened."""
        found = wanted()
        looks.append(found)
        if len(looks) == 1:
            wanted.change(Target(restarts=1))
        return found

    def work(halt: Stop) -> int:
        seen.append(halt.is_set())
        if len(seen) == 2:
            stop.set()
        assert halt.wait(PATIENCE_S)
        return Exit.OK

    assert reconcile(target, 0, stop, work, lambda _state: None, wanted.watch) == Exit.OK
    assert seen[0], "the first run is outdated when it begins"

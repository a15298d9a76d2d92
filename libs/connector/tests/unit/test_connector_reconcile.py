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


def test_a_task_is_paused_resumed_restarted_and_stopped() -> None:
    stop = Stop()
    steps: list[object] = []
    # What is wanted next, as soon as the step before it has been reached.
    wanted: list[Target | None] = [
        Target(),
        Target(TargetState.PAUSED),
        Target(restarts=1),
        Target(restarts=1, task_restarts={"1": 5}),
        Target(restarts=1, task_restarts={"0": 1, "1": 5}),
        Target(TargetState.STOPPED),
    ]
    now: list[Target | None] = [None]
    reached = threading.Event()

    def work(halt: Stop) -> int:
        steps.append(now[0])
        reached.set()
        assert halt.wait(PATIENCE_S)
        return Exit.OK

    def idle(state: State | None) -> None:
        if not steps or steps[-1] is not state:
            steps.append(state)
        reached.set()

    def ask() -> None:
        for target in wanted:
            assert reached.wait(PATIENCE_S)
            reached.clear()
            now[0] = target
            if target is not None and target.task_restarts == {"1": 5}:
                # Another task's restart is not ours: nothing is reached.
                reached.set()
        assert reached.wait(PATIENCE_S)
        while steps[-1] is not State.STOPPED:
            threading.Event().wait(0.02)
        stop.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert reconcile(lambda: now[0], 0, stop, work, idle) == Exit.OK
    asking.join(PATIENCE_S)
    assert steps[0] is None
    assert State.PAUSED in steps
    assert steps[-1] is State.STOPPED
    assert Target(restarts=1) in steps
    assert steps[-2] == Target(restarts=1, task_restarts={"0": 1, "1": 5})


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.OK])
def test_work_that_fails_or_ends_by_itself_ends_all(code: Exit) -> None:
    assert reconcile(Target, 0, Stop(), lambda _halt: code, lambda _state: None) == code


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110 -- nothing in the loop tells it
            await asyncio.sleep(0.01)


async def test_work_on_an_event_loop_is_paused_resumed_restarted_and_stopped() -> None:
    stop = Stop()
    began: list[Target | None] = []
    ended: list[Target | None] = []
    idle: list[State | None] = []
    now: list[Target | None] = [None]

    async def work(halt: Stop) -> None:
        began.append(now[0])
        await halt.wait_async()
        ended.append(now[0])

    running = asyncio.create_task(reconcile_async(lambda: now[0], 3, stop, work, idle.append))
    await until(lambda: None in idle)
    now[0] = Target()
    await until(lambda: len(began) == 1)
    now[0] = Target(TargetState.PAUSED)
    await until(lambda: State.PAUSED in idle)
    assert ended == [Target(TargetState.PAUSED)], "it is paused when its work has ended"
    now[0] = Target(restarts=1)
    await until(lambda: len(began) == 2)
    now[0] = Target(restarts=2)
    await until(lambda: len(began) == 3)
    # Another task's restart is not ours.
    now[0] = Target(restarts=2, task_restarts={"4": 1})
    stop.set()
    await running
    assert (len(began), len(ended)) == (3, 3)


async def test_failing_work_on_an_event_loop_ends_all() -> None:
    async def fail(_halt: Stop) -> None:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        await reconcile_async(Target, 0, Stop(), fail, lambda _state: None)


async def test_work_on_an_event_loop_that_ends_by_itself_ends_all() -> None:
    began: list[Stop] = []

    async def work(halt: Stop) -> None:
        began.append(halt)

    await reconcile_async(Target, 0, Stop(), work, lambda _state: None)
    assert len(began) == 1

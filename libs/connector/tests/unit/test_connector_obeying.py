"""A standalone task that is paused, resumed and restarted without its process ending."""

from __future__ import annotations

import threading

import pytest

from connector.obeying import run_as_wanted
from connector.status import State
from connector.targets import Target, TargetState
from servicekit.lifecycle import Exit, Stop

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
    assert run_as_wanted(lambda: now[0], 0, stop, work, idle) == Exit.OK
    asking.join(PATIENCE_S)
    assert steps[0] is None
    assert State.PAUSED in steps
    assert steps[-1] is State.STOPPED
    assert Target(restarts=1) in steps
    assert steps[-2] == Target(restarts=1, task_restarts={"0": 1, "1": 5})


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.OK])
def test_work_that_fails_or_ends_by_itself_ends_all(code: Exit) -> None:
    assert run_as_wanted(Target, 0, Stop(), lambda _halt: code, lambda _state: None) == code

"""A task in a process of its own, which is killed: by itself after a write, or by the check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from isotherm.sink_testkit.broker import PARTITIONS
from isotherm.sink_testkit.task import PATIENCE_S, Task, TaskSpec, wait_until


def run_killed_after_a_write(spec: TaskSpec) -> None:
    """Run a task that dies as soon as the sink has answered its first write, before anything of it is committed."""
    process = _start(spec, dies=True)
    try:
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise AssertionError(f"the task ended by itself ({process.returncode}): {said[-2_000:]}")


def run_killed_when(spec: TaskSpec, condition: Callable[[], bool]) -> None:
    """Run a task and kill it once `condition` holds, wherever it is then."""
    process = _start(spec, dies=False)
    try:
        wait_until(
            "a task in a process of its own writes",
            condition,
            lambda: None if process.poll() is None else f"it ended by itself ({process.returncode})",
        )
    finally:
        process.kill()
        process.communicate()


def _start(spec: TaskSpec, *, dies: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps({"spec": asdict(spec), "dies": dies})],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # The sink under test may be a file beside the test and no installed package.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def main() -> None:
    """Run the task that the argument describes."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    die = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if told["dies"] else lambda: None
    task = Task(TaskSpec(**told["spec"]), on_written=die)
    task.consumer.assign_to_task(task.config.items("topics")[0], range(PARTITIONS))
    task.run()


if __name__ == "__main__":
    main()

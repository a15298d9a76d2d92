"""Standalone task processes: started, stopped, failing together, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil

from isotherm.connector.standalone.task_processes import supervise
from isotherm.servicekit.lifecycle import Exit, Stop

WAITING_TASK = textwrap.dedent(
    """
    import pathlib, sys
    from isotherm.connector.standalone.task_processes import stop_with_supervisor
    from isotherm.servicekit import lifecycle

    def main(stop):
        stop_with_supervisor(stop)
        pathlib.Path(sys.argv[1]).write_text("started")
        stop.wait()
        return 0

    sys.exit(lifecycle.run(main, shutdown_timeout_ms=5000))
    """
)


def waiting_task(marker: Path) -> list[str]:
    return [sys.executable, "-c", WAITING_TASK, str(marker)]


def wait_for(marker: Path) -> None:
    done = threading.Event()
    while not marker.exists():
        done.wait(0.02)


def test_a_stop_ends_every_task_well(tmp_path: Path) -> None:
    stop = Stop()
    markers = [tmp_path / "0", tmp_path / "1"]

    def stop_when_started() -> None:
        for marker in markers:
            wait_for(marker)
        stop.set()

    threading.Thread(target=stop_when_started).start()
    assert supervise(lambda task: waiting_task(markers[task]), 2, stop, stop_timeout_ms=20_000) == Exit.OK


def test_a_stop_before_a_task_can_take_it_is_no_failure(tmp_path: Path) -> None:
    stop = Stop()
    marker = tmp_path / "starting"
    starting = [sys.executable, "-c", f"import pathlib, threading\npathlib.Path({str(marker)!r}).touch()\n"]
    starting[-1] += "threading.Event().wait()"

    def stop_when_started() -> None:
        wait_for(marker)
        stop.set()

    threading.Thread(target=stop_when_started).start()
    assert supervise(lambda _task: starting, 1, stop, stop_timeout_ms=20_000) == Exit.OK


def test_a_failed_task_stops_the_others_and_gives_its_exit_code(tmp_path: Path) -> None:
    marker = tmp_path / "waiting"
    fails = [sys.executable, "-c", f"import os, sys\nwhile not os.path.exists({str(marker)!r}): pass\nsys.exit(7)"]
    commands = [waiting_task(marker), fails]
    assert supervise(lambda task: commands[task], 2, Stop(), stop_timeout_ms=20_000) == 7


def test_a_killed_task_is_told_as_a_shell_would() -> None:
    dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert supervise(lambda _task: dies, 1, Stop(), stop_timeout_ms=20_000) == 128 + signal.SIGKILL


def test_a_task_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "deaf"
    deaf = (
        "import pathlib, signal, sys, threading\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1]).write_text('started')\n"
        "threading.Event().wait()\n"
    )
    stop = Stop()

    def stop_when_started() -> None:
        wait_for(marker)
        stop.set()

    threading.Thread(target=stop_when_started).start()
    command = [sys.executable, "-c", deaf, str(marker)]
    assert supervise(lambda _task: command, 1, stop, stop_timeout_ms=300) == Exit.DEADLINE


def test_tasks_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "task"
    supervisor = textwrap.dedent(
        f"""
        from isotherm.connector.standalone.task_processes import supervise
        from isotherm.servicekit.lifecycle import Stop
        supervise(lambda task: {waiting_task(marker)!r}, 1, Stop(), stop_timeout_ms=5000)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor])
    try:
        wait_for(marker)
        tasks = psutil.Process(process.pid).children()
        assert len(tasks) == 1
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(tasks, timeout=20)
    assert alive == []

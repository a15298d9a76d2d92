"""A standalone connector's tasks: one process each, under one supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

from isotherm.servicekit import logs
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

_PIPE_BYTES = 65_536
_CHECK_INTERVAL_S = 0.5
"""How often the supervisor looks for tasks that ended by themselves; the stop ends the wait at once."""


def supervise(command: Callable[[int], Sequence[str]], tasks: int, stop: Stop, *, stop_timeout_ms: int) -> int:
    """Run `tasks` processes until `stop` is set or one of them ends by itself; the exit code.

    `command(i)` is the command line of task i; its process must call `stop_with_supervisor`. When one task ends, the
    others are stopped too, because its partitions would carry the failure to them. Returns the exit code of the first
    failed task, or OK. A task that does not stop within `stop_timeout_ms` is killed and counts as Exit.DEADLINE.
    """
    processes = [subprocess.Popen(command(task), stdin=subprocess.PIPE) for task in range(tasks)]
    for task, process in enumerate(processes):
        _log.info("task started", task=task, pid=process.pid)
    codes: list[int] = []
    try:
        while not stop.wait(_CHECK_INTERVAL_S):
            codes = [code for process in processes if (code := process.poll()) is not None]
            if codes:
                _log.error("a task ended, stopping the others", exit_codes=codes)
                break
    finally:
        # Includes the codes of tasks that ended since the last check.
        codes += _stop_all(processes, stop_timeout_ms / 1000)
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    return next((_exit_code(code) for code in codes if code != Exit.OK), Exit.OK)


class SupervisorPipe:
    """In a task's process: what the supervisor writes to standard input, line by line."""

    def __init__(self) -> None:
        self._rest = b""

    def line(self) -> bytes | None:
        """Return the next line without its end; None when the supervisor has ended, which closes the pipe."""
        while b"\n" not in self._rest:
            # os.read and not sys.stdin: a thread that holds its lock would break the interpreter's shutdown.
            read = os.read(0, _PIPE_BYTES)
            if not read:
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def stop_with_supervisor(
    stop: Stop, pipe: SupervisorPipe | None = None, on_line: Callable[[bytes], None] = lambda _line: None
) -> None:
    """In a task's process: set `stop` when the supervisor has ended; until then call `on_line` with its lines."""
    lines = pipe or SupervisorPipe()

    def watch() -> None:
        try:
            while (line := lines.line()) is not None:
                on_line(line)
        finally:
            stop.set()

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def _stop_all(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> list[int]:
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    codes = []
    for process in processes:
        try:
            code = process.wait(timeout_s)
            # The default action of SIGTERM ended it: the task had not begun, or was past its own handler.
            codes.append(Exit.OK if process in running and code == -signal.SIGTERM else code)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(Exit.DEADLINE)
    return codes


def _exit_code(code: int) -> int:
    # A process ended by a signal is reported as a shell would.
    return code if code >= 0 else 128 - code

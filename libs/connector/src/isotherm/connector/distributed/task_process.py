"""The processes of a distributed worker's tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from isotherm.connector.distributed.task_launch import TaskLaunch, TaskReport
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_MAX_OUTPUT_BYTES = 1024 * 1024


class TaskProcess:
    """One process of one task, from its start to its end."""

    def __init__(self, command: Sequence[str], handover: TaskLaunch, *, stop_timeout_ms: int) -> None:
        """Start it. Raises OSError when it cannot be started."""
        self._what = {"connector": handover.config.name, "task": handover.task}
        self._stop_timeout_s = stop_timeout_ms / 1000
        self._kill_at_s: float | None = None
        self._http_port: int | None = None
        given = handover.encoded()
        # A file and not a pipe: nobody has to read it for the process to go on.
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 -- closed when the process is over
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._output, bufsize=0)
        except BaseException:
            self._output.close()
            raise
        _log.info("task started", pid=self._process.pid, **self._what)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        try:
            self._stdin.write(given)
        except BrokenPipeError:
            _log.warning("task ended before it knew what to do", **self._what)

    @property
    def http_port(self) -> int | None:
        """Where its metrics are; None until it has said so."""
        if self._http_port is None:
            self._http_port = self._fate().http_port
        return self._http_port

    def end(self) -> None:
        """Ask it to end; it is killed when it takes longer than the stop timeout."""
        self._kill_at_s = time.monotonic() + self._stop_timeout_s
        self._process.terminate()

    def failure(self) -> str | None:
        """None while it runs; then how it ended, and nothing may be asked any more."""
        code = self._process.poll()
        if code is None:
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                _log.error("task did not stop in time, killing it", pid=self._process.pid, **self._what)
                self._process.kill()
            return None
        trace = self._fate().trace
        self._stdin.close()
        self._output.close()
        _log.info("task ended", pid=self._process.pid, exit_code=code, **self._what)
        return trace or _how(code)

    def _fate(self) -> TaskReport:
        # The process writes at the offset that a read or a seek of ours would move.
        return TaskReport.read(os.pread(self._output.fileno(), _MAX_OUTPUT_BYTES, 0))


def _how(code: int) -> str:
    if code < 0:
        return f"the task's process was ended by {signal.Signals(-code).name}"
    return f"the task's process ended by itself with exit code {code}; its log tells more"

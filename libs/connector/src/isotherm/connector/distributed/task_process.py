"""A task's process, as its distributed worker sees it."""

from __future__ import annotations

import base64
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

    def __init__(self, command: Sequence[str], launch: TaskLaunch, *, stop_timeout_ms: int) -> None:
        """Start the process. Raises OSError when it cannot be started."""
        self._task = {"connector": launch.config.name, "task": launch.task}
        self._stop_timeout_s = stop_timeout_ms / 1000
        self._kill_at_s: float | None = None
        self._http_port: int | None = None
        encoded = launch.encoded()
        # A file and not a pipe: the process never blocks because nobody reads.
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 -- closed when the process is over
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._output, bufsize=0)
        except BaseException:
            self._output.close()
            raise
        _log.info("task started", pid=self._process.pid, **self._task)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        try:
            self._stdin.write(encoded)
        except BrokenPipeError:
            _log.warning("task ended before it read its launch", **self._task)
        os.set_blocking(self._stdin.fileno(), False)
        self._unsent = b""
        """The rest of a line for which the pipe had no room."""

    @property
    def http_port(self) -> int | None:
        """The port of its metrics; None until the process has reported it."""
        if self._http_port is None:
            self._http_port = self._report().http_port
        return self._http_port

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def takes_requests(self) -> bool:
        """Whether the pipe has room for another request."""
        return not self._unsent

    def pass_on(self, request: bytes) -> None:
        """Send the task an encoded ReadbackRequest; drop it while the task does not read what it was sent before."""
        if self._unsent and not self._send(self._unsent):
            _log.warning("a task reads no requests, one is dropped", **self._task)
            return
        self._send(base64.b64encode(request) + b"\n")

    def _send(self, line: bytes) -> bool:
        """Write as much as the pipe has room for; return whether this was all."""
        try:
            written = os.write(self._stdin.fileno(), line)
        except BlockingIOError:
            written = 0
        except OSError:
            # The process has ended, which `failure` will tell.
            written = len(line)
        self._unsent = line[written:]
        return not self._unsent

    def end(self) -> None:
        """Ask the process to end; `failure` kills it after the stop timeout."""
        self._kill_at_s = time.monotonic() + self._stop_timeout_s
        self._process.terminate()

    def failure(self) -> str | None:
        """None while the process runs, then how it ended; do not use the object after that."""
        code = self._process.poll()
        if code is None:
            if self._unsent:
                self._send(self._unsent)
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                _log.error("task did not stop in time, killing it", pid=self._process.pid, **self._task)
                self._process.kill()
            return None
        trace = self._report().trace
        self._stdin.close()
        self._output.close()
        _log.info("task ended", pid=self._process.pid, exit_code=code, **self._task)
        return trace or _describe_exit(code)

    def _report(self) -> TaskReport:
        # pread, because a read or seek would move the offset at which the process writes.
        return TaskReport.read(os.pread(self._output.fileno(), _MAX_OUTPUT_BYTES, 0))


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"the task's process was ended by {signal.Signals(-code).name}"
    return f"the task's process ended by itself with exit code {code}; see its log"

"""A service of the suite as a process of a test: its log, its monitoring page, its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

_PATIENCE_S = 240.0


class ServiceProcess:
    """One process at a time, which can be started and ended repeatedly."""

    def __init__(self, log: Path, port: int) -> None:
        """`port` is the port of the process's monitoring server."""
        self._log, self._port = log, port
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str]) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def page(self, name: str, accept: str = "*/*") -> str:
        """A page of the monitoring server, also with status 503; empty while it does not answer."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/{name}", headers={"Accept": accept})
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()

    def log(self) -> str:
        """The last lines of the log."""
        return self._log.read_text(encoding="utf-8")[-8_000:]

    def stop(self) -> int:
        """Stop the process with SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        """Kill the process if it runs."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def exit_code(self) -> int:
        """Wait until the process ends by itself."""
        assert self.process is not None
        return self.process.wait(_PATIENCE_S)

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
    """One process at a time; start and end it as often as wanted."""

    def __init__(self, log: Path, port: int) -> None:
        """`port` is that of its monitoring server."""
        self._log, self._port = log, port
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str]) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def page(self, name: str) -> str:
        """A page of its monitoring server, also when it is answered with 503; empty while nothing answers."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/{name}")
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()

    def log(self) -> str:
        """Its last words."""
        return self._log.read_text(encoding="utf-8")[-8_000:]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def exit_code(self) -> int:
        """Wait until it ends by itself."""
        assert self.process is not None
        return self.process.wait(_PATIENCE_S)

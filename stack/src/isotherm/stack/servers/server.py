"""What all servers of the stack have in common: start, readiness, stop, kill, pause, wipe."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from isotherm.stack import ports, processes, watchdog
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.java import find_java
from isotherm.stack.processes import Process

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 300.0
_PROBE_INTERVAL_S = 0.1
_PAUSE_TIMEOUT_S = 10.0
_FAILURE_LOG_LINES = 40
_LOG_ROTATION_BYTES = 64 * 1024 * 1024


class ServerFailed(RuntimeError):
    """A server ended or did not become ready; the text carries its own last log lines."""


@dataclass(frozen=True)
class Launch:
    """A command line and the environment variables it needs besides those of this process."""

    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runtime:
    """What the servers of a stack share.

    A ``detached`` server outlives this process, and any later process with the same folder can stop it;
    others end with this process. ``quick_start`` halves the processor time of a start by leaving out the
    optimising compiler; benches want it off. Kafka always has it: it serves every hop.
    """

    artifacts: Artifacts
    detached: bool = False
    quick_start: bool = True

    def jit_options(self) -> list[str]:
        """Return the JVM options for ``quick_start``."""
        return ["-XX:TieredStopAtLevel=1"] if self.quick_start else []


class Server(ABC):
    """One real server process on 127.0.0.1 with its data in a folder of its own.

    ``folder`` holds ``data/``, ``conf/``, ``server.log`` and ``pid``.
    """

    name: str
    stop_timeout_s: ClassVar[float] = 20.0

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder = folder.absolute()
        self.runtime = runtime
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._asked_to_stop: Process | None = None

    # What each server says about itself.

    @property
    @abstractmethod
    def ports(self) -> tuple[int, ...]:
        """All TCP ports it listens on."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where its clients find it."""

    @abstractmethod
    def prepare(self) -> Launch:
        """Write configuration into ``conf_folder`` and return how to start the server."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Ask the server once, in its own protocol, whether it serves; False when it does not answer."""

    def holds_its_ports(self) -> bool:
        """Whether its own processes listen on all its ports: another stack's server would answer there as well."""
        leader = self._leader()
        return leader is not None and set(self.ports) <= processes.listening_ports(leader)

    def after_ready(self) -> None:
        """Bring the server, which has just answered, into the state that the suite expects of it."""
        log.info("%s answers at %s", self.name, self.address)

    def after_stop(self) -> None:
        """Clean up after the server, which has ended by itself."""
        log.debug("%s has ended", self.name)

    # What holds for every server.

    @property
    def conf_folder(self) -> Path:
        """Where its configuration is written before each start."""
        return self.folder / "conf"

    @property
    def data_folder(self) -> Path:
        """Where it keeps what has to survive a restart."""
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        """The server's own output."""
        return self.folder / "server.log"

    @property
    def pid_file(self) -> Path:
        """Names the running process by pid and start time."""
        return self.folder / "pid"

    @property
    def pid(self) -> int:
        """Pid of the running server. Raises ServerFailed when it does not run."""
        leader = self._leader()
        if leader is None or not self.alive():
            raise ServerFailed(f"{self.name} is not running")
        return leader.pid

    def alive(self) -> bool:
        """Tell whether the server's process exists (it may be paused or not ready)."""
        if self._popen is not None and self._popen.poll() is None:
            return True
        leader = self._leader()
        return leader is not None and processes.is_running(leader)

    def start(self) -> None:
        """Start the server with its data as they are; no effect when it already runs. Does not wait.

        Raises ArtifactError when its files cannot be had.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._start_lock():
            if self.alive():
                return
            self._end_leftovers()
            self.conf_folder.mkdir(exist_ok=True)
            self.data_folder.mkdir(exist_ok=True)
            launch = self.prepare()
            self._rotate_log()
            for port in self.ports:
                ports.release(port)
            if not self.runtime.detached:
                watchdog.watch(self.pid_file)
            self._popen = processes.spawn(
                launch.command,
                pid_file=self.pid_file,
                log_file=self.log_path,
                environment=os.environ | {"JAVA_HOME": str(find_java().home)} | launch.environment,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the server answers in its own protocol.

        Raises ServerFailed at once when its process ends, or after ``timeout_s`` seconds.
        """
        wait_all_ready([self], timeout_s)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, once, without waiting; no effect when the server does not run."""
        leader = self._leader()
        if leader is not None and leader != self._asked_to_stop:
            self._asked_to_stop = leader
            processes.ask_to_end(leader)

    def stop(self, timeout_s: float | None = None) -> None:
        """Ask the server to end (SIGTERM) and kill it when it has not after ``timeout_s`` seconds."""
        leader = self._leader()
        if leader is None:
            return
        limit_s = self.stop_timeout_s if timeout_s is None else timeout_s
        if processes.end_group(leader, limit_s, is_asked=leader == self._asked_to_stop):
            self.after_stop()
        else:
            log.warning("%s did not end in time and was killed", self.name)
        self._forget_process()

    def kill(self) -> None:
        """SIGKILL the server and its children, and return when they are gone. Its data stay."""
        leader = self._leader()
        if leader is None:
            return
        processes.kill_group(leader)
        self._forget_process()

    def pause(self) -> None:
        """SIGSTOP the server and its children: connections stay open, nothing answers from the return on.

        Raises ServerFailed when some thread of it goes on running.
        """
        if not processes.pause_group(self._running_leader(), _PAUSE_TIMEOUT_S):
            raise ServerFailed(f"{self.name} did not stand still {_PAUSE_TIMEOUT_S:g} s after SIGSTOP")

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        processes.signal_group(self._running_leader(), signal.SIGCONT)

    def wipe(self) -> None:
        """Delete all data, configuration and logs. Raises ServerFailed while the server runs."""
        if self.alive():
            raise ServerFailed(f"{self.name} is running (pid {self.pid}); stop it before wiping its data")
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self, lines: int = _FAILURE_LOG_LINES) -> str:
        """Return the last lines of the log, of the current start only if this object started the server."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - lines * 1000))
            text = file.read().decode("utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def failure(self, what: str) -> ServerFailed:
        """Return an error about this server with its own last log lines."""
        return ServerFailed(f"{self.name} {what}; last lines of {self.log_path}:\n{self.log_tail()}")

    def exit_code(self) -> int | None:
        """Exit code of a server that this object started and that ended; None when it is not known."""
        return None if self._popen is None else self._popen.poll()

    def _leader(self) -> Process | None:
        if self._popen is not None:
            self._await_pid_file(self._popen)
        return processes.read_pid_file(self.pid_file)

    def _await_pid_file(self, popen: subprocess.Popen[bytes]) -> None:
        while processes.read_pid_file(self.pid_file) is None and popen.poll() is None:
            time.sleep(processes.POLL_INTERVAL_S)

    def _running_leader(self) -> Process:
        leader = self._leader()
        if leader is None or not self.alive():
            raise ServerFailed(f"{self.name} is not running")
        return leader

    def _end_leftovers(self) -> None:
        """A launcher that was killed may have left its child, which still holds ports and data."""
        leader = self._leader()
        if leader is not None:
            processes.kill_group(leader)
        self._forget_process()

    def _forget_process(self) -> None:
        if self._popen is not None:
            self._popen.wait()
        self.pid_file.unlink(missing_ok=True)

    def _rotate_log(self) -> None:
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        if self._log_start > _LOG_ROTATION_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
            self._log_start = 0

    @contextlib.contextmanager
    def _start_lock(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def wait_all_ready(servers: Sequence[Server], timeout_s: float = READY_TIMEOUT_S) -> None:
    """Wait until every server answers in its own protocol.

    Raises ServerFailed at once when the process of one ends, or after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    pending = list(servers)
    while pending:
        for server in list(pending):
            if not server.alive():
                code = server.exit_code()
                known = f"with exit code {code}" if code is not None else "(exit code unknown)"
                raise server.failure(f"ended {known} before it was ready")
            if server.is_ready() and server.holds_its_ports():
                server.after_ready()
                pending.remove(server)
        if pending and time.monotonic() > deadline:
            raise pending[0].failure(f"was not ready after {timeout_s:.0f} s")
        if pending:
            time.sleep(_PROBE_INTERVAL_S)


class OnePortServer(Server):
    """A server that listens on one port."""

    def __init__(self, folder: Path, runtime: Runtime, *, port: int) -> None:
        super().__init__(folder, runtime)
        self.port = port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,)

    @property
    def address(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"

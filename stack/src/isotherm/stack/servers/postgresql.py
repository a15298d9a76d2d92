"""PostgreSQL from Debian's package, with a data folder of its own; never the system's service."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from isotherm.stack import processes, unprivileged
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.server import Launch, OnePortServer, Runtime
from isotherm.stack.unprivileged import Identity

_DEBIAN = Path("/usr/lib/postgresql")
_PROTOCOL_3 = 196_608
_AUTHENTICATION = b"R"
"""First byte of the answer to a start-up packet, unless it is an error."""
_PROBE_TIMEOUT_S = 2.0
_INITDB_TIMEOUT_S = 120.0
_PROCESS_END_S = 10.0
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    # Nothing to do means no processor time.
    "autovacuum_naptime": "1h",
    "lc_messages": "C",
}


class Postgresql(OnePortServer):
    """One PostgreSQL server with the user, password and database `isotherm`.

    It refuses to run as root; :mod:`isotherm.stack.unprivileged` says what is done then. With ``certificate``, the PEM
    files of a certificate and its key, it speaks TLS to clients that ask for it.
    """

    name = "postgresql"
    user = database = "isotherm"
    password = "isotherm"  # noqa: S105 - of a server that lives as long as a test

    def __init__(
        self, folder: Path, runtime: Runtime, *, port: int, certificate: tuple[Path, Path] | None = None
    ) -> None:
        super().__init__(folder, runtime, port=port)
        self._certificate = certificate

    @property
    def url(self) -> str:
        """Connection URI for libpq's clients, with user and password."""
        return f"postgresql://{self.user}:{self.password}@{self.address}/{self.database}"

    @property
    def public_folder(self) -> Path:
        """Stands in for ``folder`` when the server runs as ``nobody`` and cannot reach that one."""
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"isotherm-postgresql-{digest}"

    def prepare(self) -> Launch:
        try:
            identity = unprivileged.choose_identity(unprivileged.NOBODY_IN_USER_NAMESPACE)
        except unprivileged.CannotDropRoot as error:
            raise self.failure(f"cannot start: {error}") from error
        base = self.folder
        if identity.changes_owner and not identity.can("-x", self.folder):
            base = self.public_folder
        data = base / "data" / "pg"
        if not (data / "PG_VERSION").exists():
            self._create(data, identity)
        settings = {**_SETTINGS, "port": str(self.port), **self._tls(data, identity)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return Launch([*identity.prefix, str(self._binary("postgres")), "-D", str(data), *options])

    def is_ready(self) -> bool:
        told = b"".join(f"{word}\0".encode() for word in ("user", self.user, "database", self.database)) + b"\0"
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), _PROBE_TIMEOUT_S) as probe:
            probe.sendall(struct.pack("!ii", len(told) + 8, _PROTOCOL_3) + told)
            return probe.recv(1) == _AUTHENTICATION
        return False

    def ask_to_stop(self) -> None:
        """Send SIGINT, once: at SIGTERM the server waits for its clients to leave."""
        leader = self._leader()
        if leader is not None and leader != self._asked_to_stop and processes.is_running(leader):
            self._asked_to_stop = leader
            processes.signal_group(leader, signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader.pid, signal.SIGINT)

    def stop(self, timeout_s: float | None = None) -> None:
        self.ask_to_stop()
        super().stop(timeout_s)

    def kill(self) -> None:
        """SIGKILL the server and its sessions, which are in process groups of their own."""
        sessions = self._sessions()
        super().kill()
        deadline = time.monotonic() + _PROCESS_END_S
        while sessions := [pid for pid in sessions if Path(f"/proc/{pid}/cwd").exists()]:
            for pid in sessions:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise self.failure(f"was killed, and its sessions are still there: {sessions}")
            time.sleep(processes.POLL_INTERVAL_S)

    def pause(self) -> None:
        super().pause()
        for pid in self._sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        super().resume()

    def wipe(self) -> None:
        super().wipe()
        shutil.rmtree(self.public_folder, ignore_errors=True)

    def _create(self, data: Path, identity: Identity) -> None:
        new = data.with_name("pg-new")
        shutil.rmtree(new, ignore_errors=True)
        data.parent.mkdir(parents=True, exist_ok=True)
        secret = data.parent / "password"
        secret.write_text(self.password, encoding="utf-8")
        if identity.changes_owner:
            data.parent.parent.chmod(0o755)
            unprivileged.give_to_nobody(data.parent)
        self._run(
            *(*identity.prefix, str(self._binary("initdb")), "-D", str(new), "-U", self.user, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )
        single = (str(self._binary("postgres")), "--single", "-D", str(new), "postgres")
        self._run(*identity.prefix, *single, said=f"CREATE DATABASE {self.database}\n")
        # Only a folder that is complete has the name that later starts look for.
        new.rename(data)

    def _run(self, *command: str, said: str = "") -> None:
        done = subprocess.run(
            command, input=said, capture_output=True, text=True, timeout=_INITDB_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise self.failure(f"has no data folder: {command[0]}: {done.stderr.strip()}")

    def _tls(self, data: Path, identity: Identity) -> dict[str, str]:
        if self._certificate is None:
            return {}
        for source, name in zip(self._certificate, ("server.crt", "server.key"), strict=True):
            shutil.copyfile(source, data / name)
            (data / name).chmod(0o600)
        if identity.changes_owner:
            unprivileged.give_to_nobody(data)
        return {"ssl": "on"}

    def _binary(self, name: str) -> Path:
        found = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parents[1].name))
        on_path = shutil.which(name)
        if not found and on_path is None:
            raise self.failure(f"cannot start: there is no {name}; Debian's package is postgresql")
        return found[-1] if found else Path(str(on_path))

    def _sessions(self) -> list[int]:
        """Return the processes of the server other than its first one: they all work in its data folder."""
        leader = self._leader()
        folders = {str(base / "data" / "pg") for base in (self.folder, self.public_folder)}
        return [
            pid for pid, folder in _working_folders() if folder in folders and (leader is None or pid != leader.pid)
        ]


def _working_folders() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(process.name), str((process / "cwd").readlink())

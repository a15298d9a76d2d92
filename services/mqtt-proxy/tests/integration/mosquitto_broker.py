"""A real Mosquitto with a password and TLS, on a port of its own, that keeps its sessions on disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from mqtt_world import WAIT_S, wait_until

USER, PASSWORD = "bridge", "correct horse"


class Broker:
    """One process at a time, which can be killed and started repeatedly."""

    def __init__(self, folder: Path, port: int, tls_port: int) -> None:
        self.port = port
        self.tls_port = tls_port
        self.cafile = folder / "broker.pem"
        self._folder = folder
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        self._run("openssl", "req", "-x509", *new, *names, "-keyout", "broker.key", "-out", "broker.pem")
        self._run("mosquitto_passwd", "-c", "-b", "passwords", USER, PASSWORD)
        lines = [
            # Of a root that starts it; for anybody else this means nothing.
            "user root",
            "per_listener_settings false",
            "allow_anonymous false",
            f"password_file {folder / 'passwords'}",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            f"listener {port} 127.0.0.1",
            f"listener {tls_port} 127.0.0.1",
            f"certfile {folder / 'broker.pem'}",
            f"keyfile {folder / 'broker.key'}",
        ]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self._folder, check=True, capture_output=True)

    def start(self) -> None:
        """Start and wait until it answers."""
        # Debian puts it where only root looks.
        path = f"{os.environ['PATH']}:/usr/sbin"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["mosquitto", "-c", str(self._folder / "mosquitto.conf")],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
            )
        wait_until("mosquitto answers", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def save(self) -> None:
        """Make the broker write its messages to disk, which otherwise happens when it ends."""
        assert self._process is not None
        database = self._folder / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        wait_until("mosquitto has saved", lambda: database.exists() and database.stat().st_mtime_ns > before)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._process = None

    def publish(self, device: str, lines: list[str]) -> None:
        """Publish temperatures at QoS 1; returns when the broker has acknowledged all."""
        command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(self.port), "-u", USER, "-P", PASSWORD]
        topic = f"devices/{device}/temperature"
        subprocess.run(
            [*command, "-t", topic, "-q", "1", "-l"],
            input="".join(f"{line}\n" for line in lines).encode(),
            check=True,
            timeout=WAIT_S,
        )

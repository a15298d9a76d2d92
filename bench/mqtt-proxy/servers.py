"""The compared servers, each as one process: the proxy, Mosquitto and amqtt."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import ports
from isotherm.stack.artifacts import default_cache_folder

AMQTT_VERSION = "0.12.1"
ROUTES = (
    "INSERT INTO thermostat.data SELECT id AS device_id, t AS value, ts AS event_time, seq AS sequence "
    "FROM devices/+/temperature"
)

_READY_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.05

_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_type error
max_inflight_messages 0
max_queued_messages 0
"""

_AMQTT = """\
import asyncio, logging
from amqtt.broker import Broker

logging.basicConfig(level=logging.ERROR)
plugin = "amqtt.plugins.authentication.AnonymousAuthPlugin"
config = {{
    "listeners": {{"default": {{"type": "tcp", "bind": "127.0.0.1:{port}", "max_connections": 20000}}}},
    "plugins": {{plugin: {{"allow_anonymous": True}}}},
}}

async def main():
    broker = Broker(config)
    await broker.start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


class ServerProcess:
    """A server that runs for the time of a `with` and listens on `port`."""

    def __init__(self, name: str, command: Sequence[str | Path], port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._log.parent)
        limit = time.monotonic() + _READY_S
        while not self._is_ready():
            _ = self.pid
            if time.monotonic() > limit:
                raise RuntimeError(f"{self.name} is not ready within {_READY_S} s:\n{self.log_tail()}")
            threading.Event().wait(_POLL_S)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the running process. Raises RuntimeError with the end of its log when it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended:\n{self.log_tail()}")
        return self._process.pid

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-3_000:]

    def stored(self) -> int:
        """Return how many readings Kafka has acknowledged; 0 for a server without Kafka."""
        return 0

    def _is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class ProxyServer(ServerProcess):
    """The proxy, which stores in Kafka."""

    def __init__(self, folder: Path, kafka: KafkaSettings, registry: RegistrySettings, **settings: object) -> None:
        port, self._http_port = _free_port(), _free_port()
        values: dict[str, object] = {
            "listener.port": port,
            "http.port": self._http_port,
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "allow_anonymous": "true",
            "routes": ROUTES,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        profiler = os.environ.get("BENCH_PROFILER", "").split()
        command = [*profiler, sys.executable, "-m", "isotherm.mqtt_proxy", "run", *sets]
        super().__init__("mqtt-proxy", command, port, folder / "proxy.log")

    def stored(self) -> int:
        return self._total("readings_stored_total")

    def transactions(self) -> int:
        """Return how many transactions were committed or aborted."""
        return self._total("transactions_total")

    def _total(self, name: str) -> int:
        lines = httpx.get(f"http://127.0.0.1:{self._http_port}/metrics").text.splitlines()
        found = (line for line in lines if line.startswith(f"isotherm_mqtt_proxy_{name}"))
        return sum(int(float(line.rpartition(" ")[2])) for line in found)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._http_port}/ready").status_code == 200
        except httpx.TransportError:
            return False


def mosquitto(folder: Path) -> ServerProcess | None:
    """Mosquitto, without Kafka; None when it is not installed (Debian: mosquitto)."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        return None
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(_MOSQUITTO.format(port=port), encoding="utf-8")
    return ServerProcess("Mosquitto", [program, "-c", config], port, folder / "mosquitto.log")


def mosquitto_version() -> str:
    """Return the version that the server prints, or a note that it is missing."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        return "no mosquitto (Debian: mosquitto)"
    return subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout.splitlines()[0]


def amqtt(folder: Path) -> ServerProcess:
    """amqtt, without Kafka, in an environment of its own, because its pins differ from the suite's."""
    environment = default_cache_folder() / f"amqtt-{AMQTT_VERSION}"
    python = environment / "bin" / "python"
    if not (environment / "complete").exists():
        print(f"installing amqtt {AMQTT_VERSION}, once", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"amqtt=={AMQTT_VERSION}"], check=True)
        (environment / "complete").touch()
    port = _free_port()
    script = folder / "run_amqtt.py"
    script.write_text(_AMQTT.format(port=port), encoding="utf-8")
    return ServerProcess("amqtt", [python, script], port, folder / "amqtt.log")


def _free_port() -> int:
    port = ports.hold_free_port()
    ports.release(port)
    return port

"""What the proxy's tests share: the proxy as a process, and a reader that sees what Kafka has."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import httpx
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from isotherm.cli.apply import apply
from isotherm.mqtt_proxy.sessions.recovery import end_offsets, read_to_end
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

WAIT_S = 150.0
ROUTES = (
    "INSERT INTO thermostat.data SELECT id AS device_id, t AS value, sequence, event_time FROM devices/+/temperature"
)
Headers = list[tuple[str, str | bytes | None]]
TOMBSTONE = b"(a null value)"


def wait_until(what: str, done: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    """Poll the condition until it holds; fail after a generous limit."""
    limit = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < limit, f"{what}: not within {limit_s} s"
        threading.Event().wait(0.02)


class Topics:
    """What a read_committed reader finds, once every transaction is decided."""

    def __init__(self, kafka: Kafka, registry: Registry) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=registry.url)
        self._decoder = Decoder(SchemaRegistry(self.registry))

    @cached_property
    def _admin(self) -> AdminClient:
        """One for all questions, so that not each of them begins with a connection."""
        return clients.admin(self.kafka, "reader")

    def raw(self, topic: str, key_prefix: str = "") -> list[tuple[str, bytes, dict[str, str]]]:
        """(key, value, headers) of every record whose key begins so; a tombstone has the value TOMBSTONE."""
        prefix = key_prefix.encode()
        consumer = clients.consumer_to_the_end(self.kafka, f"reader-{uuid.uuid4()}")
        try:
            messages = read_to_end(consumer, topic, end_offsets(self._admin, topic), Stop())
            return [
                (
                    (message.key() or b"").decode(),
                    TOMBSTONE if (value := message.value()) is None else value,
                    {name: _decoded(value) for name, value in cast(Headers, message.headers() or [])},
                )
                for message in messages
                # Other tests may have left tens of thousands of records.
                if (message.key() or b"").startswith(prefix)
            ]
        finally:
            consumer.close()

    @contextmanager
    def small_records(self, topic: str) -> Iterator[None]:
        """Kafka takes only small batches in this topic."""

        def configure(value: str | None, operation: AlterConfigOpType) -> None:
            entry = ConfigEntry("max.message.bytes", value, incremental_operation=operation)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            self._admin.incremental_alter_configs([resource])[resource].result()

        configure("2000", AlterConfigOpType.SET)
        # The controller's answer comes before the broker has heard of the new limit.
        wait_until(f"only small records in {topic}", lambda: self._refuses_large(topic))
        try:
            yield
        finally:
            configure(None, AlterConfigOpType.DELETE)

    def _refuses_large(self, topic: str) -> bool:
        errors: list[KafkaError | None] = []

        def note(error: KafkaError | None, _: Message) -> None:
            errors.append(error)

        producer = clients.producer(self.kafka, "probe")
        try:
            producer.produce(topic, key=f"probe-{uuid.uuid4()}", value=secrets.token_bytes(4_000), on_delivery=note)
            producer.flush()
        finally:
            producer.close()
        return any(error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in errors)

    def readings(self, topic: str, device: str) -> list[tuple[dict[str, Any], dict[str, str]]]:
        """(reading, headers) of the devices whose id begins so, in their order."""
        return [(self._decoder(value).record, headers) for _, value, headers in self.raw(topic, device)]

    def values(self, device: str) -> list[float]:
        """The values in `thermostat.data` of the devices whose id begins so."""
        return [reading["value"] for reading, _ in self.readings("thermostat.data", device)]

    def identities(self, name: str) -> Counter[tuple[str, int]]:
        """How often each (device, sequence) of a group is stored."""
        return Counter(
            (reading["device_id"], reading["sequence"]) for reading, _ in self.readings("thermostat.data", name)
        )


def _decoded(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


class Proxy:
    """One proxy process at a time, always on the same port; it can be killed and started repeatedly."""

    def __init__(self, folder: Path, topics: Topics, port: int, http_port: int) -> None:
        self.topics = topics
        self.device = f"d-{uuid.uuid4().hex[:8]}"
        self.host, self.port = "127.0.0.1", port
        self.at_end = ExitStack()
        # One client for all questions: each new one reads all certificates of the system.
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{http_port}")
        self._log = folder / f"proxy-{port}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: dict[str, object] = {
            "listener.port": port,
            "http.port": http_port,
            "allow_anonymous": "true",
            "ordinal": 7,
            "kafka.bootstrap_servers": topics.kafka.bootstrap_servers,
            "registry.url": topics.registry.url,
            "routes": ROUTES,
        }

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def start(self, **settings: object) -> None:
        """Start and wait until it is ready."""
        self.launch(**settings)
        wait_until("the proxy is ready", self.is_ready)

    def configure(self, **settings: object) -> None:
        """Set settings for all starts; dots in keys are written as two underscores."""
        self._settings |= {key.replace("__", "."): value for key, value in settings.items()}

    def launch(self, **settings: object) -> None:
        """Start; `settings` as for `configure`."""
        self.configure(**settings)
        pairs = [f"{key}={value}" for key, value in self._settings.items()]
        command = [
            sys.executable,
            "-m",
            "isotherm.mqtt_proxy",
            "run",
            *(word for pair in pairs for word in ("--set", pair)),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)

    def is_ready(self) -> bool:
        """Whether /ready says so; fails when the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"the proxy ended: {self.log()[-3000:]}"
        try:
            return self._http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def problems(self) -> dict[str, str]:
        """The reasons why it is not ready, by part; empty while the process does not answer."""
        try:
            found: dict[str, str] = self._http.get("/ready").json()["problems"]
        except httpx.TransportError:
            return {}
        return found

    def log(self) -> str:
        """Everything that its processes logged."""
        return self._log.read_text()

    def metric(self, name: str) -> float:
        """The sum of all samples whose name and labels begin so."""
        lines = self._http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"isotherm_mqtt_proxy_{name}"))

    def peak_resident_mib(self) -> float:
        """The most memory that the process ever held."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal and do not wait."""
        assert self._process is not None
        self._process.send_signal(number)

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """`kill -9`."""
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, when it ends by itself."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        """Kill it if it runs, and show the end of its log: pytest prints it when the test failed."""
        self.at_end.close()
        self._http.close()
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._log.exists():
            sys.stderr.write(f"-- the proxy's log ends with\n{self.log()[-4000:]}\n")


def children_of(proxy: Proxy) -> list[int]:
    """The processes that a supervisor started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
                if int(parent) == proxy.pid and state != "Z":
                    found.append(int(entry.name))
    return sorted(found)


@contextmanager
def opened(kafka: Kafka, registry: Registry, folder: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    """A proxy that is not started yet; its topics exist."""
    topics = Topics(kafka, registry)
    apply(topics.kafka, topics.registry)
    proxy = Proxy(folder, topics, free_port(), free_port())
    try:
        yield proxy
    finally:
        proxy.close()


def mosquitto_pub(proxy: Proxy, topic: str, message: str, qos: int, *more: str) -> None:
    """Publish with mosquitto_pub; raises CalledProcessError when it says that it failed."""
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(proxy.port), "-t", topic, "-m", message, "-q", str(qos)]
    subprocess.run([*command, *more], check=True, timeout=WAIT_S, capture_output=True, text=True)

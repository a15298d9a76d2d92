"""The services and simulators of the demo, each a process of its own with a monitoring port, a folder and a log."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.server import Launch, Runtime, Server

_PROBE_TIMEOUT_S = 2.0


def command(name: str) -> str:
    """Path of a command of the suite, from the environment that this process runs in."""
    return str(Path(sys.executable).parent / name)


@dataclass(frozen=True)
class Configured:
    """What a service is started with: its arguments, and the variables that its files refer to."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Worker(Server):
    """A service: ready when its own `/ready` says so."""

    program: ClassVar[str]
    stop_timeout_s: ClassVar[float] = 40.0

    def __init__(
        self, folder: Path, runtime: Runtime, configured: Configured, monitoring_port: int, *listeners: int
    ) -> None:
        super().__init__(folder, runtime)
        self._configured = configured
        self.monitoring_port = monitoring_port
        self._listeners = listeners

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.monitoring_port, *self._listeners)

    @property
    def address(self) -> str:
        return self.monitoring_address

    @property
    def monitoring_address(self) -> str:
        """Where `/ready` and `/metrics` answer."""
        return f"http://{LOOPBACK}:{self.monitoring_port}"

    def prepare(self) -> Launch:
        monitoring = ["--set", f"http.port={self.monitoring_port}"]
        return Launch(
            [command(self.program), *self._configured.arguments, *monitoring], dict(self._configured.environment)
        )

    def is_ready(self) -> bool:
        return self.get("/ready") is not None

    def get(self, page: str) -> str | None:
        """A page of the service's monitoring port; None when it does not answer with 200."""
        try:
            with urllib.request.urlopen(f"{self.monitoring_address}{page}", timeout=_PROBE_TIMEOUT_S) as answer:  # noqa: S310 - our own address
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, OSError):
            return None


class MqttProxy(Worker):
    """The port that devices connect to."""

    name = "mqtt-proxy"
    program = "isotherm-mqtt-proxy"


class CoapIngest(Worker):
    """Observes the CoAP simulator."""

    name = "coap-ingest"
    program = "isotherm-coap-ingest"


class Aggregator(Worker):
    """Spark."""

    name = "aggregator"
    program = "isotherm-aggregator"


class ElasticsearchPersister(Worker):
    """Aggregates and groups into daily indices."""

    name = "persister-elasticsearch"
    program = "isotherm-persisters"


class CassandraPersister(Worker):
    """Brightness and aggregates into tables."""

    name = "persister-cassandra"
    program = "isotherm-persisters"


class HazelcastPersister(Worker):
    """CoAP messages into a queue, aggregates into a map."""

    name = "persister-hazelcast"
    program = "isotherm-persisters"


class Alerts(Worker):
    """Watches the readings."""

    name = "alerts"
    program = "isotherm-alerts"


class Console(Worker):
    """Kafka Connect's REST API and the pages; its listener is their port."""

    name = "console"
    program = "isotherm-console"

    @property
    def address(self) -> str:
        (pages,) = self._listeners
        return f"http://{LOOPBACK}:{pages}"


class SinkWorkers(Worker):
    """A distributed worker: runs the sinks that somebody makes in the console or by `isotherm create`."""

    name = "worker-sinks"
    program = "isotherm-persisters"


class Simulator(Server):
    """A simulator: ready when it has opened its ledger."""

    stop_timeout_s: ClassVar[float] = 60.0
    subcommand: ClassVar[str]
    sent_event: ClassVar[bytes]

    def __init__(self, folder: Path, runtime: Runtime, arguments: Sequence[str]) -> None:
        super().__init__(folder, runtime)
        self._arguments = arguments

    @property
    def ledger(self) -> Path:
        """The file with everything that it sent, as JSON lines."""
        return self.data_folder / "ledger.jsonl"

    @property
    def ports(self) -> tuple[int, ...]:
        return ()

    @property
    def address(self) -> str:
        return str(self.ledger)

    def prepare(self) -> Launch:
        return Launch([command("isotherm-simulators"), self.subcommand, *self._arguments, "--ledger", str(self.ledger)])

    def is_ready(self) -> bool:
        return self.ledger.exists()

    def sent(self) -> int:
        """Number of readings sent so far."""
        return self.ledger.read_bytes().count(self.sent_event)


class MqttDevices(Simulator):
    """Thermostats that publish temperature and brightness."""

    name = subcommand = "mqtt"
    sent_event = b'{"event":"published"'


class CoapSensors(Simulator):
    """The observable resource `sensors`."""

    name = subcommand = "coap"
    sent_event = b'{"event":"notified"'

"""The system of the demo: its servers, services and simulators, their start order, and the check that none is left."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import psutil

from isotherm.cli import apply as applying
from isotherm.cli import devices as device_import
from isotherm.demo import workers
from isotherm.demo.addresses import Addresses
from isotherm.demo.preparation import Preparation
from isotherm.demo.workers import Configured, Simulator, Worker
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.simulators.mqtt.devices import make_devices
from isotherm.stack import ports as stack_ports
from isotherm.stack.class_archives import spark_classes
from isotherm.stack.servers.kafka import accepts_connections
from isotherm.stack.servers.server import READY_TIMEOUT_S, Runtime, Server, ServerFailed
from isotherm.stack.stack import Stack, stop_all

EXAMPLES = Path(__file__).parents[4] / "examples" / "demo"
SINK_GROUP = "sinks"
"""The worker group of connectors that are created at run time."""

_UNCHANGED_MAX_AGE_S = 86_400
_TOPICS, _DEVICES = "topics", "devices"
"""What the demo itself prepares before other parts start."""
_POLL_S = 0.1
_CHILDREN_END_WITHIN_S = 10.0
_PROGRAMS = ("java", "python")
"""Programs that run servers, services and simulators; other processes may have a log of the demo open."""


class PortTakenError(RuntimeError):
    """Something else listens on a port that the demo needs."""


class InterruptedStartError(Exception):
    """The stop was requested before everything had started."""


@dataclass(frozen=True)
class DemoPorts:
    """Ports of the services and simulators; the defaults are the well-known ones, and 9401 to 9409 for monitoring."""

    mqtt: int = 1883
    coap: int = 5633
    pages: int = 8083
    mqtt_proxy: int = 9401
    coap_ingest: int = 9402
    aggregator: int = 9403
    persister_elasticsearch: int = 9404
    persister_cassandra: int = 9405
    persister_hazelcast: int = 9406
    alerts: int = 9407
    console: int = 9408
    worker_sinks: int = 9409

    @classmethod
    def free(cls, **chosen: int) -> DemoPorts:
        """Ports that nobody uses, held by this process until each service starts."""
        return cls(**{one.name: chosen.get(one.name) or stack_ports.hold_free_port() for one in fields(cls)})


@dataclass(frozen=True)
class Load:
    """The load of the simulators."""

    devices: int = 50
    seed: int = 1
    rate_per_s: float = 200.0
    """MQTT readings per second; 0 for no MQTT simulator."""
    qos: str = "0:1,1:2,2:2"
    out_of_order_share: float = 0.02
    late_share: float = 0.005
    coap_rate_per_s: float = 20.0
    """States per second of the CoAP simulator; with 0 it serves one state, which stays fresh."""


@dataclass
class Started:
    """Seconds from the start of the demo until each part was ready."""

    seconds: dict[str, float] = field(default_factory=dict)


class System:
    """Servers, services and simulators of one run. Use `start`, then `stop_simulators`, then `stop`."""

    def __init__(
        self,
        stack: Stack,
        *,
        ports: DemoPorts | None = None,
        load: Load | None = None,
        examples: Path = EXAMPLES,
        overrides: Mapping[str, Mapping[str, object]] | None = None,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`overrides` are settings by the name of a service, over those of its file in `examples`.

        `environments` are further variables by the name of a service.
        With a stack of clusters services are given all brokers, and tables have as many copies as there are nodes.
        """
        self.stack = stack
        self.ports = ports or DemoPorts()
        self.load = load or Load()
        self.examples = examples
        self._overrides = overrides or {}
        self._environments = {name: dict(variables) for name, variables in (environments or {}).items()}
        self._folder = stack.folder / "demo"
        self._created_at = time.time()
        self._runtime = Runtime(stack.artifacts)
        self.expected_dead_letters: dict[str, int] = {}
        """Dead-letter records that a test provokes on purpose, by topic; the report expects exactly these."""
        self.kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=stack.registry.url)
        self.services: dict[str, Worker] = {worker.name: worker for worker in self._services()}
        self.mqtt_devices = self._mqtt_devices()
        self.sensors = self._sensors()
        self.simulators: tuple[Simulator, ...] = (self.sensors,)
        if self.load.rate_per_s:
            self.simulators = (self.mqtt_devices, self.sensors)

    @property
    def servers(self) -> list[Server]:
        """Everything that runs, in the order in which it may start."""
        return [*self.stack.select(), *self.services.values(), *self.simulators]

    @property
    def addresses(self) -> Addresses:
        """The addresses that the report reads from."""
        return Addresses(
            kafka=self.kafka,
            registry=self.registry,
            elasticsearch_url=self.stack.elasticsearch.url,
            cassandra_port=self.stack.cassandra.port,
            hazelcast_address=self.stack.hazelcast.address,
            mqtt_ledgers=(self.mqtt_devices.ledger,),
            coap_ledgers=(self.sensors.ledger,),
            expected_dead_letters=self.expected_dead_letters,
        )

    def wipe(self) -> None:
        """Delete all data and logs of an earlier run. Raises ServerFailed when a part of it still runs."""
        for server in self.servers:
            server.wipe()

    def check_ports(self) -> None:
        """Raise PortTakenError when something listens on a port that is needed."""
        taken = [f"{port} ({owner})" for owner, port in self._listened()]
        if taken:
            raise PortTakenError(
                f"in use by another process: port {', '.join(taken)}. Stop it (`make down` stops a stack that "
                "`make up` started) and try again."
            )

    def start(
        self,
        *,
        stopped: threading.Event,
        on_start: Callable[[Server], None] = lambda _server: None,
        on_ready: Callable[[Server, float], None] = lambda _server, _seconds: None,
        on_note: Callable[[str], None] = lambda _text: None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> Started:
        """Start every part as soon as the parts that it needs are ready, and return when all are ready.

        Raises ServerFailed with the last log lines of a part that ended, or is not ready within `ready_timeout_s` s.
        Raises InterruptedStartError when `stopped` was set.
        """
        began = time.monotonic()
        done = Started()
        waiting = list(self.servers)
        starting: list[Server] = []
        preparations = [
            Preparation(_TOPICS, {*self.stack.kafka_cluster.names, "registry"}, self._create_topics),
            Preparation(_DEVICES, {_TOPICS}, self._import_devices),
        ]
        preparing: list[Preparation] = []
        while waiting or starting or preparations or preparing:
            if stopped.is_set():
                raise InterruptedStartError
            for preparation in [one for one in preparations if one.needs <= done.seconds.keys()]:
                preparations.remove(preparation)
                preparation.start()
                preparing.append(preparation)
            for server in [one for one in waiting if self._needs(one) <= done.seconds.keys()]:
                waiting.remove(server)
                server.start()
                starting.append(server)
                on_start(server)
            for server in list(starting):
                if _is_ready(server):
                    starting.remove(server)
                    done.seconds[server.name] = time.monotonic() - began
                    on_ready(server, done.seconds[server.name])
            for preparation in list(preparing):
                if preparation.told.done():
                    preparing.remove(preparation)
                    done.seconds[preparation.name] = time.monotonic() - began
                    on_note(preparation.told.result())
            if time.monotonic() - began > ready_timeout_s:
                raise _too_late(starting, preparing, ready_timeout_s)
            stopped.wait(_POLL_S)
        return done

    def dead(self) -> list[Server]:
        """Parts that should run but do not."""
        return [server for server in self.servers if not server.alive()]

    def stop_simulators(self) -> None:
        """Stop the simulators, which wait for outstanding acknowledgements."""
        stop_all(self.simulators)

    def stop(self) -> None:
        """End everything that runs: first what writes, last the servers."""
        for group in (self.simulators, list(self.services.values()), self.stack.select()):
            stop_all(group)

    def left_over(self) -> list[str]:
        """Processes and ports of this system that are still there after `stop`."""
        deadline = time.monotonic() + _CHILDREN_END_WITHIN_S
        while (processes := self._processes()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return processes + [f"port {port} of {owner}" for owner, port in self._listened()]

    def _processes(self) -> list[str]:
        """Processes that name this run's folder, children of the services among them."""
        found = []
        for process in psutil.process_iter(["pid", "exe", "cmdline", "create_time"]):
            is_later = process.info["create_time"] >= self._created_at
            is_ours = is_later and any(str(self.stack.folder) in part for part in process.info["cmdline"] or [])
            program = Path(process.info["exe"] or "").name
            if is_ours and program.startswith(_PROGRAMS):
                found.append(f"process {process.info['pid']} ({program})")
        return found

    def _listened(self) -> list[tuple[str, int]]:
        """Ports on which somebody listens, each with the part that it is for.

        Asked by connecting: a port whose last connections the kernel still remembers cannot be bound for a minute, but
        it is free.
        """
        owners = [(server.name, port) for server in self.servers for port in server.ports]
        listened = [(owner, port) for owner, port in owners if accepts_connections(port)]
        if not _is_free_datagram_port(self.ports.coap):
            listened.append((self.sensors.name, self.ports.coap))
        return listened

    def _needs(self, server: Server) -> set[str]:
        """Names of the parts that have to be ready before `server` starts."""
        if server is self.mqtt_devices:
            return {_DEVICES, *self.services}
        if server is self.sensors:
            # Before the ingest, which is ready when it observes them.
            return {_TOPICS}
        store = {
            workers.ElasticsearchPersister.name: set(self.stack.elasticsearch_cluster.names),
            workers.CassandraPersister.name: set(self.stack.cassandra_cluster.names),
            workers.HazelcastPersister.name: set(self.stack.hazelcast_cluster.names),
        }
        return {_TOPICS} | store.get(server.name, set()) if isinstance(server, Worker) else set()

    def _create_topics(self) -> str:
        report = applying.apply(self.kafka, self.registry)
        return f"isotherm apply: {len(report.changes)} of {len(report.steps)} topics and schemas created"

    def _import_devices(self) -> str:
        lines = (json.dumps(device.record()) for device in make_devices(self.load.devices, self.load.seed, {0: 1}))
        imported = device_import.import_lines(lines, self.kafka, self.registry)
        if imported.problems:
            raise ServerFailed(f"devices import: {imported.problems[0]}")
        return f"isotherm devices import: {imported.stored} devices"

    def _services(self) -> Sequence[Worker]:
        mqtt_proxy = [
            *self._common("run", "--config", str(self.examples / "mqtt-proxy.toml")),
            "--set",
            f"listener.port={self.ports.mqtt}",
        ]
        aggregator = [
            *self._common("run", "--config", str(self.examples / "aggregator.toml")),
            "--set",
            f"checkpoint_dir={self._folder / workers.Aggregator.name / 'data' / 'checkpoint'}",
            "--set",
            f"jars_dir={self.stack.artifacts.folder('spark')}",
            *(("--set", f"spark.class_archive={archive}") if (archive := spark_classes()) else ()),
        ]
        coap_ingest = self._common("run", str(self.examples / "coap-source.properties"))
        elasticsearch, cassandra, hazelcast = (
            self._common("run", "--sink", sink, *(str(self.examples / file) for file in files))
            for sink, files in (
                ("elasticsearch", ["temperatures-to-elasticsearch.properties"]),
                ("scylla", ["readings-to-cassandra.properties"]),
                ("hazelcast", ["coap-to-hazelcast.properties"]),
            )
        )
        alerts = self._common("run", "--config", str(self.examples / "alerts.toml"))
        ports = self.ports
        console = [*self._common("run"), "--set", f"listen.port={ports.pages}"]
        worker_sinks = [*self._common("run"), "--set", f"worker_group={SINK_GROUP}"]
        return (
            self._worker(workers.MqttProxy, mqtt_proxy, ports.mqtt_proxy, ports.mqtt),
            self._worker(workers.CoapIngest, coap_ingest, ports.coap_ingest),
            self._worker(workers.Aggregator, aggregator, ports.aggregator),
            self._worker(workers.ElasticsearchPersister, elasticsearch, ports.persister_elasticsearch),
            self._worker(workers.CassandraPersister, cassandra, ports.persister_cassandra),
            self._worker(workers.HazelcastPersister, hazelcast, ports.persister_hazelcast),
            self._worker(workers.Alerts, alerts, ports.alerts),
            self._worker(workers.Console, console, ports.console, ports.pages),
            self._worker(workers.SinkWorkers, worker_sinks, ports.worker_sinks),
        )

    def _common(self, *arguments: str) -> list[str]:
        return [
            *arguments,
            "--set",
            f"kafka.bootstrap_servers={self.kafka.bootstrap_servers}",
            "--set",
            f"registry.url={self.registry.url}",
        ]

    def _worker(self, kind: type[Worker], arguments: Sequence[str], monitoring_port: int, *listeners: int) -> Worker:
        changed = [part for key, of in self._overrides.get(kind.name, {}).items() for part in ("--set", f"{key}={of}")]
        configured = Configured([*arguments, *changed], self._environment() | self._environments.get(kind.name, {}))
        return kind(self._folder / kind.name, self._runtime, configured, monitoring_port, *listeners)

    def _environment(self) -> dict[str, str]:
        """What the connector files of `examples/demo` refer to as `${env:..}`."""
        return {
            "COAP_SERVER": f"localhost:{self.ports.coap}",
            "ELASTICSEARCH_URL": self.stack.elasticsearch.url,
            "CASSANDRA_HOST": "localhost",
            "CASSANDRA_PORT": str(self.stack.cassandra.port),
            "CASSANDRA_REPLICATION": str(len(self.stack.cassandra_cluster.nodes)),
            "HAZELCAST_MEMBER": self.stack.hazelcast.address,
        }

    def _mqtt_devices(self) -> Simulator:
        load = self.load
        arguments = {
            "--port": self.ports.mqtt,
            "--devices": load.devices,
            "--seed": load.seed,
            "--rate": load.rate_per_s,
            "--qos": load.qos,
            "--out-of-order": load.out_of_order_share,
            "--late": load.late_share,
        }
        return workers.MqttDevices(
            self._folder / "mqtt-devices", self._runtime, [str(part) for pair in arguments.items() for part in pair]
        )

    def _sensors(self) -> Simulator:
        arguments = ["--port", str(self.ports.coap), "--rate", str(self.load.coap_rate_per_s)]
        if not self.load.coap_rate_per_s:
            arguments += ["--max-age", str(_UNCHANGED_MAX_AGE_S)]
        return workers.CoapSensors(self._folder / "coap-sensors", self._runtime, arguments)


def _too_late(starting: Sequence[Server], preparing: Sequence[Preparation], ready_timeout_s: float) -> ServerFailed:
    text = f"not ready after {ready_timeout_s:.0f} s"
    return starting[0].failure(text) if starting else ServerFailed(f"{preparing[0].name}: {text}")


def _is_ready(server: Server) -> bool:
    if not server.alive():
        code = server.exit_code()
        raise server.failure("ended" if code is None else f"ended with exit code {code}")
    if not server.is_ready():
        return False
    server.after_ready()
    return True


def _is_free_datagram_port(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        try:
            datagram.bind((stack_ports.LOOPBACK, port))
        except OSError:
            return False
    return True


def demo_seconds() -> float | None:
    """`DEMO_SECONDS` of the environment; None to run until Ctrl-C. Raises ValueError when it is no number."""
    text = os.environ.get("DEMO_SECONDS", "").strip()
    return float(text) if text else None

"""Kafka, the MQTT server, two processes that settle commands, and simulated devices that take them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer

from isotherm.cli import apply as applying
from isotherm.cli import records as reading
from isotherm.connector.commands import records
from isotherm.connector.commands.records import CommandOutcome, DeviceCommand
from isotherm.demo import workers
from isotherm.demo.system import EXAMPLES
from isotherm.demo.workers import Configured, Simulator, Worker
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.simulators.mqtt.actuators import BEHAVIOURS
from isotherm.stack.clusters import Nodes
from isotherm.stack.ports import LOOPBACK, Ports, hold_free_port
from isotherm.stack.servers.server import Runtime, Server, wait_all_ready
from isotherm.stack.stack import Stack, stop_all

_FLUSH_S = 120.0
_VERSIONS = ("3.1.1", "5")


class Settling(Worker):
    """A process that settles commands."""

    name = "commands"
    program = "isotherm-console"


class SecondSettling(Settling):
    """Another one of its group."""

    name = "commands-second"


class Actuators(Simulator):
    """Devices of one version of MQTT that take commands."""

    subcommand = "actuators"
    sent_event = b'{"event":"answered"'

    def __init__(self, folder: Path, runtime: Runtime, name: str, arguments: Sequence[str]) -> None:
        super().__init__(folder, runtime, arguments)
        self.name = name


class CommandWriter:
    """Issues commands as any producer may."""

    def __init__(self, kafka: KafkaSettings, registry: RegistrySettings) -> None:
        self._schemas = SchemaRegistry(registry)
        self._encode = self._schemas.encoder(records.COMMANDS, records.COMMAND_SCHEMA)
        self._producer: Producer = clients.producer(kafka, "proof")

    def write(self, command: DeviceCommand) -> None:
        """Write a command; `close` waits for Kafka."""
        self._producer.produce(records.COMMANDS, key=command.device_id, value=self._encode(command.record()))
        self._producer.poll(0)

    def close(self) -> None:
        """Wait until Kafka has all of them."""
        left = self._producer.flush(_FLUSH_S)
        self._schemas.close()
        if left:
            raise TimeoutError(f"{left} commands were not stored within {_FLUSH_S:g} s")


class CommandSystem:
    """The whole; `mortals` are the parts that may be killed."""

    def __init__(self, folder: Path, *, brokers: int, devices: int, seed: int) -> None:
        self._stack = Stack(folder, Ports.free(), nodes=Nodes(kafka=brokers))
        brokers_at = ",".join(node.address for node in self._stack.kafka_cluster.nodes)
        self._kafka = KafkaSettings(bootstrap_servers=brokers_at)
        self._registry = RegistrySettings(url=self._stack.registry.url)
        self._folder, self._runtime = self._stack.folder / "commands", Runtime(self._stack.artifacts)
        self._servers = [*self._stack.kafka_cluster.nodes, self._stack.registry]
        port = hold_free_port()
        proxy = ["--config", str(EXAMPLES / "mqtt-proxy.toml"), "--set", f"listener.port={port}"]
        self._workers = [
            self._worker(workers.MqttProxy, ["run", *proxy, "--set", "commands.enabled=true"], port),
            self._worker(Settling, ["commands"]),
            self._worker(SecondSettling, ["commands"]),
        ]
        self._simulators = [
            self._actuators(version, port, devices // len(_VERSIONS), seed + number)
            for number, version in enumerate(_VERSIONS)
        ]
        self.devices = [
            f"{_prefix(version)}-{number:04d}" for version in _VERSIONS for number in range(devices // len(_VERSIONS))
        ]
        many = self._stack.kafka_cluster.nodes if brokers > 1 else ()
        self.mortals: list[Server] = [*self._workers, *many]

    @property
    def ledgers(self) -> list[Path]:
        """The logs of the devices."""
        return [one.ledger for one in self._simulators]

    def wipe(self) -> None:
        """Delete all data of an earlier run."""
        for server in (*self._servers, *self._workers, *self._simulators):
            server.wipe()

    def start(self, timeout_s: float) -> None:
        """Start everything."""
        self._stack.up([server.name for server in self._servers], timeout_s)
        applying.apply(self._kafka, self._registry)
        for group in (self._workers, self._simulators):
            for server in group:
                server.start()
            wait_all_ready(group, timeout_s)

    def stop_devices(self) -> None:
        """End the devices, whose logs are complete then."""
        stop_all(self._simulators)

    def stop(self) -> None:
        """End everything."""
        for group in (self._simulators, self._workers, self._servers):
            stop_all(group)

    def writer(self) -> CommandWriter:
        """Return what issues commands."""
        return CommandWriter(self._kafka, self._registry)

    def outcomes(self) -> list[CommandOutcome]:
        """Read all outcomes."""
        with closing(SchemaRegistry(self._registry)) as schemas:
            decode = Decoder(schemas, records.OUTCOME_SCHEMA)
            with closing(reading.read(self._kafka, records.OUTCOMES)) as messages:
                return [CommandOutcome.of(decode(message.value() or b"").record) for message in messages]

    def _worker(self, kind: type[Worker], arguments: Sequence[str], *listeners: int) -> Worker:
        servers = {"kafka.bootstrap_servers": self._kafka.bootstrap_servers, "registry.url": self._registry.url}
        chosen = [part for key, of in servers.items() for part in ("--set", f"{key}={of}")]
        configured = Configured([*arguments, *chosen], {})
        return kind(self._folder / kind.name, self._runtime, configured, hold_free_port(), *listeners)

    def _actuators(self, version: str, port: int, devices: int, seed: int) -> Actuators:
        options = {
            "--host": LOOPBACK,
            "--port": port,
            "--devices": devices,
            "--prefix": _prefix(version),
            "--seed": seed,
            "--qos": 2,
            "--behaviours": ",".join(BEHAVIOURS),
            "--mqtt-version": version,
        }
        name = f"actuators-{version}"
        arguments = [str(part) for pair in options.items() for part in pair]
        return Actuators(self._folder / name, self._runtime, name, arguments)


def _prefix(version: str) -> str:
    return f"act{version[0]}"

"""A running demo as it looks from outside: its parts' processes, its ledgers, its addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.demo.addresses import Addresses
from isotherm.demo.system import EXAMPLES, DemoPorts, System
from isotherm.simulators.mqtt.devices import make_devices
from isotherm.stack import processes
from isotherm.stack.measurement import metrics
from process_usage import Usage

SERVERS = ("kafka", "registry", "elasticsearch", "cassandra", "hazelcast")
_JAVA = "java"
_AGGREGATOR, _ALERTS = "aggregator", "alerts"
_LEDGER = Path("data") / "ledger.jsonl"
_EVENTS = (b"published", b"acknowledged", b"sent", b"notified")
_ACCEPTED = ("acknowledged", "sent", "notified")
_SAMPLED_DEVICES = 20


@dataclass(frozen=True)
class ObservedDemo:
    """What a measurement needs to know of one running system."""

    folder: Path
    """The folder of its stack; the services' folders are below it in `demo`."""
    addresses: Addresses = field(default_factory=Addresses)
    aggregator_port: int = DemoPorts.aggregator
    mqtt_port: int = DemoPorts.mqtt
    devices: int = 50
    seed: int = 1
    settings: Path = EXAMPLES / "aggregator.toml"

    @classmethod
    def of(cls, system: System, devices: int) -> ObservedDemo:
        """A system that this process has started."""
        return cls(
            system.stack.folder,
            system.addresses,
            system.ports.aggregator,
            system.ports.mqtt,
            devices,
            system.load.seed,
        )

    def parts(self) -> dict[str, int]:
        """The pid of every part's first process, by the name of its folder, servers first."""
        files = [*self.folder.glob("*/pid"), *sorted(self.folder.glob("demo/*/pid"))]
        found = ((file.parent.name, processes.read_pid_file(file)) for file in files)
        return {part: leader.pid for part, leader in found if leader is not None and processes.is_running(leader)}

    @property
    def kafka_log(self) -> Path:
        """The broker's log."""
        return self.folder / "kafka" / "server.log"

    def simulators(self) -> set[str]:
        """The parts that simulate devices: those with a ledger."""
        return {ledger.parents[1].name for ledger in self.ledgers()}

    def ledgers(self) -> list[Path]:
        """The simulators' ledgers."""
        return sorted(self.folder.glob(f"demo/*/{_LEDGER}"))

    def sampled_devices(self) -> list[str]:
        """Some devices whose windows stand for all: every so many-th."""
        every = max(1, self.devices // _SAMPLED_DEVICES)
        return [device.device_id for device in make_devices(self.devices, self.seed, {0: 1})[::every]]

    def aggregator_metrics(self) -> dict[str, float]:
        """The aggregator's `/metrics`; empty while it does not answer."""
        return metrics(self.aggregator_port)


def group(one: Usage, simulators: Collection[str]) -> str:
    """The group of processes that a sum is stated of."""
    if one.part in SERVERS:
        return "servers"
    if one.part in simulators:
        return "simulators"
    if one.part == _AGGREGATOR and one.program == _JAVA:
        return "Spark's JVM"
    return "alerts" if one.part == _ALERTS else "suite"


class LedgerTail:
    """Counts what the simulators write into their ledgers from now on."""

    def __init__(self, ledgers: Sequence[Path]) -> None:
        self._read_to = {ledger: ledger.stat().st_size for ledger in ledgers}

    def count(self) -> Counter[str]:
        """The events since the last call, or since the beginning."""
        found: Counter[str] = Counter()
        for ledger, position in self._read_to.items():
            with ledger.open("rb") as file:
                file.seek(position)
                new = file.read()
            whole = new.rfind(b"\n") + 1
            self._read_to[ledger] = position + whole
            for event in _EVENTS:
                found[event.decode()] += new.count(b'{"event":"' + event + b'"', 0, whole)
        return found


def accepted(events: Counter[str]) -> int:
    """The readings that came in: acknowledged ones, those of QoS 0, and notifications over CoAP."""
    return sum(events[event] for event in _ACCEPTED)

"""What goes wrong in the MQTT world, by the kind of a scenario's fault."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.cluster import NODES
from isotherm.proofs.kernel.network import End
from isotherm.proofs.worlds.mqtt.device import Device
from isotherm.proofs.worlds.mqtt.server import SESSIONS, Environment, ProxyProcess, ServerHost
from isotherm.proofs.worlds.scenario import Fault

_PROCESSES, _ENDS, _DEVICES = 3, 6, 6
KINDS: tuple[tuple[str, int, tuple[int, int]], ...] = (
    ("kill", _PROCESSES, (1, 10)),
    ("stop", _PROCESSES, (1, 10)),
    ("freeze", _PROCESSES, (100, 90_000)),
    ("kill_supervisor", _PROCESSES, (1_000, 120_000)),
    ("kill_at_steps", 1, (1_000, 120_000)),
    ("broker_away", NODES, (500, 100_000)),
    ("all_brokers_away", 1, (500, 100_000)),
    ("broker_loss", NODES, (1_000, 120_000)),
    ("all_brokers_loss", 1, (1_000, 120_000)),
    ("broker_slow", NODES, (1_000, 60_000)),
    ("coordinator_moves", 3, (100, 20_000)),
    ("leader_moves", 4, (1, 10)),
    ("stall", _ENDS, (100, 60_000)),
    ("break", _ENDS, (1, 10)),
    ("hurry", _DEVICES, (1, 10)),
    ("compact", 1, (1, 10)),
)
"""Name, number of targets, and limits of the duration in milliseconds."""

_USUAL_MS = 0.3, 3.0
"""Latency of a broker that works."""
_AWAY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class Faults:
    """Applies faults to a running world. What a fault draws depends on it alone, so that the others may be left out."""

    def __init__(self, environment: Environment, devices: list[Device], hosts: list[ServerHost]) -> None:
        self._environment, self._devices, self._hosts = environment, devices, hosts
        self._run = environment.simulation
        self._ends: list[Callable[[], None]] = []

    def apply(self, fault: Fault) -> None:
        """Let the fault begin."""
        self._run.note("fault", *fault)
        getattr(self, f"_fault_{fault.kind}")(fault, Random(str(fault)))

    def heal(self) -> None:
        """End all faults."""
        for end in self._ends:
            end()

    def _end_later(self, fault: Fault, end: Callable[[], None]) -> None:
        self._ends.append(end)
        self._run.call_later(fault.for_ms, end)

    # -- processes

    def _process(self, fault: Fault) -> ProxyProcess | None:
        processes = self._environment.processes
        return processes[fault.target % len(processes)] if processes else None

    def _fault_kill(self, fault: Fault, _chance: Random) -> None:
        if process := self._process(fault):
            process.kill()

    def _fault_stop(self, fault: Fault, _chance: Random) -> None:
        """Tell a process to drain and end; the supervisor starts it again."""
        if process := self._process(fault):
            process.send_signal(signal.SIGTERM)

    def _fault_freeze(self, fault: Fault, _chance: Random) -> None:
        if process := self._process(fault):
            process.process.freeze()
            self._end_later(fault, process.process.thaw)

    def _fault_kill_supervisor(self, fault: Fault, chance: Random) -> None:
        """Kill the supervisor, and let another one take over. A frozen process does not notice: it becomes a zombie."""
        host = self._hosts[-1]
        if host.supervisor is None or host.loop.is_dead:
            return
        for child in host.children:
            if child.returncode is None and chance.random() < 0.3:
                child.process.freeze()
                self._end_later(fault, child.process.thaw)
        host.kill()
        processes = 1 + fault.target
        self._run.call_later(
            chance.uniform(200.0, 5_000.0), lambda: self._hosts.append(ServerHost(self._environment, processes))
        )

    def _fault_kill_at_steps(self, fault: Fault, _chance: Random) -> None:
        """Kill processes at steps of their producers."""
        environment = self._environment
        environment.kill_rate = fault.share / 20
        self._end_later(fault, lambda: setattr(environment, "kill_rate", 0.0))

    # -- Kafka

    def _fault_broker_away(self, fault: Fault, _chance: Random) -> None:
        weather = self._environment.kafka_network.of(fault.target)
        weather.is_away = True
        self._end_later(fault, lambda: setattr(weather, "is_away", False))

    def _fault_all_brokers_away(self, fault: Fault, chance: Random) -> None:
        for broker in range(NODES):
            self._fault_broker_away(fault._replace(target=broker), chance)

    def _fault_broker_loss(self, fault: Fault, _chance: Random) -> None:
        weather = self._environment.kafka_network.of(fault.target)
        weather.loss = fault.share
        self._end_later(fault, lambda: setattr(weather, "loss", 0.0))

    def _fault_all_brokers_loss(self, fault: Fault, chance: Random) -> None:
        for broker in range(NODES):
            self._fault_broker_loss(fault._replace(target=broker), chance)

    def _fault_broker_slow(self, fault: Fault, _chance: Random) -> None:
        weather = self._environment.kafka_network.of(fault.target)
        weather.latency_ms = 0.3, 8_000.0 * fault.share
        self._end_later(fault, lambda: setattr(weather, "latency_ms", _USUAL_MS))

    def _fault_coordinator_moves(self, fault: Fault, _chance: Random) -> None:
        transactions = self._environment.cluster.transactions
        transactions.away_code = _AWAY[fault.target]
        self._end_later(fault, lambda: setattr(transactions, "away_code", None))

    def _fault_leader_moves(self, fault: Fault, _chance: Random) -> None:
        cluster = self._environment.cluster
        partitions = [(topic, number) for topic, count in cluster.partition_counts().items() for number in range(count)]
        cluster.move_leader(partitions[fault.target % len(partitions)])

    def _fault_compact(self, _fault: Fault, _chance: Random) -> None:
        cluster = self._environment.cluster
        for number in range(cluster.partition_counts()[SESSIONS]):
            cluster.log_of((SESSIONS, number)).compact()

    # -- connections of devices

    def _some_ends(self, fault: Fault, chance: Random) -> tuple[End, ...]:
        """Return one end of a connection, or both."""
        ends = self._environment.network.open_ends()
        if not ends:
            return ()
        end = ends[fault.target % len(ends)]
        return chance.choice(((end,), (end.peer,), (end, end.peer)))

    def _fault_stall(self, fault: Fault, chance: Random) -> None:
        for end in self._some_ends(fault, chance):
            end.stall(fault.for_ms)

    def _fault_break(self, fault: Fault, chance: Random) -> None:
        for end in self._some_ends(fault, chance):
            end.reset()

    def _fault_hurry(self, fault: Fault, chance: Random) -> None:
        """Let a device connect again though its connection stands."""
        self._devices[fault.target % len(self._devices)].leave(abandons=chance.random() < 0.7)

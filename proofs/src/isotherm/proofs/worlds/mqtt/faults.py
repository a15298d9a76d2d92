"""What goes wrong in the MQTT world, by the kind of a scenario's fault."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from random import Random

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.cluster import NODES
from isotherm.proofs.kernel.network import End
from isotherm.proofs.worlds.mqtt.device import Device
from isotherm.proofs.worlds.mqtt.programs import Environment, Program, ProxyProcess
from isotherm.proofs.worlds.mqtt.server import SESSIONS, ServerHost
from isotherm.proofs.worlds.scenario import Fault

_PROCESSES, _ENDS, _DEVICES = 3, 6, 6
KINDS: tuple[tuple[str, int, tuple[int, int]], ...] = (
    ("kill", _PROCESSES, (1, 10)),
    ("stop", _PROCESSES, (1, 10)),
    ("freeze", _PROCESSES, (100, 90_000)),
    ("kill_supervisor", _PROCESSES, (1_000, 120_000)),
    ("kill_at_steps", 1, (1_000, 120_000)),
    ("zombie_at_step", _PROCESSES, (5_000, 50_000)),
    ("cut_off", _PROCESSES, (1_000, 120_000)),
    ("broker_away", NODES, (500, 100_000)),
    ("broker_frozen", NODES, (500, 100_000)),
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


class Faults(ABC):
    """Applies faults to a running world. What a fault draws depends on it alone, so that the others may be left out."""

    def __init__(self, environment: Environment, devices: list[Device]) -> None:
        self._environment, self._devices = environment, devices
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

    @abstractmethod
    def shut(self) -> None:
        """End what the server runs on."""

    @abstractmethod
    def counts(self) -> Counter[str]:
        """Return how much of what happened to the server."""

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
            self._end_later(fault, process.thaw)

    def _at_steps(self, fault: Fault, rate: float, strike: Callable[[Program], None]) -> Callable[[], None]:
        """Call `strike` at a share `rate` of the steps of producers; return what ends this."""
        at_step, name = self._environment.at_step, str(fault)

        def step(program: Program) -> None:
            if self._run.random.random() < rate:
                strike(program)

        at_step[name] = step
        return lambda: at_step.pop(name, None) and None

    def _fault_kill_at_steps(self, fault: Fault, _chance: Random) -> None:
        """Kill processes at steps of their producers."""

        def kill(program: Program) -> None:
            self._run.call_later(self._run.random.choice((0.0, 1.0, 5.0)), program.kill)

        self._end_later(fault, self._at_steps(fault, fault.share / 20, kill))

    def _fault_zombie_at_step(self, fault: Fault, chance: Random) -> None:
        """Freeze a program in the middle of its work while another one takes its place; some time later it goes on."""

        def freeze(program: Program) -> None:
            end()
            self._freeze_and_replace(program, fault, chance)

        end = self._at_steps(fault, fault.share / 5, freeze)
        self._ends.append(end)

    @abstractmethod
    def _freeze_and_replace(self, program: Program, fault: Fault, chance: Random) -> None:
        """Freeze a program for the time of the fault, and let another one take its place meanwhile."""

    # -- Kafka

    def _fault_cut_off(self, fault: Fault, _chance: Random) -> None:
        """Let no packet pass between a process and the brokers."""
        if process := self._process(fault):
            cut_off = self._environment.kafka_network.cut_off
            cut_off.add(process.name)
            self._end_later(fault, lambda: cut_off.discard(process.name))

    def _fault_broker_frozen(self, fault: Fault, _chance: Random) -> None:
        weather = self._environment.kafka_network.of(fault.target)
        weather.is_frozen = True
        self._end_later(fault, lambda: setattr(weather, "is_frozen", False))

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


class ServerFaults(Faults):
    """The faults of a server that is one supervisor. `hosts` ends with the machine on which it runs."""

    def __init__(self, environment: Environment, devices: list[Device], hosts: list[ServerHost]) -> None:
        super().__init__(environment, devices)
        self._hosts = hosts

    def shut(self) -> None:
        """End the supervisor."""
        self._hosts[-1].kill()

    def counts(self) -> Counter[str]:
        """Return nothing but what every server counts."""
        return Counter()

    def _fault_kill_supervisor(self, fault: Fault, chance: Random) -> None:
        """Kill the supervisor, and let another one take over. A frozen process does not notice: it becomes a zombie."""
        for child in self._hosts[-1].children:
            if child.returncode is None and chance.random() < 0.3:
                child.process.freeze()
                self._end_later(fault, child.thaw)
        self._replace_supervisor(fault, chance)

    def _replace_supervisor(self, fault: Fault, chance: Random) -> None:
        host, processes = self._hosts[-1], 1 + fault.target
        if host.supervisor is None or host.loop.is_dead:
            return
        host.kill()
        self._run.call_later(
            chance.uniform(200.0, 5_000.0), lambda: self._hosts.append(ServerHost(self._environment, processes))
        )

    def _freeze_and_replace(self, program: Program, fault: Fault, chance: Random) -> None:
        program.process.freeze()
        self._end_later(fault, program.thaw)
        self._run.call_later(0.0, lambda: self._replace_supervisor(fault, chance))

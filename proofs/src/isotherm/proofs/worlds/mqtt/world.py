"""The world of the MQTT server: a seed decides devices, limits, faults and every schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from isotherm.connector.attestation import attester
from isotherm.mqtt_proxy import service
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.network import Network as KafkaNetwork
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.network import Network, Weather
from isotherm.proofs.kernel.simulation import Simulation
from isotherm.proofs.worlds.mqtt.device import Device, Habits
from isotherm.proofs.worlds.mqtt.faults import KINDS, Faults, ServerFaults
from isotherm.proofs.worlds.mqtt.judge import attested, judge, judge_attested, stored_numbers
from isotherm.proofs.worlds.mqtt.programs import Environment
from isotherm.proofs.worlds.mqtt.server import READINGS, SESSIONS, ServerHost, proxy_settings
from isotherm.proofs.worlds.mqtt.wiring import wired
from isotherm.proofs.worlds.scenario import Fault, Outcome, Scenario, draw_faults

_HEALING_MS = 400_000.0
"""How long everything may take after the last fault: time-outs of transactions, restarts, back-offs."""
_FAULTS_AN_HOUR = 200
_FEWEST_FAULTS = 30
_LOOK_MS = 5_000.0
_SPARE_RECORDS = 8
"""How far one publish may exceed the bound on records in flight."""


@dataclass(frozen=True)
class MqttOutcome(Outcome):
    """What became of a scenario, and how much of each thing there was in it."""

    counts: Counter[str] = field(default_factory=Counter)


class MqttWorld:
    """Runs the MQTT server for so many seconds of faults, heals everything, and judges.

    In runs of less than ten minutes the devices publish five times as often.
    """

    name = "mqtt"
    kinds = KINDS
    """The kinds of its faults (`draw_faults`)."""

    def __init__(self, seconds: float = 3_600.0) -> None:
        self._until_ms = 1000 * seconds

    def scenario(self, seed: int) -> Scenario:
        """Draw the faults of a seed."""
        most = max(_FEWEST_FAULTS, round(_FAULTS_AN_HOUR * self._until_ms / 3_600_000))
        return Scenario(seed, draw_faults(Random(f"faults of {seed}"), self.kinds, round(self._until_ms), most))

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> MqttOutcome:
        """Run it to its end."""
        simulation = Simulation(scenario.seed, keeps_trace=keeps_trace)
        stand_ins.begin(simulation)
        chance = Random(f"devices of {scenario.seed}")
        cluster = Cluster(simulation)
        cluster.create_topic(READINGS, 2)
        cluster.create_topic(SESSIONS, 2, is_compacted=True)
        cluster.create_topic(attester.TOPIC)
        limits = {"outstanding_records": 12} if chance.random() < 0.3 else {}
        environment = Environment(
            simulation, Network(simulation), KafkaNetwork(simulation), cluster, self._settings(**limits)
        )
        pace = 1.0 if self._until_ms < 600_000 else 5.0
        devices = [
            Device(f"device-{number}", _habits(chance, pace), simulation, environment.network, Weather())
            for number in range(chance.randint(2, 6))
        ]
        with wired(environment):
            faults = self._start(environment, devices, chance)
            findings = self._judged_run(environment, devices, faults, scenario.faults)
            for process in list(environment.processes):
                process.exit(0)
            faults.shut()
        environment.problems += [
            f"the thread {one.name} of {one.process.name} ended with {one.failure!r}"
            for one in simulation.failed_threads
        ]
        return MqttOutcome(
            findings + environment.problems,
            simulation.now_ms,
            simulation.digest,
            simulation.lines or (),
            _counts(environment, devices) + faults.counts(),
        )

    def _settings(self, **limits: int) -> ProxySettings:
        """Return the settings of the server, with other `limits`."""
        return proxy_settings(**limits)

    def _start(self, environment: Environment, devices: list[Device], chance: Random) -> Faults:
        """Start the server; return what lets things go wrong."""
        return ServerFaults(environment, devices, [ServerHost(environment, chance.randint(1, 3))])

    def _judged_run(
        self, environment: Environment, devices: list[Device], faults: Faults, planned: Sequence[Fault]
    ) -> list[str]:
        simulation, cluster = environment.simulation, environment.cluster
        for device in devices:
            device.start()
        for fault in planned:
            simulation.call_later(fault.at_ms, lambda fault=fault: faults.apply(fault))  # type: ignore[misc]
        _look_at_bounds(environment)
        simulation.run(self._until_ms)
        faults.heal()
        for device in devices:
            device.is_publishing = False
        simulation.note("healing")
        simulation.run(
            self._until_ms + _HEALING_MS, lambda: all(each.is_finished for each in devices) and _is_decided(cluster)
        )
        for device in devices:
            device.note_unheard_refusals()
        records = list(attested(cluster, attester.TOPIC, attester.SCHEMA))
        environment.attested = len(records)
        findings = judge(devices, stored_numbers(cluster, READINGS, service.READING)) + judge_attested(cluster, records)
        if not _is_decided(cluster):
            findings.append("a transaction is left open")
        return findings


def _habits(random: Random, pace: float) -> Habits:
    version = random.choice((4, 5))
    return Habits(
        version=version,
        qos_weights=random.choice(((1, 3, 6), (0, 0, 1), (0, 1, 0), (1, 1, 1))),
        window=random.choice((1, 3, 8)),
        interval_s=pace * random.choice((1.0, 5.0, 30.0)),
        burst=random.choice((1, 3, 8)),
        clean_rate=random.choice((0.0, 0.0, 0.3)),
        expiry_s=random.choice((0, 30, 86_400)),
        keep_alive_s=random.choice((0, 30)),
        patience_s=random.choice((2.0, 10.0, 40.0)),
        repeat_rate=random.choice((0.0, 0.5)),
        abandon_rate=random.choice((0.0, 0.5, 1.0)),
        mean_online_s=pace * random.choice((20.0, 300.0)),
        packet_ids=random.choice((8, 30)),
    )


def _is_decided(cluster: Cluster) -> bool:
    logs = (
        cluster.log_of((topic, number))
        for topic, count in cluster.partition_counts().items()
        for number in range(count)
    )
    return all(log.last_stable_offset == log.end for log in logs)


def _look_at_bounds(environment: Environment) -> None:
    """Check again and again that no process buffers more than its settings allow."""
    limits = environment.settings.limits
    for process in environment.processes:
        if process.server is None:
            continue
        gate, buffered = process.server.pipeline.gate, process.server.buffered_bytes
        if gate.records > limits.outstanding_records + _SPARE_RECORDS or buffered > limits.buffered_bytes:
            environment.problems.append(
                f"{process.name} has {gate.records} records in flight, buffers {buffered} bytes"
            )
    environment.simulation.call_later(_LOOK_MS, lambda: _look_at_bounds(environment))


def _counts(environment: Environment, devices: list[Device]) -> Counter[str]:
    messages = [message for device in devices for message in device.messages]
    return Counter(
        kills=environment.kills,
        attested=environment.attested,
        processes=environment.started,
        connections=sum(device.connections for device in devices),
        hops=sum(_hops(environment, device) for device in devices),
        takeovers=sum(device.takeovers for device in devices),
        repeats=sum(device.repeats for device in devices),
        messages=len(messages),
        acknowledged=sum(message.is_acknowledged for message in messages),
        refused=sum(message.was_refused for message in messages),
        resent=sum(message.sent > 1 for message in messages),
    )


def _hops(environment: Environment, device: Device) -> int:
    """Return how many connections of a device were accepted by another machine than the one before."""
    machines = [environment.by_process[host.process].machine for host in device.hosts]
    return sum(before != after for before, after in pairwise(machines))

"""What goes wrong where the server has several pods: beside Kafka and the connections, whole pods and their log."""

from __future__ import annotations

from collections import Counter
from random import Random

from isotherm.proofs.worlds.mqtt.device import Device
from isotherm.proofs.worlds.mqtt.faults import KINDS, Faults
from isotherm.proofs.worlds.mqtt.pods import CLAIMS, Deployment, PodHost
from isotherm.proofs.worlds.mqtt.programs import Environment, Program, ProxyProcess
from isotherm.proofs.worlds.scenario import Fault

_PODS, _PROCESSES = 4, 8
_MOST_PODS = 4
_PODS_KINDS: tuple[tuple[str, int, tuple[int, int]], ...] = (
    ("kill", _PROCESSES, (1, 10)),
    ("stop", _PROCESSES, (1, 10)),
    ("freeze", _PROCESSES, (100, 90_000)),
    ("cut_off", _PROCESSES, (1_000, 120_000)),
    ("kill_pod", _PODS, (200, 30_000)),
    ("kill_supervisor", _PODS, (1_000, 60_000)),
    ("restart_pod", _PODS, (200, 10_000)),
    ("replace_pod", _PODS, (200, 20_000)),
    ("freeze_pod", _PODS, (1_000, 90_000)),
    ("freeze_supervisor", _PODS, (1_000, 90_000)),
    ("cut_off_pod", _PODS, (1_000, 120_000)),
    ("zombie_at_step", 1, (5_000, 50_000)),
    ("join", 1, (1, 10)),
    ("leave", _PODS, (1, 10)),
    ("claims_loss", 1, (1_000, 60_000)),
    ("claims_slow", 1, (1_000, 60_000)),
    ("claims_move", 1, (1, 10)),
    ("compact_claims", 2, (1, 10)),
)
POD_KINDS = _PODS_KINDS + tuple(kind for kind in KINDS if kind[0] not in {one[0] for one in _PODS_KINDS})
"""Name, number of targets, and limits of the duration in milliseconds."""

_OF_KAFKA = frozenset(
    name for name, *_ in POD_KINDS if name.startswith(("broker_", "all_brokers_", "claims_", "coordinator_", "leader_"))
)
_COMPACTION_LAGS_MS = 300_000.0, 600_000.0
"""How old records are before the log of claims is compacted; the topic is made with ten minutes."""


class PodFaults(Faults):
    """The faults of several pods."""

    def __init__(self, environment: Environment, devices: list[Device], deployment: Deployment) -> None:
        super().__init__(environment, devices)
        self._deployment = deployment

    def shut(self) -> None:
        """End all pods."""
        self._deployment.shut()

    def counts(self) -> Counter[str]:
        """Return how many pods started, joined, left, were killed, and so on."""
        return self._deployment.counts

    def apply(self, fault: Fault) -> None:
        """Let the fault begin; who suffers from it has an excuse for a while."""
        if fault.kind in _OF_KAFKA:
            self._deployment.trouble(fault.for_ms)
        super().apply(fault)

    def _pod(self, fault: Fault) -> PodHost | None:
        """Return the pod that a fault befalls; it is counted."""
        running = self._deployment.running
        if not running:
            return None
        pod = running[fault.target % len(running)]
        self._strike(pod, fault)
        return pod

    def _strike(self, pod: PodHost, fault: Fault) -> None:
        self._deployment.trouble(fault.for_ms, pod)
        self._deployment.counts[fault.kind] += 1

    def _process(self, fault: Fault) -> ProxyProcess | None:
        process = super()._process(fault)
        pod = None if process is None else self._deployment.pod_of(process)
        if pod is not None:
            self._deployment.trouble(fault.for_ms, pod)
        return process

    # -- pods

    def _fault_kill_pod(self, fault: Fault, _chance: Random) -> None:
        """Kill all of a pod; it starts again, with its host name, after the time of the fault."""
        if pod := self._pod(fault):
            self._deployment.pause(pod, fault.for_ms)
            pod.kill()

    def _fault_kill_supervisor(self, fault: Fault, chance: Random) -> None:
        """Kill the supervisor of a pod. A frozen process does not notice: it becomes a zombie."""
        if pod := self._pod(fault):
            for child in pod.children:
                if child.returncode is None and chance.random() < 0.3:
                    child.process.freeze()
                    self._end_later(fault, child.thaw)
            pod.kill_supervisor()

    def _fault_restart_pod(self, fault: Fault, _chance: Random) -> None:
        """Let a pod drain and start again."""
        if pod := self._pod(fault):
            self._deployment.pause(pod, fault.for_ms)
            pod.terminate()

    def _fault_replace_pod(self, fault: Fault, _chance: Random) -> None:
        """Kill a pod for good; another one, with a host name of its own, comes after the time of the fault."""
        if pod := self._pod(fault):
            self._deployment.remove(pod)
            pod.kill()
            self._run.call_later(fault.for_ms, self._deployment.add)

    def _fault_freeze_pod(self, fault: Fault, _chance: Random) -> None:
        if pod := self._pod(fault):
            self._end_later(fault, pod.freeze())

    def _fault_freeze_supervisor(self, fault: Fault, _chance: Random) -> None:
        """Freeze the supervisor alone: its processes go on while the other pods believe that they are gone."""
        if pod := self._pod(fault):
            pod.process.freeze()
            self._end_later(fault, pod.thaw)

    def _fault_cut_off_pod(self, fault: Fault, _chance: Random) -> None:
        if pod := self._pod(fault):
            self._end_later(fault, pod.cut_off())

    def _freeze_and_replace(self, program: Program, fault: Fault, chance: Random) -> None:
        """Freeze a pod, or only one of its processes, in the middle of its work."""
        pod = self._deployment.pod_of(program)
        if pod is None:
            return
        self._strike(pod, fault)
        if chance.random() < 0.7:
            self._end_later(fault, pod.freeze())
        else:
            program.process.freeze()
            self._end_later(fault, program.thaw)

    def _fault_join(self, fault: Fault, _chance: Random) -> None:
        """Let another pod join, up to a bound."""
        if self._deployment.size < _MOST_PODS:
            self._deployment.counts[fault.kind] += 1
            self._deployment.add()

    def _fault_leave(self, fault: Fault, _chance: Random) -> None:
        """Let a pod drain and leave for good, unless it is the only one."""
        if self._deployment.size > 1 and (pod := self._pod(fault)):
            self._deployment.remove(pod)
            pod.terminate()

    # -- the log of claims

    def _claims_leader(self, fault: Fault) -> Fault:
        return fault._replace(target=self._environment.cluster.leader_of((CLAIMS, 0)))

    def _fault_claims_loss(self, fault: Fault, chance: Random) -> None:
        """Lose requests to the leader of the log, or their answers; some are executed later."""
        self._fault_broker_loss(self._claims_leader(fault), chance)

    def _fault_claims_slow(self, fault: Fault, chance: Random) -> None:
        self._fault_broker_slow(self._claims_leader(fault), chance)

    def _fault_claims_move(self, _fault: Fault, _chance: Random) -> None:
        self._environment.cluster.move_leader((CLAIMS, 0))

    def _fault_compact_claims(self, fault: Fault, _chance: Random) -> None:
        before_ms = self._run.epoch_ms() - _COMPACTION_LAGS_MS[fault.target]
        self._environment.cluster.log_of((CLAIMS, 0)).compact(before_ms)

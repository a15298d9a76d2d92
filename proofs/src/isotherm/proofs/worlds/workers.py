"""The workers of a world, and what can go wrong with them and with Kafka, whatever they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.cluster import NODES, Cluster
from isotherm.proofs.kafka.network import Network
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.simulation import Process, Simulation, Thread
from isotherm.proofs.worlds.scenario import Fault
from isotherm.servicekit.lifecycle import Stop

_MAIN = "main"
WORKERS = 3
KINDS = (
    ("kill", WORKERS, (1, 60_000)),
    ("stop", WORKERS, (1, 60_000)),
    ("freeze", WORKERS, (500, 90_000)),
    ("cut_off", WORKERS, (1_000, 90_000)),
    ("broker_away", NODES, (500, 90_000)),
    ("broker_frozen", NODES, (500, 90_000)),
    ("broker_loss", NODES, (1_000, 120_000)),
    ("coordinator_away", 1, (500, 60_000)),
)
COMMITS_FAIL = ("commits_fail", 1, (1_000, 60_000))
"""A kind for services that commit offsets."""


@dataclass
class Worker:
    """One of the service's places: a process runs in it, and another one after its end."""

    number: int
    starts: int = 0
    process: Process | None = None
    stop: Stop | None = None


W = TypeVar("W", bound=Worker)


class WorkerFaults(Generic[W]):
    """Base of a world's run: starts workers, and lets them and the cluster suffer."""

    workers: Sequence[W]
    expected_ends: tuple[type[BaseException], ...] = ()
    """How a process may end: its supervisor starts it again."""

    def __init__(self, seed: int, *, keeps_trace: bool) -> None:
        """Begin a simulation with a Kafka cluster; `seed` decides what happens in it by chance."""
        self.run = Simulation(seed, keeps_trace=keeps_trace)
        stand_ins.begin(self.run)
        self.cluster, self.network = Cluster(self.run), Network(self.run)

    def work(self, worker: W, process: Process) -> None:
        """Run the service in the current thread of `process`."""
        raise NotImplementedError

    def find(self, text: str) -> None:
        """Add a finding."""
        raise NotImplementedError

    def start(self, worker: W) -> None:
        """Start a process of the worker unless one runs."""
        if worker.process is not None and not worker.process.is_dead:
            return
        worker.starts += 1
        process = worker.process = Process(self.run, f"worker-{worker.number}.{worker.starts}")
        self.run.note("start", process.name)
        thread = process.start_thread(lambda: self.work(worker, process), _MAIN)
        self._watch(worker, process, thread)

    def find_failed_threads(self) -> None:
        """Add a finding for each thread that an exception has ended, where nobody else learns of it."""
        for one in self.run.failed_threads:
            if one.name != _MAIN:
                what = f"{type(one.failure).__name__}: {one.failure}"
                self.find(f"the thread {one.name} of {one.process.name} ended with {what}")

    def _watch(self, worker: W, process: Process, thread: Thread) -> None:
        """Start a task again that has ended by itself, as its supervisor does."""
        if process.is_dead:
            return
        if not thread.is_over:
            self.run.call_later(1_000.0, lambda: self._watch(worker, process, thread))
            return
        process.kill()
        failure = thread.failure
        self.run.note("ended", process.name, "" if failure is None else type(failure).__name__)
        if failure is not None and not isinstance(failure, self.expected_ends):
            self.find(f"a process ended with {type(failure).__name__}: {failure}")
        self.run.call_later(2_000.0, lambda: self.start(worker))

    def apply(self, fault: Fault) -> None:
        """Let a fault begin; it ends by itself."""
        self.run.note("fault", *fault)
        getattr(self, f"_fault_{fault.kind}")(fault)

    def later(self, fault: Fault, callback: Callable[[], None]) -> None:
        self.run.call_later(fault.for_ms, callback)

    def _fault_kill(self, fault: Fault) -> None:
        worker = self.workers[fault.target]
        if worker.process is not None:
            worker.process.kill()
        self.later(fault, lambda: self.start(worker))

    def _fault_stop(self, fault: Fault) -> None:
        worker = self.workers[fault.target]
        if worker.stop is not None:
            worker.stop.set()

    def _fault_freeze(self, fault: Fault) -> None:
        process = self.workers[fault.target].process
        if process is not None:
            process.freeze()
            self.later(fault, process.thaw)

    def _fault_cut_off(self, fault: Fault) -> None:
        process = self.workers[fault.target].process
        if process is not None:
            self.network.cut_off.add(process.name)
            self.later(fault, lambda: self.network.cut_off.discard(process.name))

    def _fault_broker_away(self, fault: Fault) -> None:
        weather = self.network.of(fault.target)
        weather.is_away = True
        self.later(fault, lambda: setattr(weather, "is_away", False))

    def _fault_broker_frozen(self, fault: Fault) -> None:
        weather = self.network.of(fault.target)
        weather.is_frozen = True
        self.later(fault, lambda: setattr(weather, "is_frozen", False))

    def _fault_broker_loss(self, fault: Fault) -> None:
        weather = self.network.of(fault.target)
        weather.loss = fault.share / 2
        self.later(fault, lambda: setattr(weather, "loss", 0.0))

    def _fault_coordinator_away(self, fault: Fault) -> None:
        groups = self.cluster.groups
        groups.away_code = KafkaError.NOT_COORDINATOR
        self.later(fault, lambda: setattr(groups, "away_code", None))

    def _fault_commits_fail(self, fault: Fault) -> None:
        groups = self.cluster.groups
        groups.commit_failures = fault.share
        self.later(fault, lambda: setattr(groups, "commit_failures", 0.0))

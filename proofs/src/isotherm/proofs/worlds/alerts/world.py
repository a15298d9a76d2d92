"""The world of the alerts service: replicas of the real service, devices, and faults from a seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial

from isotherm.alerts import service
from isotherm.alerts.rules.catalog import Rule
from isotherm.alerts.rules.kinds import RateRule, SilentRule, ThresholdRule, UnknownDeviceRule
from isotherm.alerts.settings import AlertsSettings
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kernel.event_loop import VirtualEventLoop
from isotherm.proofs.kernel.network import Network as Sockets
from isotherm.proofs.kernel.simulation import Process
from isotherm.proofs.worlds import workers
from isotherm.proofs.worlds.alerts import truth
from isotherm.proofs.worlds.alerts.lives import FORGET_MS, UNREPORTED_MS, Life, draw_life
from isotherm.proofs.worlds.alerts.load import DEVICES, INPUT, Device, Habits, draw_habits, register
from isotherm.proofs.worlds.alerts.metric_silences import MOST_GAPS
from isotherm.proofs.worlds.alerts.wiring import wired
from isotherm.proofs.worlds.scenario import Fault, Outcome, Scenario, draw_faults
from isotherm.proofs.worlds.workers import WORKERS, Worker, WorkerFaults
from isotherm.servicekit.exit_codes import Exit
from isotherm.servicekit.lifecycle import Stop

KINDS = (
    *workers.KINDS,
    workers.COMMITS_FAIL,
    ("kill_at_step", WORKERS, (1, 20_000)),
    ("freeze_at_step", WORKERS, (5_000, 90_000)),
    ("leader_moves", 8, (1, 2)),
    ("compact", 8, (1, 2)),
)
_CALM_MS = 20 * 60_000.0
"""So long after the last fault and the last reading, every alert must be there."""
_LOOK_MS, _REST_MS = 5_000.0, 60_000.0
_WRITTEN_MS = 10_000.0
"""So long after the last reading was measured, it is written, and every transaction has ended."""
_THREADS = 8
_STEPS = 60
"""A fault at a step happens within so many of them."""
_REGIONS = "north", "south"
"""Where a device is at first, and where when it has moved."""


@dataclass(frozen=True)
class Terms:
    """What a seed draws beside its faults."""

    partitions: int
    replicas: int
    session_timeout_ms: int
    input_ms: int
    habits: tuple[Habits, ...]
    lives: tuple[Life, ...]
    """Of the devices of `habits`, in the same order."""
    forgets: bool
    """Whether devices without a record are forgotten."""


def draw_terms(chance: random.Random) -> Terms:
    """Draw the terms of a seed."""
    partitions, replicas = chance.choice((1, 2, 4)), chance.choice((1, 2, 3))
    session_timeout_ms = chance.choice((6_000, 30_000))
    input_ms = chance.choice((60_000, 180_000, 180_000, 600_000, 1_800_000))
    habits = tuple(draw_habits(chance, number) for number in range(chance.randint(1, 5)))
    lives = tuple(draw_life(chance, is_known=one.is_known, metrics=one.metrics, input_ms=input_ms) for one in habits)
    return Terms(partitions, replicas, session_timeout_ms, input_ms, habits, lives, chance.random() < 0.5)


def settings_of(terms: Terms) -> AlertsSettings:
    """Return the settings of the service."""
    rules: list[Rule] = [
        RateRule(
            kind="rate", metric=one.metric, threshold=one.threshold, hysteresis=one.hysteresis, window_ms=one.window_ms
        )
        if one.kind == "rate"
        else ThresholdRule(
            kind=one.kind, metric=one.metric, threshold=one.threshold, hysteresis=one.hysteresis, for_ms=one.for_ms
        )
        for one in truth.RULES
    ]
    silence = SilentRule(
        kind="silent",
        intervals=MOST_GAPS,
        # Regular or not: else the truth would have to learn the rhythms.
        cautious_intervals=MOST_GAPS,
        min_ms=truth.SILENCE_MS,
        interval_ms=truth.SILENCE_MS // MOST_GAPS,
        unreported_ms=UNREPORTED_MS,
    )
    unknown = UnknownDeviceRule(kind="unknown-device", for_ms=truth.UNKNOWN_FOR_MS)
    return AlertsSettings(
        name=truth.GROUP,
        rules=[*rules, silence, unknown],
        reorder_ms=truth.REORDER_MS,
        session_timeout_ms=terms.session_timeout_ms,
        forget_after_ms=FORGET_MS if terms.forgets else 0,
    )


@dataclass
class _Replica(Worker):
    loop: VirtualEventLoop | None = None
    armed: Fault | None = None
    """What happens at one of its next steps."""
    steps: int = 0
    """How many steps are left until then."""


class _Run(WorkerFaults[_Replica]):
    def __init__(self, scenario: Scenario, keeps_trace: bool) -> None:
        chance = random.Random(scenario.seed)
        self.terms = terms = draw_terms(chance)
        super().__init__(chance.getrandbits(64), keeps_trace=keeps_trace)
        self.settings = settings = settings_of(terms)
        self.cluster.create_topic(INPUT, terms.partitions)
        self.cluster.create_topic(settings.changelog, terms.partitions, is_compacted=True)
        self.cluster.create_topic(truth.ALERTS, 2)
        self.cluster.create_topic(truth.LATEST, 2, is_compacted=True)
        self.cluster.create_topic(settings.dead_letter_topic)
        self.cluster.create_topic(DEVICES, is_compacted=True)
        self.cluster.create_topic(settings.rules_topic, is_compacted=True)
        self.partitions = [
            (topic, number) for topic in (INPUT, settings.changelog) for number in range(terms.partitions)
        ]
        self.workers = [_Replica(number) for number in range(WORKERS)]
        self._by_process: dict[Process, _Replica] = {}
        self._sockets = Sockets(self.run)
        self._seed, self._faults = scenario.seed, scenario.faults
        self.findings: list[str] = []

    def find(self, text: str) -> None:
        """Add a finding."""
        self.run.note("FINDING", text)
        self.findings.append(text)

    def to_the_end(self) -> Outcome:
        run, terms = self.run, self.terms
        run.note(terms)
        for habits, life in zip(terms.habits, terms.lives, strict=True):
            register(self.cluster, habits, run.epoch_ms(), _REGIONS[0])
            chance = random.Random(f"{self._seed} {habits.device_id}")
            until_ms = terms.input_ms if life.last_ms is None else life.last_ms
            Device(habits, life, run, self.cluster, until_ms, chance).start()
            for at_ms, region in ((life.moved_ms, _REGIONS[1]), (life.removed_ms, None)):
                if at_ms is not None:
                    run.call_later(at_ms, partial(self._register, habits, region))
        with wired(self._connection, self._loop, self._step):
            for replica in self.workers:
                run.call_later(run.random.uniform(0.0, 5_000.0), partial(self.start, replica))
            for fault in self._faults:
                run.call_later(fault.at_ms, partial(self.apply, fault))
            self._judge()
            for replica in self.workers:
                if replica.process is not None:
                    replica.process.kill()
        return Outcome(self.findings, run.now_ms, run.digest, run.lines or ())

    def _judge(self) -> None:
        """Run until everything is as it must be, and a while longer; what then differs are the findings."""
        run, terms = self.run, self.terms
        removed_ms = [one.removed_ms for one in terms.lives if one.removed_ms is not None]
        last_ms = max([terms.input_ms, *removed_ms, *(one.at_ms + one.for_ms for one in self._faults)], default=0.0)
        run.run(last_ms + _WRITTEN_MS)
        run.note("healed")
        truths = truth.expected(self.cluster, FORGET_MS if terms.forgets else 0)
        is_right = False
        while run.now_ms < last_ms + _CALM_MS and not self.findings:
            if not (truth.unread(self.cluster) or truth.findings(self.cluster, truths)):
                if is_right:
                    break
                is_right = True
                run.run(run.now_ms + _REST_MS)
            run.run(run.now_ms + _LOOK_MS)
        for text in [*truth.unread(self.cluster), *truth.findings(self.cluster, truths)]:
            self.find(text)
        self.find_failed_threads()

    def _register(self, habits: Habits, region: str | None) -> None:
        self.run.note("registered", habits.device_id, region)
        register(self.cluster, habits, self.run.epoch_ms(), region)

    # -- replicas

    def start(self, worker: _Replica) -> None:
        """Start a process of the replica unless one runs."""
        if worker.number >= self.terms.replicas or (worker.process is not None and not worker.process.is_dead):
            return
        worker.starts += 1
        process = worker.process = Process(self.run, f"alerts-{worker.number}.{worker.starts}")
        self._by_process[process] = worker
        self.run.note("start", process.name)
        loop = worker.loop = VirtualEventLoop(process, self._sockets, latency_ms=self._latency_ms, threads=_THREADS)
        process.at_kill.append(lambda: self._find_failures(process, loop))
        loop.call_soon(self._begin, worker, process, loop)

    def _begin(self, worker: _Replica, process: Process, loop: VirtualEventLoop) -> None:
        worker.stop = Stop()
        task = loop.create_task(service.Alerts(self.settings).run(worker.stop))
        task.add_done_callback(lambda done: self.run.call_later(0.0, lambda: self._ended(worker, process, done)))

    def _ended(self, worker: _Replica, process: Process, task: asyncio.Task[int]) -> None:
        if process.is_dead:
            return
        failure = None if task.cancelled() else task.exception()
        self.run.note("ended", process.name, "" if failure is None else type(failure).__name__)
        if failure is not None:
            self.find(f"a process ended with {type(failure).__name__}: {failure}")
        elif task.cancelled() or task.result() != Exit.OK:
            self.find("a process has given up")
        process.kill()
        self.run.call_later(2_000.0, lambda: self.start(worker))

    def _find_failures(self, process: Process, loop: VirtualEventLoop) -> None:
        """Add a finding for each exception that nobody has handled until the end of a process."""
        for text in loop.unheard_failures():
            self.find(f"{process.name}: {text}")

    def _latency_ms(self) -> float:
        chance = self.run.random
        return chance.uniform(0.0, 0.2) if chance.random() < 0.98 else chance.uniform(0.2, 60.0)

    def _process(self) -> Process:
        if self.run.current is not None:
            return self.run.current.process
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        return loop.process

    def _loop(self) -> VirtualEventLoop:
        loop = self._by_process[self._process()].loop
        assert loop is not None
        return loop

    def _connection(self, client_id: str) -> Connection:
        return Connection(self._process(), self.cluster, self.network, self.run, client_id)

    # -- faults

    def _step(self, process: str) -> None:
        """Count a step of the producers of a process; an armed fault happens at one of them."""
        for replica in self.workers:
            if replica.armed is None or replica.process is None or replica.process.name != process:
                continue
            replica.steps -= 1
            if replica.steps <= 0:
                fault, replica.armed = replica.armed, None
                self.run.call_later(self.run.random.choice((0.0, 0.0, 2.0)), partial(self._happen, fault, replica))

    def _happen(self, fault: Fault, replica: _Replica) -> None:
        self.run.note(fault.kind, replica.number)
        self.apply(fault._replace(kind=fault.kind.removesuffix("_at_step")))

    def _fault_kill_at_step(self, fault: Fault) -> None:
        replica = self.workers[fault.target]
        replica.armed, replica.steps = fault, 1 + int(_STEPS * fault.share)

    _fault_freeze_at_step = _fault_kill_at_step

    def _fault_leader_moves(self, fault: Fault) -> None:
        self.cluster.move_leader(self.partitions[fault.target % len(self.partitions)])

    def _fault_compact(self, fault: Fault) -> None:
        self.cluster.log_of((self.settings.changelog, fault.target % self.terms.partitions)).compact()


class AlertsWorld:
    """The world of the alerts service."""

    name = "alerts"

    def scenario(self, seed: int) -> Scenario:
        """Draw the faults of a seed."""
        chance = random.Random(seed)
        return Scenario(seed, draw_faults(chance, KINDS, draw_terms(chance).input_ms, 8))

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        """Run a scenario to its end."""
        return _Run(scenario, keeps_trace).to_the_end()

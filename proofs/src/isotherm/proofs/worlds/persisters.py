"""The world of the persisters: workers with the real task loop, over the model of Kafka and model stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from isotherm import kcql
from isotherm.connector.errors.dead_letters import DeadLetterQueue, DeadLettersUnavailableError
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.consuming.fetch_positions import NothingReadError
from isotherm.persisters.task.dead_letter_sender import DeadLetterSender
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.task_failure import TaskFailedError
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kafka.clients.thread_producer import Producer
from isotherm.proofs.kafka.groups import CommittedOffset
from isotherm.proofs.kafka.log import Batch, Payload
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.kernel.simulation import Process
from isotherm.proofs.worlds.persister_terms import KINDS, TOPIC, draw_terms
from isotherm.proofs.worlds.persister_truth import BAD, DEAD_LETTERS, FILTERED, GOOD, Truth
from isotherm.proofs.worlds.scenario import Fault, Outcome, Scenario, draw_faults
from isotherm.proofs.worlds.stores import POISON, Store, StoreSink, StoreWeather
from isotherm.proofs.worlds.workers import WORKERS, Worker, WorkerFaults
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

GROUP = "connect-sink"
_CALM_MS = 10 * 60_000.0
"""So long after the last fault and the last record, everything must be settled."""

_STATEMENT = kcql.parse("INSERT INTO target SELECT * FROM readings")[0]
_PLAN = compile_plan(_STATEMENT, None, "-")


def _project(record: Record) -> ProjectedRecord:
    if record.value == BAD:
        return ProjectedRecord(failed=FailedRecord(record, "VALUE_CONVERTER", "decode", ValueError("not readable")))
    if record.value == FILTERED:
        return ProjectedRecord(filtered="expired")
    return ProjectedRecord([_row(record)])


def _row(record: Record) -> Row:
    id, value = (record.key or b"").decode(), (record.value or b"").decode()
    return Row(record.offset, "target", id, {"v": value}, record.timestamp_ms, None, _PLAN)


def _project_good(records: Sequence[Record]) -> list[Row] | None:
    return None if any(one.value in (BAD, FILTERED) for one in records) else [_row(one) for one in records]


def _nothing() -> None:
    """Stands for what only costs time here: a collection of all garbage."""


class _Observer:
    """Is told everything and wants to know nothing: the truth reads what is committed."""

    def settled(self, *_: object) -> None: ...

    wrote = stored = retried = failed = committed = settled


@dataclass
class _TaskWorker(Worker):
    consumer: Consumer | None = None
    armed: Fault | None = None
    """What happens at its next request to the store."""


class _Run(WorkerFaults[_TaskWorker]):
    """One run of a scenario."""

    expected_ends = (TaskFailedError, DeadLettersUnavailableError, NothingReadError)

    def __init__(self, scenario: Scenario, keeps_trace: bool) -> None:
        chance = random.Random(scenario.seed)
        self.terms = terms = draw_terms(chance)
        super().__init__(chance.getrandbits(64), keeps_trace=keeps_trace)
        self.cluster.create_topic(TOPIC, terms.partitions)
        self.cluster.create_topic(DEAD_LETTERS)
        self.partitions = [(TOPIC, number) for number in range(terms.partitions)]
        self.store = Store(self.run)
        self.truth = Truth(
            self.cluster,
            self.store,
            TOPIC,
            is_append=terms.store == "append",
            dead_letters=terms.policy.dead_letters,
            note=self.run.note,
        )
        self.cluster.groups.on_commit = self._judge
        self.workers = [_TaskWorker(number) for number in range(WORKERS)]
        self._written = 0
        self._last_time_ms: dict[bytes, int] = {}
        self._transactions: list[tuple[int, Callable[[bool], None]]] = []
        self._faults = scenario.faults

    def find(self, text: str) -> None:
        """Add a finding."""
        self.truth.find(text)

    def to_the_end(self) -> Outcome:
        run, terms = self.run, self.terms
        run.note(terms)
        for worker in self.workers:
            run.call_later(run.random.uniform(0.0, 5_000.0), partial(self.start, worker))
        run.call_later(0.0, self._produce)
        for fault in self._faults:
            run.call_later(fault.at_ms, partial(self.apply, fault))
        faults_ms = max((one.at_ms + one.for_ms for one in self._faults), default=0)
        busy_ms = max(terms.input_ms, faults_ms) + 1_000
        run.run(busy_ms, lambda: bool(self.truth.findings))
        is_settled = self.truth.is_everything_committed
        while not self.truth.findings and not is_settled(self.partitions) and run.now_ms < busy_ms + _CALM_MS:
            run.run(run.now_ms + 5_000, lambda: bool(self.truth.findings))
        if not self.truth.findings:
            if is_settled(self.partitions):
                self.truth.judge_end(self.partitions)
            else:
                self.truth.find("not everything is settled after", _CALM_MS / 60_000, "calm minutes")
        self.find_failed_threads()
        outcome = Outcome(self.truth.findings, run.now_ms, run.digest, run.lines or ())
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()
        return outcome

    def _judge(self, group: str, offsets: Mapping[tuple[str, int], CommittedOffset]) -> None:
        if group == GROUP:
            for partition, committed in offsets.items():
                self.truth.committed(partition, committed, is_late=self.network.is_late)

    def _produce(self) -> None:
        """Write the next records of the input, alone or in a transaction, and come again."""
        run, terms = self.run, self.terms
        if run.now_ms > terms.input_ms:
            return
        run.call_later(run.random.expovariate(terms.records / terms.input_ms), self._produce)
        key = b"key-%d" % run.random.randrange(terms.keys)
        partition = TOPIC, hash_of(key) % terms.partitions
        payloads = [self._payload(key) for _ in range(run.random.choice((1, 1, 1, 3)))]
        if run.random.random() >= terms.transactions:
            self.cluster.produce(partition, Batch(payloads))
            return
        producer_id, epoch = self.cluster.transactions.init_producer_id(None)
        log = self.cluster.log_of(partition)
        log.append(Batch(payloads, producer_id, epoch, 0, True))
        is_commit = run.random.random() < 0.7
        run.call_later(
            run.random.choice((5.0, 300.0, 8_000.0)),
            lambda: log.append_marker(producer_id, epoch, is_commit=is_commit),
        )

    def _payload(self, key: bytes) -> Payload:
        run = self.run
        value = GOOD
        if run.random.random() < self.terms.failing:
            value = run.random.choice((BAD, FILTERED, POISON.encode()))
        # Event times of a key do not go back; some are equal.
        time_ms = max(self._last_time_ms.get(key, 0), int(run.epoch_ms() // 100 * 100))
        self._last_time_ms[key] = time_ms
        return Payload(key, value, (), time_ms)

    def work(self, worker: _TaskWorker, process: Process) -> None:
        run, terms = self.run, self.terms
        settings = terms.settings
        connection = Connection(process, self.cluster, self.network, run, f"sink-{worker.number}")
        consumer = worker.consumer = Consumer(
            connection,
            run,
            {
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "session.timeout.ms": settings.session_timeout_ms,
                "heartbeat.interval.ms": min(3_000, settings.session_timeout_ms // 3),
            },
        )
        worker.stop = Stop()
        Loop(
            settings,
            consumer=cast(Any, consumer),
            sink=StoreSink(run, self.store, terms.store, lambda: self._before_store_call(worker)),
            project=_project,
            try_project_batch=_project_good if terms.is_fast else lambda _records: None,
            policy=terms.policy,
            send_dead_letters=self._sender(connection, worker).send,
            health=Health(),
            observer=_Observer(),
        ).run(worker.stop)

    def _sender(self, connection: Connection, worker: _TaskWorker) -> DeadLetterSender:
        queue = None
        if self.terms.policy.dead_letters:
            producer = Producer(connection, self.run, {"delivery.timeout.ms": 30_000})
            queue = DeadLetterQueue(cast(Any, producer), DEAD_LETTERS)
        config = SimpleNamespace(name="sink", definition=SimpleNamespace(klass="model"))
        return DeadLetterSender(queue, cast(Any, config), worker.number, lambda _failed: None)

    def _fault_freeze_in_write(self, fault: Fault) -> None:
        self.workers[fault.target].armed = fault

    _fault_kill_in_write = _fault_freeze_in_write

    def _before_store_call(self, worker: _TaskWorker) -> None:
        armed, process = worker.armed, worker.process
        if armed is None or process is None or self.run.random.random() < armed.share:
            return
        worker.armed = None
        self.run.note(armed.kind, process.name)
        if armed.kind == "freeze_in_write":
            process.freeze()
            self.later(armed, process.thaw)
            self.run.wait(0.0)
        else:
            self.run.call_later(self.run.random.uniform(0.0, 30.0), partial(self._kill, worker, process, armed))

    def _kill(self, worker: _TaskWorker, process: Process, fault: Fault) -> None:
        process.kill()
        self.later(fault, lambda: self.start(worker))

    def _fault_stall(self, fault: Fault) -> None:
        consumer = self.workers[fault.target].consumer
        if consumer is not None:
            consumer.fetcher.stalled.update(consumer.fetcher.positions)

    def _fault_store_down(self, fault: Fault) -> None:
        self.store.weather.is_down = True
        self.later(fault, lambda: setattr(self.store.weather, "is_down", False))

    def _fault_store_frozen(self, fault: Fault) -> None:
        self.store.weather.is_frozen = True
        self.later(fault, self.store.thaw)

    def _fault_store_loss(self, fault: Fault) -> None:
        self.store.weather.loss = fault.share
        self.later(fault, lambda: setattr(self.store.weather, "loss", 0.0))

    def _fault_store_overload(self, fault: Fault) -> None:
        self.store.weather.overload = fault.share
        self.later(fault, lambda: setattr(self.store.weather, "overload", 0.0))

    def _fault_store_slow(self, fault: Fault) -> None:
        self.store.weather.latency_ms = 100.0, 12_000.0 * fault.share
        self.later(fault, lambda: setattr(self.store.weather, "latency_ms", StoreWeather().latency_ms))

    def _fault_leader_moves(self, fault: Fault) -> None:
        self.cluster.move_leader(self.partitions[fault.target % len(self.partitions)])

    def _fault_retention(self, fault: Fault) -> None:
        partition = self.partitions[fault.target % len(self.partitions)]
        log = self.cluster.log_of(partition)
        self.truth.delete_before(partition, log.start + int((log.end - log.start) * fault.share * 2))


def hash_of(key: bytes) -> int:
    """Return a number that depends on the key alone."""
    return sum(key)


class PersistersWorld:
    """The world of the persisters."""

    name = "persisters"

    def scenario(self, seed: int) -> Scenario:
        """Draw the faults of a seed."""
        chance = random.Random(seed)
        terms = draw_terms(chance)
        most = 30 if terms.input_ms > 1_000_000 else 8
        return Scenario(seed, draw_faults(chance, KINDS, terms.input_ms, most))

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        """Run a scenario to its end."""
        loop = "isotherm.persisters.task.loop"
        wait_s = draw_terms(random.Random(scenario.seed)).longest_wait_s
        with simulated_modules("isotherm.", {f"{loop}:collect_rarely": _nothing, f"{loop}:_LONGEST_WAIT_S": wait_s}):
            return _Run(scenario, keeps_trace).to_the_end()

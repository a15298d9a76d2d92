"""The world of the connector workers: real distributed workers over the model of Kafka, with model task processes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.distributed.controller import RestartPolicy, TaskPlan
from isotherm.connector.distributed.task_launch import TaskLaunch
from isotherm.connector.distributed.worker import TASKS, DistributedWorker, WorkerSettings
from isotherm.connector.state.desired_state import PARTITIONS
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kafka.clients.thread_producer import Producer
from isotherm.proofs.kafka.log import Batch, Payload
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.kernel.simulation import Process
from isotherm.proofs.worlds import workers
from isotherm.proofs.worlds.connector_truth import CONNECTORS, STATUS, ConnectorTruth, RunningTask
from isotherm.proofs.worlds.scenario import Fault, Outcome, Scenario, draw_faults
from isotherm.proofs.worlds.workers import WORKERS, Worker, WorkerFaults
from isotherm.servicekit.lifecycle import Stop

GROUP = "sinks"
_CALM_MS = 10 * 60_000.0
_STOP_TIMEOUT_MS = 10_000
_EXCUSE_MS = 15_000.0
"""How long after a fault, a session and the time to stop a task a worker may still run what others run."""
_KINDS = (*workers.KINDS, ("task_dies", 8, (1, 2)), ("tasks_hang", 1, (1_000, 60_000)))
_CHANGES = ("create", "create", "config", "PAUSED", "STOPPED", "STARTED", "restart", "delete", "broken")


class TaskModel:
    """Stands for `TaskProcess`: a process that runs until it is told to end, dies, or its worker has ended."""

    http_port = None

    def __init__(self, _command: Sequence[str], launch: TaskLaunch, *, stop_timeout_ms: int) -> None:
        run = self._run = stand_ins.simulation()
        worker = run.current.process if run.current is not None else None
        assert worker is not None
        self._world: _Run = cast(Any, run).world
        self._worker, self._stop_timeout_ms = worker, stop_timeout_ms
        self._kill_at_ms: float | None = None
        self._failure: str | None = None
        name, config = launch.config.name, launch.config.config
        self.task = RunningTask(name, launch.task, worker.name, config, launch.generation)
        run.note("task starts", name, launch.task, worker.name, launch.generation)
        self._world.truth.started(self.task)
        self._world.tasks.append(self)
        self._look_for_worker()

    def end(self) -> None:
        """Ask it to end."""
        self._kill_at_ms = self._run.now_ms + self._stop_timeout_ms
        if not self._world.do_tasks_hang:
            self._run.call_later(self._run.random.uniform(5.0, 3_000.0), lambda: self.die("ended"))

    def failure(self) -> str | None:
        """Return how it ended; None while it runs."""
        if self._failure is None and self._kill_at_ms is not None and self._run.now_ms >= self._kill_at_ms:
            self._run.call_later(1.0, lambda: self.die("killed"))
        return self._failure

    def die(self, why: str) -> None:
        """End, and leave the reason."""
        if self._failure is None:
            self._failure = why
            self._run.note("task ends", self.task.connector, self.task.task, self.task.worker, why)
            self._world.truth.ended(self.task)
            self._world.tasks.remove(self)

    def _look_for_worker(self) -> None:
        """End some time after the worker, which the process sees by its standard input."""
        if self._worker.is_dead:
            self._run.call_later(self._run.random.uniform(0.0, 3_000.0), lambda: self.die("its worker ended"))
        elif self._failure is None:
            self._run.call_later(250.0, self._look_for_worker)


class _Classes:
    """One connector class, which refuses configurations with the key `broken`."""

    definitions: Sequence[Any] = ()
    version = "0"

    def check(self, config: ConnectorConfig) -> TaskPlan:
        if "broken" in config.config:
            raise ConfigError(["broken: this key is not allowed"])
        return TaskPlan(int(config.config["tasks.max"]), RestartPolicy(-1, 500.0, 5_000.0))


class _Registry:
    """Stands for the schema registry: records are JSON."""

    def __init__(self, _settings: object) -> None: ...

    def encoder(self, _topic: str, _schema: object) -> Callable[[Mapping[str, Any]], bytes]:
        return lambda record: json.dumps(record).encode()


class _Monitoring:
    """Stands for the HTTP server of a worker."""

    port = 0

    def __init__(self, *_: object, with_exemplars: bool = False) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


def _decoder(_registry: object, _reader: object) -> Callable[[bytes], Any]:
    return lambda value: SimpleNamespace(record=json.loads(value))


def _consumer(_settings: object, client_id: str, group: str, **overrides: object) -> Consumer:
    run = stand_ins.simulation()
    config = {"group.id": group, "auto.offset.reset": "earliest"}
    config |= {key.replace("_", "."): str(value) for key, value in overrides.items() if value is not True}
    config |= {"enable.partition.eof": "1"} if overrides.get("enable_partition_eof") else {}
    return Consumer(_connection(client_id), run, config)


def _producer(_settings: object, client_id: str, **overrides: object) -> Producer:
    config = {"delivery.timeout.ms": 30_000} | {key.replace("_", "."): value for key, value in overrides.items()}
    return Producer(_connection(client_id), stand_ins.simulation(), config)


def _connection(client_id: str) -> Connection:
    run = stand_ins.simulation()
    assert run.current is not None
    world: _Run = cast(Any, run).world
    return Connection(run.current.process, world.cluster, world.network, run, client_id)


def _process_name() -> str:
    current = stand_ins.simulation().current
    return "" if current is None else current.process.name


_CLIENTS = SimpleNamespace(consumer=_consumer, producer=_producer)
_WORKER, _TOPIC = "isotherm.connector.distributed.worker", "isotherm.connector.state.connector_topic"
_REPLACED = {
    f"{_WORKER}:TaskProcess": TaskModel,
    f"{_WORKER}:MonitoringServer": _Monitoring,
    f"{_WORKER}:SchemaRegistry": _Registry,
    f"{_WORKER}:clients": _CLIENTS,
    f"{_WORKER}:this_process": _process_name,
    f"{_WORKER}:plugin_messages": lambda *_: (),
    f"{_TOPIC}:clients": _CLIENTS,
    f"{_TOPIC}:SchemaRegistry": _Registry,
    f"{_TOPIC}:Decoder": _decoder,
}


class _Run(WorkerFaults[Worker]):
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, keeps_trace: bool) -> None:
        chance = random.Random(scenario.seed)
        self.input_ms = draw_input_ms(chance)
        super().__init__(chance.getrandbits(64), keeps_trace=keeps_trace)
        cast(Any, self.run).world = self
        self.cluster.create_topic(TASKS, PARTITIONS)
        self.cluster.create_topic(CONNECTORS, is_compacted=True)
        self.cluster.create_topic(STATUS, 3, is_compacted=True)
        self.truth = ConnectorTruth(self.cluster, self.run.note, lambda: self.run.now_ms)
        self.workers = [Worker(number) for number in range(WORKERS)]
        self.tasks: list[TaskModel] = []
        self.do_tasks_hang = False
        self._session_ms = chance.choice((6_000, 10_000, 30_000))
        self._desired: dict[str, dict[str, Any]] = {}
        self._faults = scenario.faults

    def find(self, text: str) -> None:
        """Add a finding."""
        self.truth.find(text)

    def work(self, worker: Worker, process: Process) -> None:
        """Run a distributed worker in the current thread."""
        worker.stop = Stop()
        settings = WorkerSettings(
            "persisters",
            GROUP,
            ["task"],
            cast(Any, None),
            cast(Any, None),
            cast(Any, None),
            self._session_ms,
            _STOP_TIMEOUT_MS,
        )
        DistributedWorker(settings, cast(Any, _Classes()), worker.stop).run()

    def to_the_end(self) -> Outcome:
        """Run until what runs is what is desired, or too long."""
        run = self.run
        for worker in self.workers:
            run.call_later(run.random.uniform(0.0, 5_000.0), partial(self.start, worker))
        run.call_later(0.0, self._change)
        for fault in self._faults:
            run.call_later(fault.at_ms, partial(self._suffer, fault))
        faults_ms = max((one.at_ms + one.for_ms for one in self._faults), default=0)
        busy_ms = max(self.input_ms, faults_ms) + 1_000
        run.run(busy_ms, lambda: bool(self.truth.findings))
        calm_ms = 0.0
        while not self.truth.findings and (differences := self._differences()):
            calm_ms += 5_000
            if calm_ms > _CALM_MS:
                self.find(f"after {_CALM_MS / 60_000:.0f} calm minutes {differences[0]}")
            run.run(run.now_ms + 5_000, lambda: bool(self.truth.findings))
        self.find_failed_threads()
        outcome = Outcome(self.truth.findings, run.now_ms, run.digest, run.lines or ())
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()
        return outcome

    def _differences(self) -> list[str]:
        live = {one.process.name for one in self.workers if one.process is not None and not one.process.is_dead}
        return self.truth.differences(live)

    def _suffer(self, fault: Fault) -> None:
        """Let a fault begin; who may be too late to end its tasks is excused."""
        if fault.kind in ("kill", "freeze", "cut_off"):
            suffering: Sequence[Worker] = [self.workers[fault.target]]
        else:
            suffering = self.workers if fault.kind.startswith(("broker", "coordinator")) else []
        excused_ms = fault.for_ms + self._session_ms + _STOP_TIMEOUT_MS + _EXCUSE_MS
        names = [one.process.name for one in suffering if one.process is not None]
        self.truth.excuse(names, self.run.now_ms + excused_ms)
        if names:
            self.run.call_later(excused_ms, self.truth.judge_running)
        self.apply(fault)

    def _fault_task_dies(self, fault: Fault) -> None:
        if self.tasks:
            self.tasks[fault.target % len(self.tasks)].die("died")

    def _fault_tasks_hang(self, fault: Fault) -> None:
        self.do_tasks_hang = True
        self.later(fault, lambda: setattr(self, "do_tasks_hang", False))

    def _change(self) -> None:
        """Change a connector as the console does, and come again."""
        run = self.run
        if run.now_ms > self.input_ms:
            return
        run.call_later(run.random.expovariate(12 / self.input_ms), self._change)
        name = run.random.choice(("alpha", "beta", "gamma"))
        change = run.random.choice(_CHANGES)
        record = self._desired.get(name)
        run.note("change", name, change)
        if change == "delete":
            if self._desired.pop(name, None) is not None:
                self._write(name, None)
            return
        if record is None or change in ("create", "config", "broken"):
            config = {"connector.class": "model", "tasks.max": str(run.random.randrange(1, 5))}
            config |= {"version": str(round(run.now_ms))} | ({"broken": "1"} if change == "broken" else {})
            before = record or {"target_state": "STARTED", "restart_count": 0}
            record = {**before, "config": config}
        elif change == "restart":
            record = {**record, "restart_count": record["restart_count"] + 1}
        else:
            record = {**record, "target_state": change}
        self._desired[name] = record
        self._write(name, record)

    def _write(self, name: str, record: Mapping[str, Any] | None) -> None:
        rest = {"connector_class": "model", "mode": "distributed", "worker_group": GROUP, "task_restarts": {}}
        value = None if record is None else json.dumps({**rest, **record}).encode()
        self.cluster.produce((CONNECTORS, 0), Batch([Payload(name.encode(), value)]))


def draw_input_ms(chance: random.Random) -> int:
    """Draw how long connectors are changed."""
    return chance.choice((60_000, 120_000, 600_000, 3_600_000))


class ConnectorsWorld:
    """The world of the connector workers."""

    name = "connectors"

    def scenario(self, seed: int) -> Scenario:
        """Draw the faults of a seed."""
        chance = random.Random(seed)
        return Scenario(seed, draw_faults(chance, _KINDS, draw_input_ms(chance), 8))

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        """Run a scenario to its end."""
        with simulated_modules("isotherm.", _REPLACED):
            return _Run(scenario, keeps_trace).to_the_end()

"""Which tasks a distributed worker runs: a state machine over what is wanted, assigned and running. Pure.

It compares, it does not remember orders: whatever came in between, `actions` leads from what runs to what should run. A
restart is another Spec, so a task that runs with an older one is ended and started again, and one that failed with an
older one is tried anew.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.validation import Validated
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF, DesiredState, partition_of
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetState
from isotherm.servicekit.backoff import Backoff


class TaskId(NamedTuple):
    """A task of a connector, or with CONNECTOR_ITSELF the connector."""

    connector: str
    task: int


@dataclass(frozen=True)
class RestartPolicy:
    """What happens to a task that failed by itself."""

    attempts: int = 0
    """Restarts in a row; -1 is without end. A task that ran longer than `backoff_max_ms` begins to count anew."""
    backoff_ms: float = 1_000.0
    backoff_max_ms: float = 60_000.0


@dataclass(frozen=True)
class TaskPlan:
    """What a worker needs to know of a valid configuration."""

    tasks: int
    restarts: RestartPolicy = RestartPolicy()


def task_plan(config: Validated, tasks: int) -> TaskPlan:
    """The plan of a valid configuration that has so many tasks, with the restarts that it asks for."""
    return TaskPlan(
        tasks,
        RestartPolicy(
            config.integer("tasks.restart.max"),
            config.integer("tasks.restart.backoff.ms"),
            config.integer("tasks.restart.backoff.max.ms"),
        ),
    )


class StartTask(NamedTuple):
    """Start a process for the task; `Controller.ended` follows some time."""

    id: TaskId
    config: ConnectorConfig
    generation: int = 0
    """Of the configuration: the offset of the record that it was read from."""


class StopTask(NamedTuple):
    """Ask the task's process to end, and see to it; `Controller.ended` follows."""

    id: TaskId


class DeleteStatus(NamedTuple):
    """The status of this task is not this worker's to tell any more."""

    id: TaskId


Action = StartTask | StopTask | DeleteStatus


class Report(NamedTuple):
    """What the worker says of something that has no process to say it."""

    id: TaskId
    state: State
    trace: str | None = None
    counts: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Spec:
    """What a process runs with."""

    config: ConnectorConfig
    restarts: int


@dataclass(frozen=True)
class _Connector:
    wanted: DesiredState
    config: ConnectorConfig | None = None
    plan: TaskPlan = TaskPlan(0)
    trace: str | None = None
    """Why it cannot run."""

    @property
    def state(self) -> State:
        if self.trace is not None:
            return State.FAILED
        target = self.wanted.target.state
        return State.RUNNING if target is TargetState.STARTED else State(target.value)


class _Phase(Enum):
    IDLE = auto()
    RUNNING = auto()
    ENDING = auto()


@dataclass
class _Task:
    backoff: Backoff
    phase: _Phase = _Phase.IDLE
    spec: _Spec | None = None
    """Of the process; of the last one, when there is none."""
    started_ms: float = 0.0
    failure: str | None = None
    retry_at_ms: float | None = None

    def may_start(self, now_ms: float) -> bool:
        return self.failure is None or (self.retry_at_ms is not None and now_ms >= self.retry_at_ms)

    def failed(self, failure: str, policy: RestartPolicy, now_ms: float) -> None:
        if now_ms - self.started_ms > policy.backoff_max_ms:
            self.backoff.reset()
        self.failure, self.retry_at_ms = failure, None
        if policy.attempts < 0 or self.backoff.failures < policy.attempts:
            self.retry_at_ms = now_ms + self.backoff.next_ms()


class Controller:
    """One worker's view; every time is in ms of one monotonic clock."""

    def __init__(
        self,
        group: str,
        check: Callable[[ConnectorConfig], TaskPlan],
        new_backoff: Callable[[RestartPolicy], Backoff] | None = None,
        mask: Callable[[ConnectorConfig, str], str] = lambda _config, text: text,
    ) -> None:
        """`check` says how many tasks a configuration has; whatever it raises is the trace of a FAILED connector.

        `mask` keeps the secrets of a configuration out of it.
        """
        self._group = group
        self._check = check
        self._new_backoff = new_backoff or _backoff
        self._mask = mask
        self._connectors: dict[str, _Connector] = {}
        self._tasks: dict[TaskId, _Task] = {}
        self._owned: set[int] = set()
        self._told: set[TaskId] = set()

    def configured(self, name: str, wanted: DesiredState | None) -> None:
        """The newest record of a connector; None when it was deleted."""
        if wanted is None or not wanted.is_distributed or wanted.worker_group != self._group:
            self._connectors.pop(name, None)
            return
        try:
            config = wanted.configuration()
        except ConfigError as error:
            self._connectors[name] = _Connector(wanted, trace=str(error))
            return
        try:
            self._connectors[name] = _Connector(wanted, config, self._check(config))
        except Exception as error:
            # Also a fault in the class: it must not end the worker of all others.
            is_known = isinstance(error, ConfigError)
            trace = str(error) if is_known else "".join(traceback.format_exception(error))
            self._connectors[name] = _Connector(wanted, trace=self._mask(config, trace))

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions of the tasks' topic are this worker's now, beside those that it has."""
        self._owned.update(partitions)

    def revoked(self, partitions: Iterable[int]) -> None:
        """Partitions go to another worker as soon as `is_clear` of them."""
        self._owned.difference_update(partitions)

    def is_clear(self, partitions: Iterable[int]) -> bool:
        """Whether no process runs a task of these partitions."""
        asked = set(partitions)
        return not any(task.phase is not _Phase.IDLE and partition_of(*id) in asked for id, task in self._tasks.items())

    def ended(self, id: TaskId, failure: str, now_ms: float) -> None:
        """The task's process is over; `failure` tells how, and counts unless it was asked to end."""
        task = self._tasks[id]
        was_asked, task.phase = task.phase is _Phase.ENDING, _Phase.IDLE
        connector = self._connectors.get(id.connector)
        if not was_asked and connector is not None:
            task.failed(failure, connector.plan.restarts, now_ms)

    def actions(self, now_ms: float) -> list[Action]:
        """What is to be done now; each is taken as done from here on."""
        actions: list[Action] = []
        wanted = self._wanted()
        for id, task in list(self._tasks.items()):
            spec = wanted.get(id)
            if task.phase is _Phase.RUNNING and spec != task.spec:
                task.phase = _Phase.ENDING
                actions.append(StopTask(id))
            elif task.phase is _Phase.IDLE and spec != task.spec:
                # Nothing of what it was counts for what it is to be.
                del self._tasks[id]
        for id, spec in wanted.items():
            task = self._tasks.get(id) or self._new_task(id)
            if task.phase is _Phase.IDLE and task.may_start(now_ms):
                task.phase, task.spec, task.started_ms = _Phase.RUNNING, spec, now_ms
                task.failure = task.retry_at_ms = None
                actions.append(StartTask(id, spec.config, self._connectors[id.connector].wanted.generation))
        mine = {*self._mine(), *(id for id, task in self._tasks.items() if task.phase is not _Phase.IDLE)}
        actions += [DeleteStatus(id) for id in sorted(self._told - mine)]
        self._told = mine
        return actions

    def reports(self) -> Iterator[Report]:
        """Everything that this worker has to tell; tasks that run tell it themselves."""
        for id in self._mine():
            connector, task = self._connectors[id.connector], self._tasks.get(id)
            if id.task == CONNECTOR_ITSELF:
                yield Report(id, connector.state, connector.trace, {"tasks": connector.plan.tasks})
            elif task is not None and task.phase is not _Phase.IDLE:
                continue
            elif connector.state is State.PAUSED:
                yield Report(id, State.PAUSED)
            elif task is not None and task.failure is not None:
                state = State.FAILED if task.retry_at_ms is None else State.RESTARTING
                yield Report(id, state, task.failure)

    def counts(self) -> dict[str, int]:
        """How many connectors this worker answers for, and its tasks by state."""
        told = list(self.reports())
        counts = {
            state.value.lower(): sum(report.state is state for report in told if report.id.task != CONNECTOR_ITSELF)
            for state in (State.FAILED, State.RESTARTING, State.PAUSED)
        }
        return {
            "connectors": sum(report.id.task == CONNECTOR_ITSELF for report in told),
            "tasks": sum(id.task != CONNECTOR_ITSELF for id in self._mine()),
            "running": sum(task.phase is _Phase.RUNNING for task in self._tasks.values()),
            **counts,
        }

    def _new_task(self, id: TaskId) -> _Task:
        task = self._tasks[id] = _Task(self._new_backoff(self._connectors[id.connector].plan.restarts))
        return task

    def _wanted(self) -> dict[TaskId, _Spec]:
        """The tasks that should run here."""
        return {
            id: _Spec(connector.config, connector.wanted.target.restarts_of(id.task))
            for id in self._mine()
            if id.task != CONNECTOR_ITSELF
            and (connector := self._connectors[id.connector]).config is not None
            and connector.state is State.RUNNING
        }

    def _mine(self) -> Iterator[TaskId]:
        """All that this worker answers for."""
        for name, connector in self._connectors.items():
            tasks = 0 if connector.state is State.STOPPED else connector.plan.tasks
            for task in range(CONNECTOR_ITSELF, tasks):
                if partition_of(name, task) in self._owned:
                    yield TaskId(name, task)


def _backoff(policy: RestartPolicy) -> Backoff:
    return Backoff(policy.backoff_ms, policy.backoff_max_ms, floor_ms=policy.backoff_ms / 2)

"""Decides which tasks a distributed worker runs, from desired state, assigned partitions and running tasks. Pure.

It reconciles and remembers no orders: `actions` always leads from the running tasks to the desired ones, whatever
happened in between. A restart changes a task's spec, so a task that runs with an older spec is stopped and started
again, and one that failed with an older spec is tried again.
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
    """A task of a connector; with CONNECTOR_ITSELF the connector."""

    connector: str
    task: int


@dataclass(frozen=True)
class RestartPolicy:
    """How a failed task is restarted."""

    attempts: int = 0
    """Restarts in a row; -1: without limit. A task that ran longer than `backoff_max_ms` starts counting from zero."""
    backoff_ms: float = 1_000.0
    backoff_max_ms: float = 60_000.0


@dataclass(frozen=True)
class TaskPlan:
    """The part of a valid configuration that a worker needs."""

    tasks: int
    restarts: RestartPolicy = RestartPolicy()


def task_plan(config: Validated, tasks: int) -> TaskPlan:
    """The plan of a valid configuration with `tasks` tasks and the restarts that its keys ask for."""
    return TaskPlan(
        tasks,
        RestartPolicy(
            config.integer("tasks.restart.max"),
            config.integer("tasks.restart.backoff.ms"),
            config.integer("tasks.restart.backoff.max.ms"),
        ),
    )


class StartTask(NamedTuple):
    """Start a process for the task; the worker calls `Controller.ended` when it ends."""

    id: TaskId
    config: ConnectorConfig
    generation: int = 0
    """The configuration's generation: the offset of its record."""


class StopTask(NamedTuple):
    """Stop the task's process; the worker calls `Controller.ended` when it has ended."""

    id: TaskId


class DeleteStatus(NamedTuple):
    """Delete the task's status: another worker reports it from now on."""

    id: TaskId


Action = StartTask | StopTask | DeleteStatus


class Report(NamedTuple):
    """The status of a connector, or of a task without a process, that the worker reports itself."""

    id: TaskId
    state: State
    trace: str | None = None
    counts: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Spec:
    """What a task's process is started with; a change of it means a restart."""

    config: ConnectorConfig
    restarts: int


@dataclass(frozen=True)
class _Connector:
    desired: DesiredState
    config: ConnectorConfig | None = None
    plan: TaskPlan = TaskPlan(0)
    trace: str | None = None
    """Why the connector cannot run."""

    @property
    def state(self) -> State:
        if self.trace is not None:
            return State.FAILED
        target = self.desired.target.state
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
    """The spec of the process, or of the last one when none runs."""
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
    """The tasks of one worker; all times are milliseconds of one monotonic clock."""

    def __init__(
        self,
        group: str,
        check: Callable[[ConnectorConfig], TaskPlan],
        new_backoff: Callable[[RestartPolicy], Backoff] | None = None,
        mask: Callable[[ConnectorConfig, str], str] = lambda _config, text: text,
    ) -> None:
        """`check` returns the plan of a configuration; its exception becomes the trace of a FAILED connector.

        `mask` removes the configuration's secrets from this trace.
        """
        self._group = group
        self._check = check
        self._new_backoff = new_backoff or _backoff
        self._mask = mask
        self._connectors: dict[str, _Connector] = {}
        self._tasks: dict[TaskId, _Task] = {}
        self._owned: set[int] = set()
        self._reported: set[TaskId] = set()

    def configured(self, name: str, desired: DesiredState | None) -> None:
        """Take over the newest record of a connector; None when the connector was deleted."""
        if desired is None or not desired.is_distributed or desired.worker_group != self._group:
            self._connectors.pop(name, None)
            return
        try:
            config = desired.configuration()
        except ConfigError as error:
            self._connectors[name] = _Connector(desired, trace=str(error))
            return
        try:
            self._connectors[name] = _Connector(desired, config, self._check(config))
        except Exception as error:
            # Even a bug in one connector class must not end the worker of all others.
            is_known = isinstance(error, ConfigError)
            trace = str(error) if is_known else "".join(traceback.format_exception(error))
            self._connectors[name] = _Connector(desired, trace=self._mask(config, trace))

    def assigned(self, partitions: Iterable[int]) -> None:
        """Add partitions of the tasks' topic to those that this worker owns."""
        self._owned.update(partitions)

    def revoked(self, partitions: Iterable[int]) -> None:
        """Take partitions away; another worker may have them as soon as `is_clear` of them."""
        self._owned.difference_update(partitions)

    def is_clear(self, partitions: Iterable[int]) -> bool:
        """Whether no process runs a task of these partitions."""
        numbers = set(partitions)
        return not any(
            task.phase is not _Phase.IDLE and partition_of(*id) in numbers for id, task in self._tasks.items()
        )

    def ended(self, id: TaskId, failure: str, now_ms: float) -> None:
        """Note that the task's process ended; `failure` says how, and counts unless the process was being stopped."""
        task = self._tasks[id]
        was_asked, task.phase = task.phase is _Phase.ENDING, _Phase.IDLE
        connector = self._connectors.get(id.connector)
        if not was_asked and connector is not None:
            task.failed(failure, connector.plan.restarts, now_ms)

    def actions(self, now_ms: float, *, may_start: bool = True) -> list[Action]:
        """The actions to take now; the controller regards each as taken. Without `may_start` no task starts."""
        actions: list[Action] = []
        desired = self._desired_tasks()
        for id, task in list(self._tasks.items()):
            spec = desired.get(id)
            if task.phase is _Phase.RUNNING and spec != task.spec:
                task.phase = _Phase.ENDING
                actions.append(StopTask(id))
            elif task.phase is _Phase.IDLE and spec != task.spec:
                # Failures and waits of an older spec do not count for the new one.
                del self._tasks[id]
        for id, spec in desired.items():
            task = self._tasks.get(id) or self._new_task(id)
            if may_start and task.phase is _Phase.IDLE and task.may_start(now_ms):
                task.phase, task.spec, task.started_ms = _Phase.RUNNING, spec, now_ms
                task.failure = task.retry_at_ms = None
                actions.append(StartTask(id, spec.config, self._connectors[id.connector].desired.generation))
        reported = {*self._owned_ids(), *(id for id, task in self._tasks.items() if task.phase is not _Phase.IDLE)}
        actions += [DeleteStatus(id) for id in sorted(self._reported - reported)]
        self._reported = reported
        return actions

    def reports(self) -> Iterator[Report]:
        """The statuses that this worker reports; running tasks report their own."""
        for id in self._owned_ids():
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
        """The number of connectors that this worker reports, and of its tasks by state."""
        reports = list(self.reports())
        counts = {
            state.value.lower(): sum(report.state is state for report in reports if report.id.task != CONNECTOR_ITSELF)
            for state in (State.FAILED, State.RESTARTING, State.PAUSED)
        }
        return {
            "connectors": sum(report.id.task == CONNECTOR_ITSELF for report in reports),
            "tasks": sum(id.task != CONNECTOR_ITSELF for id in self._owned_ids()),
            "running": sum(task.phase is _Phase.RUNNING for task in self._tasks.values()),
            **counts,
        }

    def _new_task(self, id: TaskId) -> _Task:
        task = self._tasks[id] = _Task(self._new_backoff(self._connectors[id.connector].plan.restarts))
        return task

    def _desired_tasks(self) -> dict[TaskId, _Spec]:
        """The tasks that should run on this worker."""
        return {
            id: _Spec(connector.config, connector.desired.target.restarts_of(id.task))
            for id in self._owned_ids()
            if id.task != CONNECTOR_ITSELF
            and (connector := self._connectors[id.connector]).config is not None
            and connector.state is State.RUNNING
        }

    def _owned_ids(self) -> Iterator[TaskId]:
        """The connectors and tasks whose partitions this worker owns."""
        for name, connector in self._connectors.items():
            tasks = 0 if connector.state is State.STOPPED else connector.plan.tasks
            for task in range(CONNECTOR_ITSELF, tasks):
                if partition_of(name, task) in self._owned:
                    yield TaskId(name, task)


def _backoff(policy: RestartPolicy) -> Backoff:
    return Backoff(policy.backoff_ms, policy.backoff_max_ms, floor_ms=policy.backoff_ms / 2)

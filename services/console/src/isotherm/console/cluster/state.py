"""The fleet as the control topics tell it: connectors, tasks, workers and connector classes. No clock, no IO.

Records go in as they are read, in any interleaving of the topics; everything that is asked is answered from memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF, DISTRIBUTED, STANDALONE
from isotherm.connector.state.status import INTERVAL_MS, State, status_key
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.cluster.plugins import Plugin, plugin_of
from isotherm.kcql.dates import epoch_ms

STALE_MS = 3 * int(INTERVAL_MS)
"""A status that is older says nothing any more: the worker is gone or cannot reach Kafka."""
STATUS_RETENTION_MS = 3_600_000
"""A status that is older is removed from the topic."""
_TASKS_KEYS = ("tasks.max", "max.tasks")
_MOST_TASKS = 1_000
_HISTORY = 240
_THROUGHPUT = ("read", "input_records", "readings", "notifications", "records", "written")
"""Counters of what went through a task, as the services name them; the first that a task has counts."""
_ACTIVE = (State.RUNNING, State.PAUSED, State.RESTARTING)


@dataclass(frozen=True)
class Connector:
    """What is wanted: a ConnectorConfig record."""

    name: str
    klass: str
    config: Mapping[str, str] = field(default_factory=dict)
    target: TargetState = TargetState.STARTED
    restart_count: int = 0
    task_restarts: Mapping[str, int] = field(default_factory=dict)
    mode: str = DISTRIBUTED
    worker_group: str = ""
    updated_at_ms: int = 0

    @property
    def is_standalone(self) -> bool:
        """Whether a file, or the service itself, owns its configuration."""
        return self.mode == STANDALONE

    @property
    def tasks_max(self) -> int:
        """How many tasks it is to have; 0 when its configuration does not say, as that of a service."""
        for key in _TASKS_KEYS:
            text = self.config.get(key, "")
            if text.isdecimal():
                return min(int(text), _MOST_TASKS)
        return 0 if self.is_standalone else 1

    def record(self) -> dict[str, Any]:
        """The ConnectorConfig record that says this."""
        return {
            "name": self.name,
            "connector_class": self.klass,
            "config": dict(self.config),
            "target_state": self.target.value,
            "restart_count": self.restart_count,
            "task_restarts": dict(self.task_restarts),
            "mode": self.mode,
            "worker_group": self.worker_group,
            "updated_at": self.updated_at_ms,
        }


@dataclass(frozen=True)
class TaskStatus:
    """What a worker said last of one task, of a connector (CONNECTOR_ITSELF), or of itself (EVERY_CONNECTOR)."""

    connector: str
    task: int
    worker: str
    state: State
    updated_at_ms: int
    worker_group: str = ""
    trace: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    lag: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def at(self, now_ms: float) -> TaskStatus:
        """The same as it is to be understood now.

        A beat that did not come means UNASSIGNED. A failure stays what it is: it is the last word of its task.
        """
        if self.state is State.FAILED or now_ms - self.updated_at_ms <= STALE_MS:
            return self
        return replace(self, state=State.UNASSIGNED)


@dataclass(frozen=True)
class ConnectorView:
    """A connector, what is wanted of it and what is."""

    connector: Connector
    state: State
    worker: str
    trace: str | None
    tasks: tuple[TaskStatus, ...]

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the connector and of its tasks."""
        return (self.state, *(task.state for task in self.tasks))

    @property
    def lag(self) -> int:
        """Records that its tasks have not read yet."""
        return sum(sum(task.lag.values()) for task in self.tasks)

    @property
    def is_active(self) -> bool:
        """Whether any of its tasks lives."""
        return any(task.state in _ACTIVE for task in self.tasks)


@dataclass(frozen=True)
class LagSample:
    """A connector's lag at one time."""

    at_ms: int
    lag: int


class ClusterState:
    """Everything that was read of the control topics; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._connectors: dict[str, Connector] = {}
        self._deleted: dict[str, int] = {}
        self._statuses: dict[str, dict[str, TaskStatus]] = {}
        self._before: dict[str, TaskStatus] = {}
        self._plugins: dict[str, Plugin] = {}
        self._lag: dict[str, deque[LagSample]] = {}

    def take_connector(self, name: str, record: Mapping[str, Any] | None, at_ms: int) -> None:
        """A record of `isotherm.connectors`, or its deletion at `at_ms`. Raises ValueError for an unknown state."""
        with self._lock:
            if record is None:
                self._connectors.pop(name, None)
                self._lag.pop(name, None)
                self._deleted[name] = at_ms
                return
            self._connectors[name] = connector_of(record)
            self._deleted.pop(name, None)

    def take_status(self, key: str, record: Mapping[str, Any] | None) -> None:
        """A record of `isotherm.status` (key `connector/task/worker`), or its end. Raises ValueError."""
        name = key.rsplit("/", 2)[0]
        with self._lock:
            if record is not None:
                status, known = status_of(record), self._statuses.setdefault(name, {})
                if key in known:
                    self._before[key] = known[key]
                known[key] = status
                return
            self._before.pop(key, None)
            self._statuses.get(name, {}).pop(key, None)
            if not self._statuses.get(name):
                self._statuses.pop(name, None)

    def take_plugin(self, klass: str, record: Mapping[str, Any] | None) -> None:
        """A record of `isotherm.plugins`, or its deletion. Raises ValueError for an importance that nobody knows."""
        with self._lock:
            if record is None:
                self._plugins.pop(klass, None)
            else:
                self._plugins[klass] = plugin_of(record)

    def names(self) -> list[str]:
        """Every connector: those that are configured, and services that only speak of themselves."""
        with self._lock:
            speaking = {name for name in self._statuses if name != EVERY_CONNECTOR and self._speaks(name)}
            return sorted(self._connectors.keys() | speaking)

    def connector(self, name: str) -> Connector | None:
        """What is wanted of a connector; for a service that only speaks of itself what it began with."""
        with self._lock:
            found = self._connectors.get(name)
            if found is not None or name == EVERY_CONNECTOR or not self._speaks(name):
                return found
            group = next(iter(self._statuses[name].values())).worker_group
            return Connector(name, "", {"name": name}, mode=STANDALONE, worker_group=group)

    def connectors(self) -> list[Connector]:
        """What is wanted of every connector, by name."""
        with self._lock:
            return [connector for name in self.names() if (connector := self.connector(name)) is not None]

    def view(self, name: str, now_ms: float) -> ConnectorView | None:
        """A connector as it is now; None when there is none."""
        with self._lock:
            connector = self.connector(name)
            if connector is None:
                return None
            newest = self._newest(name, now_ms)
            own = newest.pop(CONNECTOR_ITSELF, None)
            return _view(connector, own, _tasks(connector, newest))

    def views(self, now_ms: float) -> list[ConnectorView]:
        """Every connector as it is now, by name."""
        with self._lock:
            found = [self.view(name, now_ms) for name in self.names()]
        return [view for view in found if view is not None]

    def workers(self, now_ms: float) -> list[TaskStatus]:
        """What every distributed worker says of itself, those that are silent as UNASSIGNED, by group and name."""
        with self._lock:
            found = [status.at(now_ms) for status in self._statuses.get(EVERY_CONNECTOR, {}).values()]
        return sorted(found, key=lambda one: (one.worker_group, one.worker))

    def groups_for(self, klass: str, now_ms: float) -> tuple[list[str], list[str]]:
        """The worker groups that can run a class: those with living workers, and all that were heard of."""
        able = [worker for worker in self.workers(now_ms) if klass in worker.classes]
        living = {worker.worker_group for worker in able if worker.state is not State.UNASSIGNED}
        return sorted(living), sorted({worker.worker_group for worker in able})

    def plugins(self) -> list[Plugin]:
        """The connector classes, by name."""
        with self._lock:
            return [self._plugins[klass] for klass in sorted(self._plugins)]

    def sample(self, now_ms: float) -> None:
        """Remember the lag of every connector, for its history."""
        for view in self.views(now_ms):
            with self._lock:
                samples = self._lag.setdefault(view.connector.name, deque(maxlen=_HISTORY))
                samples.append(LagSample(int(now_ms), view.lag))

    def lag_history(self, name: str) -> list[LagSample]:
        """The lag of a connector as far as it was watched."""
        with self._lock:
            return list(self._lag.get(name, ()))

    def rate(self, task: TaskStatus) -> float | None:
        """Records a second of a task between its last two beats; None when they do not say."""
        with self._lock:
            before = self._before.get(status_key(task.connector, task.task, task.worker))
        name = next((one for one in _THROUGHPUT if one in task.counts), None)
        if before is None or name is None or task.state not in _ACTIVE or name not in before.counts:
            return None
        elapsed_ms, grown = task.updated_at_ms - before.updated_at_ms, task.counts[name] - before.counts[name]
        return grown * 1_000 / elapsed_ms if elapsed_ms > 0 and grown >= 0 else None

    def outdated(self, now_ms: float) -> list[str]:
        """Keys of statuses that nobody needs any more, to be removed from the topic.

        The failure that a configured connector's task ended with is needed as long as nothing newer is said of it.
        """
        with self._lock:
            kept = {
                (name, task)
                for name in self._connectors
                for task, status in self._newest(name, now_ms).items()
                if status.state is State.FAILED
            }
            return [
                key
                for name, of in self._statuses.items()
                for key, status in of.items()
                if now_ms - status.updated_at_ms > STATUS_RETENTION_MS
                and not ((name, status.task) in kept and status.state is State.FAILED)
            ]

    def _speaks(self, name: str) -> bool:
        """Whether a status was said of `name` that is not the echo of a connector that was deleted."""
        deleted_at = self._deleted.get(name)
        said = self._statuses.get(name, {}).values()
        return bool(said) if deleted_at is None else any(one.updated_at_ms > deleted_at + STALE_MS for one in said)

    def _newest(self, name: str, now_ms: float) -> dict[int, TaskStatus]:
        newest: dict[int, TaskStatus] = {}
        for status in self._statuses.get(name, {}).values():
            known = newest.get(status.task)
            if known is None or status.updated_at_ms >= known.updated_at_ms:
                newest[status.task] = status
        return {task: status.at(now_ms) for task, status in newest.items()}


def connector_of(record: Mapping[str, Any]) -> Connector:
    """A ConnectorConfig record, decoded. Raises ValueError for a target state that nobody knows."""
    return Connector(
        name=record["name"],
        klass=record["connector_class"],
        config=record["config"],
        target=TargetState(record["target_state"]),
        restart_count=record["restart_count"],
        task_restarts=record["task_restarts"],
        mode=record["mode"],
        worker_group=record["worker_group"],
        updated_at_ms=epoch_ms(record["updated_at"]),
    )


def status_of(record: Mapping[str, Any]) -> TaskStatus:
    """A TaskStatus record, decoded. Raises ValueError for a state that nobody knows."""
    return TaskStatus(
        connector=record["connector"],
        task=record["task"],
        worker=record["worker"],
        worker_group=record["worker_group"],
        state=State(record["state"]),
        trace=record["trace"],
        counts=record["counts"],
        lag=record["lag"],
        classes=tuple(record["classes"]),
        updated_at_ms=epoch_ms(record["updated_at"]),
    )


def _tasks(connector: Connector, newest: Mapping[int, TaskStatus]) -> tuple[TaskStatus, ...]:
    """The tasks that there are: as many as are wanted, and others that still live. None of a stopped connector."""
    is_stopped = connector.target is TargetState.STOPPED
    living = {number for number, one in newest.items() if one.state in _ACTIVE}
    wanted = set() if is_stopped else set(range(connector.tasks_max)) or set(newest)
    return tuple(
        newest.get(number) or TaskStatus(connector.name, number, "", State.UNASSIGNED, 0, connector.worker_group)
        for number in sorted(wanted | living)
    )


def _view(connector: Connector, own: TaskStatus | None, tasks: tuple[TaskStatus, ...]) -> ConnectorView:
    active = [task for task in tasks if task.state in _ACTIVE]
    worker = max(active, key=lambda task: task.updated_at_ms).worker if active else ""
    state, trace = _derived(connector, tasks, active), None
    if own is not None and own.state is not State.UNASSIGNED and connector.target is not TargetState.STOPPED:
        trace, worker = own.trace, own.worker
        # What its tasks do says more than that somebody answers for it, unless it cannot have any.
        state = own.state if own.state is State.FAILED or not active else state
    return ConnectorView(connector, state, worker, trace, tasks)


def _derived(connector: Connector, tasks: Iterable[TaskStatus], active: Iterable[TaskStatus]) -> State:
    states = {task.state for task in active}
    if states:
        return State.PAUSED if states == {State.PAUSED} else State.RUNNING
    if connector.target is TargetState.STOPPED:
        return State.STOPPED
    return State.FAILED if any(task.state is State.FAILED for task in tasks) else State.UNASSIGNED

"""The cluster's state in memory: connectors, tasks, workers and connector classes. It has no clock and does no IO.

Followers store the control topics' records here, in any interleaving of the topics. Every query is answered from
memory.
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
"""Age at which a status is stale: its worker is gone or cannot reach Kafka."""
STATUS_RETENTION_MS = 3_600_000
"""Age at which a status is removed from its topic."""
_TASKS_KEYS = ("tasks.max", "max.tasks")
_MAX_TASKS = 1_000
_LAG_SAMPLES = 240
_RECORD_COUNTS = ("read", "input_records", "readings", "notifications", "records", "written")
"""The counts of processed records, as the services name them. The rate comes from the first one that a task reports."""
_ACTIVE = (State.RUNNING, State.PAUSED, State.RESTARTING)


@dataclass(frozen=True)
class Connector:
    """A connector's desired state: its ConnectorConfig record."""

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
        """Whether a file or the service's own settings own the configuration."""
        return self.mode == STANDALONE

    @property
    def tasks_max(self) -> int:
        """How many tasks the connector should have; 0 when a service's configuration does not say."""
        for key in _TASKS_KEYS:
            text = self.config.get(key, "")
            if text.isdecimal():
                return min(int(text), _MAX_TASKS)
        return 0 if self.is_standalone else 1

    def record(self) -> dict[str, Any]:
        """Return the ConnectorConfig record."""
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
    """The last heartbeat of one task, of a connector (CONNECTOR_ITSELF), or of a worker (EVERY_CONNECTOR)."""

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

    def as_of(self, now_ms: float) -> TaskStatus:
        """Return the status as of `now_ms`: UNASSIGNED when it is stale.

        FAILED never becomes stale, because it is the last status of its task.
        """
        if self.state is State.FAILED or now_ms - self.updated_at_ms <= STALE_MS:
            return self
        return replace(self, state=State.UNASSIGNED)


@dataclass(frozen=True)
class ConnectorView:
    """A connector with its desired and its actual state."""

    connector: Connector
    state: State
    worker: str
    trace: str | None
    tasks: tuple[TaskStatus, ...]

    @property
    def states(self) -> tuple[State, ...]:
        """The state of the connector, then the states of its tasks."""
        return (self.state, *(task.state for task in self.tasks))

    @property
    def lag(self) -> int:
        """How many records its tasks have not read yet."""
        return sum(sum(task.lag.values()) for task in self.tasks)

    @property
    def is_active(self) -> bool:
        """Whether any of its tasks is alive."""
        return any(task.state in _ACTIVE for task in self.tasks)


@dataclass(frozen=True)
class LagSample:
    """A connector's lag at one time."""

    at_ms: int
    lag: int


class ClusterState:
    """Everything that the followers have read from the control topics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._connectors: dict[str, Connector] = {}
        self._deleted: dict[str, int] = {}
        self._statuses: dict[str, dict[str, TaskStatus]] = {}
        self._previous: dict[str, TaskStatus] = {}
        self._plugins: dict[str, Plugin] = {}
        self._lag: dict[str, deque[LagSample]] = {}

    def update_connector(self, name: str, record: Mapping[str, Any] | None, at_ms: int) -> None:
        """Store a record of `isotherm.connectors`, or its deletion at `at_ms`.

        Raises ValueError for an unknown state.
        """
        with self._lock:
            if record is None:
                self._connectors.pop(name, None)
                self._lag.pop(name, None)
                self._deleted[name] = at_ms
                return
            self._connectors[name] = connector_of(record)
            self._deleted.pop(name, None)

    def update_status(self, key: str, record: Mapping[str, Any] | None) -> None:
        """Store a record of `isotherm.status` (key `connector/task/worker`), or its deletion.

        Raises ValueError for an unknown state.
        """
        name = key.rsplit("/", 2)[0]
        with self._lock:
            if record is not None:
                status, known = status_of(record), self._statuses.setdefault(name, {})
                if key in known:
                    self._previous[key] = known[key]
                known[key] = status
                return
            self._previous.pop(key, None)
            self._statuses.get(name, {}).pop(key, None)
            if not self._statuses.get(name):
                self._statuses.pop(name, None)

    def update_plugin(self, klass: str, record: Mapping[str, Any] | None) -> None:
        """Store a record of `isotherm.plugins`, or its deletion. Raises ValueError for an unknown importance."""
        with self._lock:
            if record is None:
                self._plugins.pop(klass, None)
            else:
                self._plugins[klass] = plugin_of(record)

    def names(self) -> list[str]:
        """Return all connectors by name: the configured ones, and services that only send heartbeats."""
        with self._lock:
            services = {name for name in self._statuses if name != EVERY_CONNECTOR and self._has_status(name)}
            return sorted(self._connectors.keys() | services)

    def connector(self, name: str) -> Connector | None:
        """Return a connector's desired state; a standalone one for a service that only sends heartbeats."""
        with self._lock:
            found = self._connectors.get(name)
            if found is not None or name == EVERY_CONNECTOR or not self._has_status(name):
                return found
            group = next(iter(self._statuses[name].values())).worker_group
            return Connector(name, "", {"name": name}, mode=STANDALONE, worker_group=group)

    def connectors(self) -> list[Connector]:
        """Return the desired states of all connectors, sorted by name."""
        with self._lock:
            return [connector for name in self.names() if (connector := self.connector(name)) is not None]

    def view(self, name: str, now_ms: float) -> ConnectorView | None:
        """Return a connector as of `now_ms`; None when it does not exist."""
        with self._lock:
            connector = self.connector(name)
            if connector is None:
                return None
            newest = self._newest(name, now_ms)
            own = newest.pop(CONNECTOR_ITSELF, None)
            return _view(connector, own, _tasks(connector, newest))

    def views(self, now_ms: float) -> list[ConnectorView]:
        """Return all connectors as of `now_ms`, sorted by name."""
        with self._lock:
            found = [self.view(name, now_ms) for name in self.names()]
        return [view for view in found if view is not None]

    def running(self, now_ms: float) -> set[str]:
        """Return the connectors and services that have a running task as of `now_ms`."""
        views = self.views(now_ms)
        return {view.connector.name for view in views if any(task.state is State.RUNNING for task in view.tasks)}

    def running_tasks(self, name: str, now_ms: float) -> list[TaskStatus]:
        """Return the last heartbeats of the running tasks of a connector or service as of `now_ms`."""
        view = self.view(name, now_ms)
        return [] if view is None else [task for task in view.tasks if task.state is State.RUNNING]

    def workers(self, now_ms: float) -> list[TaskStatus]:
        """Return the last heartbeats of all distributed workers by group and name; stale ones are UNASSIGNED."""
        with self._lock:
            found = [status.as_of(now_ms) for status in self._statuses.get(EVERY_CONNECTOR, {}).values()]
        return sorted(found, key=lambda one: (one.worker_group, one.worker))

    def groups_for(self, klass: str, now_ms: float) -> tuple[list[str], list[str]]:
        """Return the worker groups that can run a class: those with a live worker, and all known ones."""
        able = [worker for worker in self.workers(now_ms) if klass in worker.classes]
        live = {worker.worker_group for worker in able if worker.state is not State.UNASSIGNED}
        return sorted(live), sorted({worker.worker_group for worker in able})

    def plugins(self) -> list[Plugin]:
        """Return the connector classes, sorted by name."""
        with self._lock:
            return [self._plugins[klass] for klass in sorted(self._plugins)]

    def sample_lag(self, now_ms: float) -> None:
        """Add the current lag of every connector to its history."""
        for view in self.views(now_ms):
            with self._lock:
                samples = self._lag.setdefault(view.connector.name, deque(maxlen=_LAG_SAMPLES))
                samples.append(LagSample(int(now_ms), view.lag))

    def lag_history(self, name: str) -> list[LagSample]:
        """Return the sampled lag of a connector, the oldest sample first."""
        with self._lock:
            return list(self._lag.get(name, ()))

    def record_rate(self, task: TaskStatus) -> float | None:
        """Return a task's records per second between its last two heartbeats; None when they do not tell."""
        with self._lock:
            previous = self._previous.get(status_key(task.connector, task.task, task.worker))
        name = next((one for one in _RECORD_COUNTS if one in task.counts), None)
        if previous is None or name is None or task.state not in _ACTIVE or name not in previous.counts:
            return None
        elapsed_ms = task.updated_at_ms - previous.updated_at_ms
        records = task.counts[name] - previous.counts[name]
        # Counts that fall belong to a restarted task, which has no rate yet.
        return records * 1_000 / elapsed_ms if elapsed_ms > 0 and records >= 0 else None

    def expired_statuses(self, now_ms: float) -> list[str]:
        """Return the keys of statuses to remove from the topic, because they are older than STATUS_RETENTION_MS.

        The last failure of a configured connector's task is kept until a newer status replaces it.
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

    def _has_status(self, name: str) -> bool:
        """Whether `name` has a status that is newer than the last heartbeats of a deleted connector of that name."""
        deleted_at = self._deleted.get(name)
        statuses = self._statuses.get(name, {}).values()
        if deleted_at is None:
            return bool(statuses)
        return any(one.updated_at_ms > deleted_at + STALE_MS for one in statuses)

    def _newest(self, name: str, now_ms: float) -> dict[int, TaskStatus]:
        newest: dict[int, TaskStatus] = {}
        for status in self._statuses.get(name, {}).values():
            known = newest.get(status.task)
            if known is None or status.updated_at_ms >= known.updated_at_ms:
                newest[status.task] = status
        return {task: status.as_of(now_ms) for task, status in newest.items()}


def connector_of(record: Mapping[str, Any]) -> Connector:
    """Read a decoded ConnectorConfig record. Raises ValueError for an unknown target state."""
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
    """Read a decoded TaskStatus record. Raises ValueError for an unknown state."""
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
    """Return the configured number of tasks and others that are alive; of a stopped connector only the latter."""
    is_stopped = connector.target is TargetState.STOPPED
    live = {number for number, one in newest.items() if one.state in _ACTIVE}
    expected = set() if is_stopped else set(range(connector.tasks_max)) or set(newest)
    return tuple(
        newest.get(number) or TaskStatus(connector.name, number, "", State.UNASSIGNED, 0, connector.worker_group)
        for number in sorted(expected | live)
    )


def _view(connector: Connector, own: TaskStatus | None, tasks: tuple[TaskStatus, ...]) -> ConnectorView:
    active = [task for task in tasks if task.state in _ACTIVE]
    worker = max(active, key=lambda task: task.updated_at_ms).worker if active else ""
    state, trace = _derive_state(connector, tasks, active), None
    if own is not None and own.state is not State.UNASSIGNED and connector.target is not TargetState.STOPPED:
        trace, worker = own.trace, own.worker
        # The state of live tasks is more precise than the connector's own, unless the connector itself has failed.
        state = own.state if own.state is State.FAILED or not active else state
    return ConnectorView(connector, state, worker, trace, tasks)


def _derive_state(connector: Connector, tasks: Iterable[TaskStatus], active: Iterable[TaskStatus]) -> State:
    states = {task.state for task in active}
    if states:
        return State.PAUSED if states == {State.PAUSED} else State.RUNNING
    if connector.target is TargetState.STOPPED:
        return State.STOPPED
    return State.FAILED if any(task.state is State.FAILED for task in tasks) else State.UNASSIGNED

"""Kafka Connect's JSON shapes (its package `rest.entities`), made from what the fleet knows."""

from __future__ import annotations

from typing import Any

from isotherm import kcql
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.masking import masked, without_secrets
from isotherm.console.cluster.state import ConnectorView, Status
from isotherm.console.connectors.control import Control

Json = dict[str, Any]
_UNKNOWN = "unknown"


def kind(control: Control, view: ConnectorView) -> str:
    """`source`, `sink`, or `unknown` for a service that is neither."""
    plugin = control.plugin_of(view.connector)
    return plugin.definition.kind if plugin else _UNKNOWN


def config(control: Control, view: ConnectorView) -> dict[str, str]:
    """The configuration, secrets masked."""
    return masked(view.connector.config, control.is_secret(view.connector))


def info(control: Control, view: ConnectorView) -> Json:
    """`ConnectorInfo`."""
    return {
        "name": view.connector.name,
        "config": config(control, view),
        "tasks": [task_id(task) for task in view.tasks],
        "type": kind(control, view),
    }


def status(control: Control, view: ConnectorView) -> Json:
    """`ConnectorStateInfo`."""
    return {
        "name": view.connector.name,
        "connector": _state(control, view, view.state, view.worker, view.trace),
        "tasks": [task_status(control, view, task) for task in view.tasks],
        "type": kind(control, view),
    }


def task_status(control: Control, view: ConnectorView, task: Status) -> Json:
    """`ConnectorStateInfo.TaskState`."""
    return {"id": task.task, **_state(control, view, task.state, task.worker, task.trace)}


def task_id(task: Status) -> Json:
    """`ConnectorTaskId`."""
    return {"connector": task.connector, "task": task.task}


def tasks(control: Control, view: ConnectorView) -> list[Json]:
    """`TaskInfo`s: every task has the whole configuration."""
    return [{"id": task_id(task), "config": config(control, view)} for task in view.tasks]


def topics(control: Control, view: ConnectorView) -> list[str]:
    """The topics that a connector uses: those it is configured to read or write, and those it says it reads."""
    plugin = control.plugin_of(view.connector)
    values = view.connector.config
    named = {topic.strip() for topic in values.get("topics", "").split(",") if topic.strip()}
    for task in view.tasks:
        named |= {partition.rpartition("-")[0] for partition in task.lag}
    if plugin is not None and plugin.definition.kind == "source":
        named |= {one.target for one in statements(control, view) if one.target}
    return sorted(named)


def statements(control: Control, view: ConnectorView) -> list[kcql.Statement]:
    """The connector's KCQL; nothing where it has none, or none that can be read."""
    plugin = control.plugin_of(view.connector)
    if plugin is None or plugin.definition.kcql_key is None:
        return []
    key = plugin.definition.key(plugin.definition.kcql_key)
    text = next((view.connector.config[name] for name in (key.name, *key.aliases) if name in view.connector.config), "")
    try:
        return list(kcql.parse(text)) if text else []
    except kcql.KcqlError:
        return []


def target_of(text: str) -> TargetState:
    """`initial_state` of a request: Connect says RUNNING for STARTED. Raises ValueError."""
    return TargetState.STARTED if text == "RUNNING" else TargetState(text)


def _state(control: Control, view: ConnectorView, state: State, worker: str, trace: str | None) -> Json:
    plugin = control.plugin_of(view.connector)
    shown: Json = {"state": state.value, "worker_id": worker}
    if trace:
        shown["trace"] = without_secrets(trace, view.connector.config, control.is_secret(view.connector))
    if plugin is not None and plugin.version:
        shown["version"] = plugin.version
    return shown

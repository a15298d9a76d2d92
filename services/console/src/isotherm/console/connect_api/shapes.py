"""Kafka Connect's JSON of connectors and tasks (its package `rest.entities`), from the cluster's state. Pure."""

from __future__ import annotations

from typing import Any

from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.masking import mask_config, mask_trace
from isotherm.console.cluster.state import ConnectorView, TaskStatus
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.flows import connector_kind

Json = dict[str, Any]


def config(control: ConnectorControl, view: ConnectorView) -> dict[str, str]:
    """Return a connector's configuration with secrets masked."""
    return mask_config(view.connector.config, control.is_secret(view.connector))


def info(control: ConnectorControl, view: ConnectorView) -> Json:
    """Return a `ConnectorInfo`."""
    return {
        "name": view.connector.name,
        "config": config(control, view),
        "tasks": [task_id(task) for task in view.tasks],
        "type": connector_kind(control, view),
    }


def status(control: ConnectorControl, view: ConnectorView) -> Json:
    """Return a `ConnectorStateInfo`."""
    return {
        "name": view.connector.name,
        "connector": _state(control, view, view.state, view.worker, view.trace),
        "tasks": [task_status(control, view, task) for task in view.tasks],
        "type": connector_kind(control, view),
    }


def task_status(control: ConnectorControl, view: ConnectorView, task: TaskStatus) -> Json:
    """Return a `ConnectorStateInfo.TaskState`."""
    return {"id": task.task, **_state(control, view, task.state, task.worker, task.trace)}


def task_id(task: TaskStatus) -> Json:
    """Return a `ConnectorTaskId`."""
    return {"connector": task.connector, "task": task.task}


def tasks(control: ConnectorControl, view: ConnectorView) -> list[Json]:
    """Return the `TaskInfo`s. Every task has the connector's whole configuration."""
    return [{"id": task_id(task), "config": config(control, view)} for task in view.tasks]


def target_of(text: str) -> TargetState:
    """Return the target state of a request's `initial_state`; Connect says RUNNING for STARTED. Raises ValueError."""
    return TargetState.STARTED if text == "RUNNING" else TargetState(text)


def _state(control: ConnectorControl, view: ConnectorView, state: State, worker: str, trace: str | None) -> Json:
    plugin = control.plugin_of(view.connector)
    state_json: Json = {"state": state.value, "worker_id": worker}
    if trace:
        state_json["trace"] = mask_trace(trace, view.connector.config, control.is_secret(view.connector))
    if plugin is not None and plugin.version:
        state_json["version"] = plugin.version
    return state_json

"""The formats of results: tables for users, properties or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isotherm.connector.config import files

_COLOURS = {"RUNNING": "green", "FAILED": "red", "PAUSED": "yellow", "STOPPED": "yellow"}
_EMPTY = (None, "")


def time_text(at_ms: int | None, precision: str = "seconds") -> str:
    """Return a time (epoch milliseconds) in UTC as ISO 8601; empty for None."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        # Devices may send times that no calendar has.
        return f"{at_ms} ms"


def as_json(value: Any) -> str:
    """Return indented JSON, with the server's keys."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def configuration(info: Mapping[str, Any]) -> str:
    """Return a connector's configuration as a properties file for `create`, with its tasks in a comment."""
    tasks = ", ".join(str(task["task"]) for task in info["tasks"]) or "none"
    return files.to_properties(dict(sorted(info["config"].items()))) + f"# tasks: {tasks}\n"


def status(found: Mapping[str, Any]) -> str:
    """Return a connector's status as properties: `connector.state`, `task.0.state`, `task.0.trace`..."""
    shown = {"name": found["name"], **_state("connector", found["connector"])}
    for task in found["tasks"]:
        shown |= _state(f"task.{task['id']}", task)
    return files.to_properties(shown)


def task_status(found: Mapping[str, Any]) -> str:
    """Return a task's status as properties."""
    return files.to_properties(_state(f"task.{found['id']}", found))


def definitions(keys: Iterable[Mapping[str, Any]]) -> str:
    """Return the keys of a class as a properties file to fill in: required keys empty, the others commented out."""
    lines = []
    for key in keys:
        lines += [f"# {line}" for line in (key.get("documentation") or "").splitlines()]
        required = ", required" if key["required"] else ""
        lines.append(f"# {key['type'].lower()}, {key['importance'].lower()} importance{required}")
        (line,) = files.to_properties({key["name"]: key["default_value"] or ""}).splitlines()
        lines += [line if key["required"] else f"# {line}", ""]
    return "\n".join(lines)


def problems(validated: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """Return one line for each error of a validation: key, given value, and message."""
    values = [entry["value"] for entry in validated["configs"]]
    # The response contains the value of a key that was given by an alias.
    return [
        f"{of['name']}={given.get(of['name'], of['value'] or '')}: {error}" for of in values for error in of["errors"]
    ]


def differences(running: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """Return `-key=value` of the running and `+key=value` of the given configuration where they differ, by key."""
    lines = []
    for key in sorted(running.keys() | given.keys()):
        if running.get(key) != given.get(key):
            lines += [f"-{line}" for line in files.to_properties(_only(running, key)).splitlines()]
            lines += [f"+{line}" for line in files.to_properties(_only(given, key)).splitlines()]
    return lines


def show_overview(found: Mapping[str, Any], console: Console) -> None:
    """Print a table of connectors: name, type, state, tasks by state, class."""
    shown = table("name", "type", "state", "tasks", "class")
    for name, of in found.items():
        states = [task["state"] for task in of["status"]["tasks"]]
        tasks = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none"
        state = of["status"]["connector"]["state"]
        colour = "red" if "FAILED" in states else _COLOURS.get(state, "")
        klass = of["info"]["config"].get(files.CLASS, "")
        shown.add_row(Text(name), of["info"]["type"], Text(state, colour), Text(tasks, colour), Text(klass))
    console.print(shown)


def show_status(status: Mapping[str, Any], console: Console) -> None:
    """Print a table of a connector and its tasks, then every trace in full."""
    show_states(
        [("connector", status["connector"])] + [(f"task {task['id']}", task) for task in status["tasks"]], console
    )


def show_states(states: Sequence[tuple[str, Mapping[str, Any]]], console: Console) -> None:
    """Print a table of states and workers, then every trace in full."""
    shown = table("", "state", "worker")
    for what, of in states:
        shown.add_row(what, Text(of["state"], _COLOURS.get(of["state"], "")), Text(of["worker_id"]))
    console.print(shown)
    for what, of in states:
        if of.get("trace"):
            console.print(Text(f"\n{what}:\n{of['trace'].rstrip()}", "red"))


def show_plugins(found: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print a table of classes."""
    shown = table("class", "type", "version")
    for plugin in found:
        shown.add_row(Text(plugin["class"]), plugin["type"], plugin.get("version") or "")
    console.print(shown)


def show_definitions(keys: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print a table of a class's keys."""
    shown = table("key", "type", "default", "importance", "meaning")
    for key in keys:
        default = "(required)" if key["required"] else key["default_value"] or ""
        documentation = key.get("documentation") or ""
        shown.add_row(Text(key["name"]), key["type"], Text(default), key["importance"], Text(documentation))
    console.print(shown)


def table(*columns: str) -> Table:
    """Return an empty table in the common style."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _state(prefix: str, of: Mapping[str, Any]) -> dict[str, str]:
    shown = {key: of.get(key) for key in ("state", "worker_id", "trace")}
    return {f"{prefix}.{key}": value for key, value in shown.items() if value not in _EMPTY}


def _only(values: Mapping[str, str], key: str) -> dict[str, str]:
    return {key: values[key]} if key in values else {}

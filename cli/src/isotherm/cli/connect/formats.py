"""How connectors are shown: tables for a person, properties or JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isotherm.connector.config import files

_COLOURS = {"RUNNING": "green", "FAILED": "red", "PAUSED": "yellow", "STOPPED": "yellow"}
_HAS_NO_VALUE = (None, "")


class Format(StrEnum):
    """`--format`."""

    TABLE = "table"
    PROPERTIES = "properties"
    JSON = "json"


def as_json(value: Any) -> str:
    """Indented JSON, keys as the server gave them."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def configuration(info: Mapping[str, Any]) -> str:
    """A connector's configuration as a properties file that `create` takes; its tasks as a comment."""
    tasks = ", ".join(str(task["task"]) for task in info["tasks"]) or "none"
    return files.to_properties(dict(sorted(info["config"].items()))) + f"# tasks: {tasks}\n"


def status(said: Mapping[str, Any]) -> str:
    """A connector's status as properties: `connector.state`, `task.0.state`, `task.0.trace`..."""
    shown = {"name": said["name"], **_state("connector", said["connector"])}
    for task in said["tasks"]:
        shown |= _state(f"task.{task['id']}", task)
    return files.to_properties(shown)


def task_status(said: Mapping[str, Any]) -> str:
    """A task's status as properties."""
    return files.to_properties(_state(f"task.{said['id']}", said))


def definitions(keys: Iterable[Mapping[str, Any]]) -> str:
    """The keys of a class as a properties file to fill in: those that are required blank, the others commented out."""
    lines = []
    for key in keys:
        lines += [f"# {line}" for line in (key.get("documentation") or "").splitlines()]
        required = ", required" if key["required"] else ""
        lines.append(f"# {key['type'].lower()}, {key['importance'].lower()} importance{required}")
        (line,) = files.to_properties({key["name"]: key["default_value"] or ""}).splitlines()
        lines += [line if key["required"] else f"# {line}", ""]
    return "\n".join(lines)


def problems(validated: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """One line for each error of a validation: key, the value that was given, and what the class says of it."""
    values = [entry["value"] for entry in validated["configs"]]
    # A key that was given by an older name has its value in the answer.
    return [
        f"{of['name']}={given.get(of['name'], of['value'] or '')}: {error}" for of in values for error in of["errors"]
    ]


def differences(running: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """`-key=value` of what runs and `+key=value` of what was given, where they differ, by key."""
    lines = []
    for key in sorted(running.keys() | given.keys()):
        if running.get(key) != given.get(key):
            lines += [f"-{line}" for line in files.to_properties(_only(running, key)).splitlines()]
            lines += [f"+{line}" for line in files.to_properties(_only(given, key)).splitlines()]
    return lines


def show_overview(found: Mapping[str, Any], console: Console) -> None:
    """A table of connectors: name, type, state, tasks by state, class."""
    shown = table("name", "type", "state", "tasks", "class")
    for name, of in found.items():
        states = [task["state"] for task in of["status"]["tasks"]]
        tasks = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none"
        state = of["status"]["connector"]["state"]
        colour = "red" if "FAILED" in states else _COLOURS.get(state, "")
        klass = of["info"]["config"].get(files.CLASS, "")
        shown.add_row(Text(name), of["info"]["type"], Text(state, colour), Text(tasks, colour), Text(klass))
    console.print(shown)


def show_status(said: Mapping[str, Any], console: Console) -> None:
    """A table of a connector and its tasks, then every trace in full."""
    show_states([("connector", said["connector"])] + [(f"task {task['id']}", task) for task in said["tasks"]], console)


def show_states(states: Sequence[tuple[str, Mapping[str, Any]]], console: Console) -> None:
    """A table of what has which state on which worker, then every trace in full."""
    shown = table("", "state", "worker")
    for what, of in states:
        shown.add_row(what, Text(of["state"], _COLOURS.get(of["state"], "")), Text(of["worker_id"]))
    console.print(shown)
    for what, of in states:
        if of.get("trace"):
            console.print(Text(f"\n{what}:\n{of['trace'].rstrip()}", "red"))


def show_plugins(found: Iterable[Mapping[str, Any]], console: Console) -> None:
    """A table of classes."""
    shown = table("class", "type", "version")
    for plugin in found:
        shown.add_row(Text(plugin["class"]), plugin["type"], plugin.get("version") or "")
    console.print(shown)


def show_definitions(keys: Iterable[Mapping[str, Any]], console: Console) -> None:
    """A table of a class's keys."""
    shown = table("key", "type", "default", "importance", "meaning")
    for key in keys:
        default = "(required)" if key["required"] else key["default_value"] or ""
        documentation = key.get("documentation") or ""
        shown.add_row(Text(key["name"]), key["type"], Text(default), key["importance"], Text(documentation))
    console.print(shown)


def table(*columns: str) -> Table:
    """An empty table in the style of all of them."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _state(prefix: str, of: Mapping[str, Any]) -> dict[str, str]:
    shown = {key: of.get(key) for key in ("state", "worker_id", "trace")}
    return {f"{prefix}.{key}": value for key, value in shown.items() if value not in _HAS_NO_VALUE}


def _only(values: Mapping[str, str], key: str) -> dict[str, str]:
    return {key: values[key]} if key in values else {}

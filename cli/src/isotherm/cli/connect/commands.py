"""The commands of the old connect-cli, and Connect's newer verbs: properties on stdin and stdout, notes on stderr."""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from isotherm.cli.connect import formats, letters
from isotherm.cli.connect.formats import Format
from isotherm.cli.connect.rest import Connect
from isotherm.cli.connect.session import (
    ClassArgument,
    EndpointOption,
    FormatOption,
    NameArgument,
    TaskArgument,
    chosen,
    connected,
    note,
    refuse,
    show,
    write,
)
from isotherm.connector.config import files
from isotherm.connector.config.files import ConfigError
from isotherm.servicekit.lifecycle import Exit

_PANEL = "Connectors, over Kafka Connect's REST API"
_SETTLES_IN_S = 10.0
_POLL_S = 0.2
# Keys that Connect takes beside those of the class.
_OF_THE_FRAMEWORK = ("name", "producer.override.", "consumer.override.", "admin.override.")


def register(app: typer.Typer) -> None:
    """Add the commands to the `isotherm` command."""
    for name, command in _COMMANDS.items():
        app.command(name, rich_help_panel=_PANEL)(command)
    app.add_typer(offsets_app, name="offsets", rich_help_panel=_PANEL)
    letters.register(app, _PANEL)


def ps(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connectors: their names, on a terminal with their states."""
    with connected(endpoint) as connect:
        match chosen(format_):
            case Format.TABLE:
                formats.show_overview(connect.overview(), Console())
            case Format.JSON:
                write(formats.as_json(connect.overview()))
            case Format.PROPERTIES:
                write("".join(f"{name}\n" for name in connect.names()))


def get(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print a connector's configuration as `create` takes it."""
    with connected(endpoint) as connect:
        _show_configuration(connect.info(name), format_)


def rm(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Delete a connector."""
    with connected(endpoint) as connect:
        connect.delete(name)
    note(f"{name} deleted")


def create(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin (properties or JSON). One that exists is left alone."""
    given = _given(name)
    with connected(endpoint) as connect:
        made = connect.create(name, given)
        note(f"{name} created")
        _show_configuration(made, format_)


def run(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin, or give it this one if it exists."""
    given = _given(name)
    with connected(endpoint) as connect:
        is_new, made = connect.put(name, given)
        note(f"{name} {'created' if is_new else 'updated'}")
        _show_configuration(made, format_)


def diff(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Compare a connector's configuration with the one on stdin. Exit code 1 when they differ."""
    given = _given(name)
    with connected(endpoint) as connect:
        lines = formats.differences(connect.info(name)["config"], given)
    write("".join(f"{line}\n" for line in lines))
    if lines:
        raise typer.Exit(Exit.FAILED)


def status(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the state of a connector and of its tasks, with the exception of each that failed."""
    with connected(endpoint) as connect:
        _show_status(connect.status(name), format_)


def plugins(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connector classes."""
    with connected(endpoint) as connect:
        found = connect.plugins()
    names = "".join(f"{plugin['class']}\n" for plugin in found)
    show(found, format_, names, lambda console: formats.show_plugins(found, console))


def describe(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the configuration keys of a class; as properties it is a file to fill in."""
    with connected(endpoint) as connect:
        found = connect.definitions(class_)
    show(found, format_, formats.definitions(found), lambda console: formats.show_definitions(found, console))


def validate(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print what is wrong with the configuration on stdin, one line for each problem. Exit code 1 when something is."""
    given = _read()
    given.setdefault(files.CLASS, class_)
    with connected(endpoint) as connect:
        validated = connect.validate(class_, given)
    known = [entry["definition"]["name"] for entry in validated["configs"]]
    for key in given:
        if key not in known and not key.startswith(_OF_THE_FRAMEWORK):
            nearest = difflib.get_close_matches(key, known, n=1)
            note(f"{key} is no key of this class" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    if chosen(format_) is Format.JSON:
        write(formats.as_json(validated))
    else:
        write("".join(f"{problem}\n" for problem in formats.problems(validated, given)))
    if validated["error_count"]:
        raise typer.Exit(Exit.FAILED)
    note("valid")


def restart(
    name: NameArgument,
    tasks: Annotated[bool, typer.Option("--tasks", help="Its tasks too.")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only what has failed.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Restart a connector and print its status."""
    with connected(endpoint) as connect:
        connect.restart(name, include_tasks=tasks, only_failed=only_failed)
        _show_status(_settled(connect, name, "RUNNING"), format_)


def pause(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Pause a connector, whose tasks stay as they are, and print its status."""
    _change_state(name, "pause", "PAUSED", endpoint, format_)


def resume(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Let a paused or stopped connector go on and print its status."""
    _change_state(name, "resume", "RUNNING", endpoint, format_)


def stop(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """End a connector's tasks, keep its configuration, and print its status."""
    _change_state(name, "stop", "STOPPED", endpoint, format_)


def task_ps(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List a connector's tasks: their numbers, on a terminal with their states."""
    with connected(endpoint) as connect:
        tasks = connect.status(name)["tasks"]
    states = [(f"task {task['id']}", task) for task in tasks]
    numbers = "".join(f"{task['id']}\n" for task in tasks)
    show(tasks, format_, numbers, lambda console: formats.show_states(states, console))


def task_status(
    name: NameArgument, task: TaskArgument, endpoint: EndpointOption = None, format_: FormatOption = None
) -> None:
    """Print the state of one task, with its exception if it failed."""
    with connected(endpoint) as connect:
        _show_task(connect.task_status(name, task), format_)


def task_restart(
    name: NameArgument, task: TaskArgument, endpoint: EndpointOption = None, format_: FormatOption = None
) -> None:
    """Restart one task and print its state."""
    with connected(endpoint) as connect:
        connect.restart_task(name, task)
        _show_task(connect.task_status(name, task), format_)


offsets_app = typer.Typer(help="Where a connector stands in its topics.", no_args_is_help=True)


@offsets_app.command("get")
def offsets_get(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Print a connector's offsets as JSON, as `offsets set` takes them."""
    with connected(endpoint) as connect:
        write(formats.as_json(connect.offsets(name)))


@offsets_app.command("set")
def offsets_set(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Put a stopped connector to the offsets on stdin (JSON); null puts a partition back to its beginning."""
    try:
        wanted = json.load(sys.stdin)
    except ValueError as error:
        refuse(f"offsets: not JSON: {error}")
    with connected(endpoint) as connect:
        note(connect.alter_offsets(name, wanted))


@offsets_app.command("reset")
def offsets_reset(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Put a stopped connector back to its beginning."""
    with connected(endpoint) as connect:
        note(connect.reset_offsets(name))


_COMMANDS: dict[str, Callable[..., None]] = {
    "ps": ps,
    "get": get,
    "create": create,
    "run": run,
    "diff": diff,
    "rm": rm,
    "status": status,
    "plugins": plugins,
    "describe": describe,
    "validate": validate,
    "restart": restart,
    "pause": pause,
    "resume": resume,
    "stop": stop,
    "task_ps": task_ps,
    "task_status": task_status,
    "task_restart": task_restart,
}


def _change_state(name: str, verb: str, target: str, endpoint: str | None, format_: Format | None) -> None:
    with connected(endpoint) as connect:
        connect.change_state(name, verb)
        _show_status(_settled(connect, name, target), format_)


def _settled(connect: Connect, name: str, state: str) -> Mapping[str, Any]:
    """The status once connector and tasks have the state, or have failed, or as it is when that takes long."""
    deadline = time.monotonic() + _SETTLES_IN_S
    while True:
        said: Mapping[str, Any] = connect.status(name)
        states = {of["state"] for of in (said["connector"], *said["tasks"])}
        if states <= {state, "FAILED"} or time.monotonic() >= deadline:
            return said
        time.sleep(_POLL_S)  # between two questions: the server has no way to call us


def _given(name: str) -> dict[str, str]:
    """The configuration on stdin under the name of the call."""
    given = _read()
    written = given.get(files.NAME, name)
    if written != name:
        note(f"name={written} is replaced by {name}")
    return given | {files.NAME: name}


def _read() -> dict[str, str]:
    try:
        return files.entries(sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        refuse(f"<stdin>: not UTF-8 at byte {error.start}")
    except ConfigError as error:
        refuse(str(error))


def _show_configuration(info: Mapping[str, Any], format_: Format | None) -> None:
    if chosen(format_) is Format.JSON:
        write(formats.as_json({key: info[key] for key in ("name", "config")}))
    else:
        write(formats.configuration(info))


def _show_status(said: Mapping[str, Any], format_: Format | None) -> None:
    show(said, format_, formats.status(said), lambda console: formats.show_status(said, console))


def _show_task(said: Mapping[str, Any], format_: Format | None) -> None:
    states = [(f"task {said['id']}", said)]
    show(said, format_, formats.task_status(said), lambda console: formats.show_states(states, console))

"""The commands of the old connect-cli, and Connect's newer operations."""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from isotherm.cli.connect import formats
from isotherm.cli.connect.rest import Connect
from isotherm.cli.connect.session import (
    ClassArgument,
    NameArgument,
    TaskArgument,
    chosen_format,
    connected,
    show,
)
from isotherm.cli.options import EndpointOption, Format, FormatOption
from isotherm.cli.output import note, refuse, write
from isotherm.connector.config import files
from isotherm.connector.config.files import ConfigError
from isotherm.servicekit.exit_codes import Exit

_STATE_TIMEOUT_S = 10.0
_POLL_S = 0.2
# Keys that Connect accepts beside those of the class.
_FRAMEWORK_KEYS = ("name", "producer.override.", "consumer.override.", "admin.override.")


def ps(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connectors: names, or a table with states on a terminal."""
    with connected(endpoint) as connect:
        match chosen_format(format_):
            case Format.TABLE:
                formats.show_overview(connect.overview(), Console())
            case Format.JSON:
                write(formats.as_json(connect.overview()))
            case Format.PROPERTIES:
                write("".join(f"{name}\n" for name in connect.names()))


def get(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print a connector's configuration in the form that `create` reads."""
    with connected(endpoint) as connect:
        _show_configuration(connect.info(name), format_)


def rm(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Delete a connector."""
    with connected(endpoint) as connect:
        connect.delete(name)
    note(f"{name} deleted")


def create(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin (properties or JSON). An existing one is not changed."""
    given = _read_for(name)
    with connected(endpoint) as connect:
        made = connect.create(name, given)
        note(f"{name} created")
        _show_configuration(made, format_)


def run(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin, or update an existing one."""
    given = _read_for(name)
    with connected(endpoint) as connect:
        is_new, made = connect.put(name, given)
        note(f"{name} {'created' if is_new else 'updated'}")
        _show_configuration(made, format_)


def diff(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Compare a connector's configuration with the one on stdin. Exit code 1 when they differ."""
    given = _read_for(name)
    with connected(endpoint) as connect:
        lines = formats.differences(connect.info(name)["config"], given)
    write("".join(f"{line}\n" for line in lines))
    if lines:
        raise typer.Exit(Exit.FAILED)


def status(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the states of a connector and its tasks, with the exception of failed ones."""
    with connected(endpoint) as connect:
        _show_status(connect.status(name), format_)


def plugins(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connector classes."""
    with connected(endpoint) as connect:
        found = connect.plugins()
    names = "".join(f"{plugin['class']}\n" for plugin in found)
    show(found, format_, names, lambda console: formats.show_plugins(found, console))


def describe(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the configuration keys of a class. The properties format is a file to fill in."""
    with connected(endpoint) as connect:
        found = connect.definitions(class_)
    show(found, format_, formats.definitions(found), lambda console: formats.show_definitions(found, console))


def validate(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the problems of the configuration on stdin, one line each. Exit code 1 when there are any."""
    given = _read()
    given.setdefault(files.CLASS, class_)
    with connected(endpoint) as connect:
        validated = connect.validate(class_, given)
    known = [entry["definition"]["name"] for entry in validated["configs"]]
    for key in given:
        if key not in known and not key.startswith(_FRAMEWORK_KEYS):
            nearest = difflib.get_close_matches(key, known, n=1)
            note(f"{key} is not a key of this class" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    if chosen_format(format_) is Format.JSON:
        write(formats.as_json(validated))
    else:
        write("".join(f"{problem}\n" for problem in formats.problems(validated, given)))
    if validated["error_count"]:
        raise typer.Exit(Exit.FAILED)
    note("valid")


def restart(
    name: NameArgument,
    tasks: Annotated[bool, typer.Option("--tasks", help="Restart its tasks too.")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Restart only what has failed.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Restart a connector and print its status."""
    with connected(endpoint) as connect:
        connect.restart(name, include_tasks=tasks, only_failed=only_failed)
        _show_status(_wait_for_state(connect, name, "RUNNING"), format_)


def pause(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Pause a connector until it is resumed, and print its status."""
    _change_state(name, "pause", "PAUSED", endpoint, format_)


def resume(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Resume a paused or stopped connector and print its status."""
    _change_state(name, "resume", "RUNNING", endpoint, format_)


def stop(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Stop a connector, so that its offsets can be changed, and print its status."""
    _change_state(name, "stop", "STOPPED", endpoint, format_)


def task_ps(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List a connector's tasks: numbers, or a table with states on a terminal."""
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


offsets_app = typer.Typer(
    help="Read and change the committed offsets of a connector.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@offsets_app.command("get")
def offsets_get(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Print a connector's offsets as JSON, in the form that `offsets set` reads."""
    with connected(endpoint) as connect:
        write(formats.as_json(connect.offsets(name)))


@offsets_app.command("set")
def offsets_set(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Set the offsets of a stopped connector from stdin (JSON); null means a partition's beginning."""
    try:
        offsets = json.load(sys.stdin)
    except ValueError as error:
        refuse(f"offsets: not JSON: {error}")
    with connected(endpoint) as connect:
        note(connect.alter_offsets(name, offsets))


@offsets_app.command("reset")
def offsets_reset(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Delete the offsets of a stopped connector, so that it begins anew."""
    with connected(endpoint) as connect:
        note(connect.reset_offsets(name))


def _change_state(name: str, verb: str, target: str, endpoint: str | None, format_: Format | None) -> None:
    with connected(endpoint) as connect:
        connect.change_state(name, verb)
        _show_status(_wait_for_state(connect, name, target), format_)


def _wait_for_state(connect: Connect, name: str, state: str) -> Mapping[str, Any]:
    """Wait until connector and tasks have the state or have failed, or until the timeout; return the status."""
    deadline = time.monotonic() + _STATE_TIMEOUT_S
    while True:
        status: Mapping[str, Any] = connect.status(name)
        states = {of["state"] for of in (status["connector"], *status["tasks"])}
        if states <= {state, "FAILED"} or time.monotonic() >= deadline:
            return status
        time.sleep(_POLL_S)  # the REST API has no notifications


def _read_for(name: str) -> dict[str, str]:
    """Read the configuration on stdin, with the name of the call."""
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
    if chosen_format(format_) is Format.JSON:
        write(formats.as_json({key: info[key] for key in ("name", "config")}))
    else:
        write(formats.configuration(info))


def _show_status(found: Mapping[str, Any], format_: Format | None) -> None:
    show(found, format_, formats.status(found), lambda console: formats.show_status(found, console))


def _show_task(found: Mapping[str, Any], format_: Format | None) -> None:
    states = [(f"task {found['id']}", found)]
    show(found, format_, formats.task_status(found), lambda console: formats.show_states(states, console))

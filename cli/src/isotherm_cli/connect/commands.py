"""The commands of the old connect-cli, and Connect's newer verbs: properties on stdin and stdout, notes on stderr."""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from connector import config
from connector.config import ConfigError
from isotherm_cli import options
from isotherm_cli.connect import formats
from isotherm_cli.connect.formats import Format
from isotherm_cli.connect.rest import Connect, ConnectError, NotReachableError
from servicekit.lifecycle import Exit
from servicekit.settings import SettingsError

_PANEL = "Connectors, over Kafka Connect's REST API"
_SETTLES_IN_S = 10.0
_POLL_S = 0.2
# Keys that Connect takes beside those of the class.
_OF_THE_FRAMEWORK = ("name", "producer.override.", "consumer.override.", "admin.override.")


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    try:
        with Connect(options.connect_settings(context.params.get("endpoint"))) as connect:
            names = connect.names()
    except (ConnectError, NotReachableError, SettingsError):
        return []
    return [name for name in names if name.startswith(incomplete)]


NameArgument = Annotated[str, typer.Argument(help="The connector's name.", autocompletion=_complete_name)]
TaskArgument = Annotated[int, typer.Argument(help="The task's number.", min=0)]
ClassArgument = Annotated[str, typer.Argument(metavar="CLASS", help="A connector class, in full or its last part.")]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", "-e", metavar="URL", help="Kafka Connect's REST API; user:password@ is basic auth."),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        envvar="KAFKA_CONNECT_FORMAT",
        case_sensitive=False,
        help="Without: a table on a terminal, else properties.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the `isotherm` command."""
    for name, command in _COMMANDS.items():
        app.command(name, rich_help_panel=_PANEL)(command)
    app.add_typer(offsets_app, name="offsets", rich_help_panel=_PANEL)


def ps(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connectors: their names, on a terminal with their states."""
    with _connected(endpoint) as connect:
        match _chosen(format_):
            case Format.TABLE:
                formats.show_overview(connect.overview(), Console())
            case Format.JSON:
                _write(formats.as_json(connect.overview()))
            case Format.PROPERTIES:
                _write("".join(f"{name}\n" for name in connect.names()))


def get(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print a connector's configuration as `create` takes it."""
    with _connected(endpoint) as connect:
        _show_configuration(connect.info(name), format_)


def rm(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Delete a connector."""
    with _connected(endpoint) as connect:
        connect.delete(name)
    _note(f"{name} deleted")


def create(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin (properties or JSON). One that exists is left alone."""
    given = _given(name)
    with _connected(endpoint) as connect:
        made = connect.create(name, given)
        _note(f"{name} created")
        _show_configuration(made, format_)


def run(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Create a connector from its configuration on stdin, or give it this one if it exists."""
    given = _given(name)
    with _connected(endpoint) as connect:
        is_new, made = connect.put(name, given)
        _note(f"{name} {'created' if is_new else 'updated'}")
        _show_configuration(made, format_)


def diff(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Compare a connector's configuration with the one on stdin. Exit code 1 when they differ."""
    given = _given(name)
    with _connected(endpoint) as connect:
        lines = formats.differences(connect.info(name)["config"], given)
    _write("".join(f"{line}\n" for line in lines))
    if lines:
        raise typer.Exit(Exit.FAILED)


def status(name: NameArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the state of a connector and of its tasks, with the exception of each that failed."""
    with _connected(endpoint) as connect:
        _show_status(connect.status(name), format_)


def plugins(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the connector classes."""
    with _connected(endpoint) as connect:
        found = connect.plugins()
    names = "".join(f"{plugin['class']}\n" for plugin in found)
    _show(found, format_, names, lambda console: formats.show_plugins(found, console))


def describe(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print the configuration keys of a class; as properties it is a file to fill in."""
    with _connected(endpoint) as connect:
        found = connect.definitions(class_)
    _show(found, format_, formats.definitions(found), lambda console: formats.show_definitions(found, console))


def validate(class_: ClassArgument, endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """Print what is wrong with the configuration on stdin, one line for each problem. Exit code 1 when something is."""
    given = _read()
    given.setdefault(config.CLASS, class_)
    with _connected(endpoint) as connect:
        validated = connect.validate(class_, given)
    known = [entry["definition"]["name"] for entry in validated["configs"]]
    for key in given:
        if key not in known and not key.startswith(_OF_THE_FRAMEWORK):
            nearest = difflib.get_close_matches(key, known, n=1)
            _note(f"{key} is no key of this class" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    if _chosen(format_) is Format.JSON:
        _write(formats.as_json(validated))
    else:
        _write("".join(f"{problem}\n" for problem in formats.problems(validated, given)))
    if validated["error_count"]:
        raise typer.Exit(Exit.FAILED)
    _note("valid")


def restart(
    name: NameArgument,
    tasks: Annotated[bool, typer.Option("--tasks", help="Its tasks too.")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Only what has failed.")] = False,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Restart a connector and print its status."""
    with _connected(endpoint) as connect:
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
    with _connected(endpoint) as connect:
        tasks = connect.status(name)["tasks"]
    states = [(f"task {task['id']}", task) for task in tasks]
    numbers = "".join(f"{task['id']}\n" for task in tasks)
    _show(tasks, format_, numbers, lambda console: formats.show_states(states, console))


def task_status(
    name: NameArgument, task: TaskArgument, endpoint: EndpointOption = None, format_: FormatOption = None
) -> None:
    """Print the state of one task, with its exception if it failed."""
    with _connected(endpoint) as connect:
        _show_task(connect.task_status(name, task), format_)


def task_restart(
    name: NameArgument, task: TaskArgument, endpoint: EndpointOption = None, format_: FormatOption = None
) -> None:
    """Restart one task and print its state."""
    with _connected(endpoint) as connect:
        connect.restart_task(name, task)
        _show_task(connect.task_status(name, task), format_)


offsets_app = typer.Typer(help="Where a connector stands in its topics.", no_args_is_help=True)


@offsets_app.command("get")
def offsets_get(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Print a connector's offsets as JSON, as `offsets set` takes them."""
    with _connected(endpoint) as connect:
        _write(formats.as_json(connect.offsets(name)))


@offsets_app.command("set")
def offsets_set(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Put a stopped connector to the offsets on stdin (JSON); null puts a partition back to its beginning."""
    try:
        wanted = json.load(sys.stdin)
    except ValueError as error:
        _refuse(f"offsets: not JSON: {error}")
    with _connected(endpoint) as connect:
        _note(connect.alter_offsets(name, wanted))


@offsets_app.command("reset")
def offsets_reset(name: NameArgument, endpoint: EndpointOption = None) -> None:
    """Put a stopped connector back to its beginning."""
    with _connected(endpoint) as connect:
        _note(connect.reset_offsets(name))


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


@contextmanager
def _connected(endpoint: str | None) -> Iterator[Connect]:
    settings = options.connect_settings(endpoint)
    try:
        with Connect(settings) as connect:
            yield connect
    except (ConnectError, NotReachableError) as error:
        _note(str(error))
        raise typer.Exit(Exit.FAILED) from None


def _change_state(name: str, verb: str, target: str, endpoint: str | None, format_: Format | None) -> None:
    with _connected(endpoint) as connect:
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
    written = given.get(config.NAME, name)
    if written != name:
        _note(f"name={written} is replaced by {name}")
    return given | {config.NAME: name}


def _read() -> dict[str, str]:
    try:
        return config.entries(sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        _refuse(f"<stdin>: not UTF-8 at byte {error.start}")
    except ConfigError as error:
        _refuse(str(error))


def _chosen(format_: Format | None) -> Format:
    return format_ or (Format.TABLE if sys.stdout.isatty() else Format.PROPERTIES)


def _show_configuration(info: Mapping[str, Any], format_: Format | None) -> None:
    if _chosen(format_) is Format.JSON:
        _write(formats.as_json({key: info[key] for key in ("name", "config")}))
    else:
        _write(formats.configuration(info))


def _show_status(said: Mapping[str, Any], format_: Format | None) -> None:
    _show(said, format_, formats.status(said), lambda console: formats.show_status(said, console))


def _show_task(said: Mapping[str, Any], format_: Format | None) -> None:
    states = [(f"task {said['id']}", said)]
    _show(said, format_, formats.task_status(said), lambda console: formats.show_states(states, console))


def _show(value: Any, format_: Format | None, text: str, table: Callable[[Console], None]) -> None:
    """The answer itself as JSON, or what stands for it in a pipe or on a terminal."""
    match _chosen(format_):
        case Format.TABLE:
            table(Console())
        case Format.JSON:
            _write(formats.as_json(value))
        case Format.PROPERTIES:
            _write(text)


def _write(text: str) -> None:
    typer.echo(text, nl=False)


def _note(text: str) -> None:
    for line in text.splitlines():
        typer.echo(f"isotherm: {line}", err=True)


def _refuse(text: str) -> NoReturn:
    _note(text)
    raise typer.Exit(Exit.CONFIGURATION)

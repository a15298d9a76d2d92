"""What the commands share: the connection, how answers are shown, what is said beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from isotherm.cli import options
from isotherm.cli.connect import formats
from isotherm.cli.connect.formats import Format
from isotherm.cli.connect.rest import Connect, ConnectError, NotReachableError
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import SettingsError


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    try:
        with Connect(options.connect_settings(_endpoint(context))) as connect:
            names = connect.names()
    except (ConnectError, NotReachableError, SettingsError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _endpoint(context: typer.Context) -> str | None:
    return context.params.get(_ENDPOINT) or context.find_root().params.get(_ENDPOINT)


NameArgument = Annotated[str, typer.Argument(help="The connector's name.", autocompletion=_complete_name)]
TaskArgument = Annotated[int, typer.Argument(help="The task's number.", min=0)]
ClassArgument = Annotated[str, typer.Argument(metavar="CLASS", help="A connector class, in full or its last part.")]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", "-e", metavar="URL", help="Kafka Connect's REST API; user:password@ is basic auth."),
]
_FORMAT_HELP = "Without: a table on a terminal, else properties."
FormatOption = Annotated[
    Format | None, typer.Option("--format", "-f", case_sensitive=False, help=f"{_FORMAT_HELP} [KAFKA_CONNECT_FORMAT]")
]
FormatBeforeOption = Annotated[
    Format | None,
    # Read here and not by each command, for which the variable would be stronger than the option before it.
    typer.Option("--format", "-f", envvar="KAFKA_CONNECT_FORMAT", case_sensitive=False, help=_FORMAT_HELP),
]
_ENDPOINT, _FORMAT = "endpoint", "format_"


def take_before(context: typer.Context, endpoint: str | None, format_: Format | None) -> None:
    """Let options that stand before the command (`isotherm -e URL ps`) hold for it, unless it has them itself.

    Raises typer.BadParameter for a command that knows no such option.
    """
    command = context.command
    assert isinstance(command, TyperGroup)
    invoked = command.commands.get(context.invoked_subcommand or "")
    for name, flag in ((_ENDPOINT, "-e"), (_FORMAT, "-f")):
        source = context.get_parameter_source(name)
        if invoked is not None and source is not None and source.name == "COMMANDLINE" and not _takes(invoked, name):
            raise typer.BadParameter(f"{invoked.name} has no such option", param_hint=flag)
    given = {_ENDPOINT: endpoint, _FORMAT: None if format_ is None else format_.value}
    context.default_map = _defaults(command, {name: value for name, value in given.items() if value is not None})


# Typer has no public name for what commands and groups have in common.
def _takes(command: Any, name: str) -> bool:
    below = command.commands.values() if isinstance(command, TyperGroup) else ()
    return any(one.name == name for one in command.params) or any(_takes(one, name) for one in below)


def _defaults(command: Any, given: dict[str, str]) -> dict[str, Any]:
    if not isinstance(command, TyperGroup):
        return given
    return {name: _defaults(one, given) for name, one in command.commands.items()}


@contextmanager
def connected(endpoint: str | None) -> Iterator[Connect]:
    """The console, or a worker of Kafka Connect; what it refuses is said, and is exit code 1."""
    settings = options.connect_settings(endpoint)
    try:
        with Connect(settings) as connect:
            yield connect
    except (ConnectError, NotReachableError) as error:
        note(str(error))
        raise typer.Exit(Exit.FAILED) from None


def chosen(format_: Format | None) -> Format:
    """The form of the answer: as asked, else a table on a terminal and properties in a pipe."""
    return format_ or (Format.TABLE if sys.stdout.isatty() else Format.PROPERTIES)


def show(value: Any, format_: Format | None, text: str, table: Callable[[Console], None]) -> None:
    """The answer itself as JSON, or what stands for it in a pipe or on a terminal."""
    match chosen(format_):
        case Format.TABLE:
            table(Console())
        case Format.JSON:
            write(formats.as_json(value))
        case Format.PROPERTIES:
            write(text)


def write(text: str) -> None:
    """Data, to stdout."""
    typer.echo(text, nl=False)


def note(text: str) -> None:
    """What a person should know, to stderr."""
    for line in text.splitlines():
        typer.echo(f"isotherm: {line}", err=True)


def refuse(text: str) -> NoReturn:
    """The call is wrong: say so and end with exit code 2."""
    note(text)
    raise typer.Exit(Exit.CONFIGURATION)

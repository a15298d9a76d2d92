"""What the commands share: the connection, how answers are shown, what is said beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from isotherm_cli import options
from isotherm_cli.connect import formats
from isotherm_cli.connect.formats import Format
from isotherm_cli.connect.rest import Connect, ConnectError, NotReachableError
from servicekit.lifecycle import Exit
from servicekit.settings import SettingsError


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

"""What the commands about connectors share: arguments, the connection, and how results are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from isotherm.cli.connect import formats
from isotherm.cli.connect.rest import Connect, ConnectError, ConnectNotReachableError
from isotherm.cli.options import Format
from isotherm.cli.output import fail, refuse, write
from isotherm.cli.settings import connect_settings, refuse_settings
from isotherm.servicekit.settings import SettingsError

_ENDPOINT = "endpoint"


def content_of(file: Path, most_bytes: int, *, is_stdin: bool = False) -> bytes:
    """Return what a file has, or stdin in its place; ends with exit code 2 if it cannot be read, or has more bytes."""
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else file.open("rb") as opened:
            content: bytes = opened.read(most_bytes + 1)
    except OSError as error:
        refuse(f"{file} cannot be read: {error.strerror}")
    if len(content) > most_bytes:
        refuse(f"{file} has more than {most_bytes} bytes")
    return content


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    try:
        with Connect(connect_settings(_endpoint(context))) as connect:
            names = connect.names()
    except (ConnectError, ConnectNotReachableError, SettingsError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _endpoint(context: typer.Context) -> str | None:
    return context.params.get(_ENDPOINT) or context.find_root().params.get(_ENDPOINT)


NameArgument = Annotated[str, typer.Argument(help="The connector's name.", autocompletion=_complete_name)]
TaskArgument = Annotated[int, typer.Argument(help="The task's number.", min=0)]
ClassArgument = Annotated[
    str, typer.Argument(metavar="CLASS", help="A connector class: its full name, or the last part of it.")
]


@contextmanager
def connected(endpoint: str | None) -> Iterator[Connect]:
    """Connect to the REST API of a console or of a Kafka Connect worker.

    Ends with exit code 1 when the server refuses a request or does not answer, and with 2 for invalid settings.
    """
    try:
        settings = connect_settings(endpoint)
    except SettingsError as error:
        refuse_settings(error)
    try:
        with Connect(settings) as connect:
            yield connect
    except (ConnectError, ConnectNotReachableError) as error:
        fail(str(error))


def chosen_format(format_: Format | None) -> Format:
    """Return the format: as chosen, else a table on a terminal and properties in a pipe."""
    return format_ or (Format.TABLE if sys.stdout.isatty() else Format.PROPERTIES)


def show(value: Any, format_: Format | None, text: str, table: Callable[[Console], None]) -> None:
    """Show a result as JSON of `value`, as `text` for properties, or with `table` on a terminal."""
    match chosen_format(format_):
        case Format.TABLE:
            table(Console())
        case Format.JSON:
            write(formats.as_json(value))
        case Format.PROPERTIES:
            write(text)

"""Output of the commands: data goes to stdout, notes go to stderr."""

from __future__ import annotations

from typing import NoReturn

import typer

from isotherm.servicekit.exit_codes import Exit


def write(text: str) -> None:
    """Write data to stdout."""
    typer.echo(text, nl=False)


def note(text: str) -> None:
    """Write notes for the user to stderr, one line each."""
    for line in text.splitlines():
        typer.echo(f"isotherm: {line}", err=True)


def refuse(text: str) -> NoReturn:
    """Note that the call is wrong, and end with exit code 2."""
    note(text)
    raise typer.Exit(Exit.CONFIGURATION)


def fail(text: str) -> NoReturn:
    """Note that the command has failed, and end with exit code 1."""
    note(text)
    raise typer.Exit(Exit.FAILED)

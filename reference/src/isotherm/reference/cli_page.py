"""The page of the command line: every command of `isotherm` with its arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from isotherm.cli.app import app
from isotherm.reference import markdown

_INTRODUCTION = """Data goes to stdout, notes go to stderr, and the exit code says whether a command succeeded. Options
that every command against the servers has can stand before the command too."""


def text() -> str:
    """The page."""
    return markdown.page("Command line", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    command = typer.main.get_command(app)
    yield from _of(command, typer.Context(command, info_name="isotherm"))


def _of(command: Any, context: typer.Context) -> Iterator[str]:
    if command.hidden:
        return
    yield from (f"## {context.command_path}", "", inspect.cleandoc(command.help or "").replace("\b\n", ""), "")
    parameters = [one for one in command.get_params(context) if getattr(one, "help", None) and not _is_help(one)]
    yield from ("```text", f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```", "")
    if parameters:
        yield from (*markdown.table(("option", "meaning"), map(_row, parameters)), "")
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _of(inner, typer.Context(inner, info_name=name, parent=context))


def _is_help(parameter: Any) -> bool:
    return parameter.name in ("help", "install_completion", "show_completion")


def _row(parameter: Any) -> tuple[str, str]:
    names = ", ".join(markdown.code(name) for name in [*parameter.opts, *parameter.secondary_opts])
    return names, str(getattr(parameter, "help", ""))

"""`isotherm kcql`: explain statements, and apply them to JSON records."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from isotherm import kcql
from isotherm.cli.lazy_group import LightCommand, LightGroup

REFUSED = 2
"""The exit code of an invalid statement."""

# A statement may begin with a comment, `-- ...`, which must not be parsed as an option.
_STATEMENT_MAY_BEGIN_WITH_DASHES = {"ignore_unknown_options": True}

app = typer.Typer(
    name="kcql",
    cls=LightGroup,
    help="Explain KCQL statements and try them on records.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command(cls=LightCommand, context_settings=_STATEMENT_MAY_BEGIN_WITH_DASHES)
def explain(
    statement: Annotated[
        str | None, typer.Argument(help="One or more statements, separated by `;`; from stdin when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each statement.")] = False,
) -> None:
    """Explain what KCQL statements do. Invalid ones are marked on stderr, and the exit code is 2."""
    _cache_grammar()
    try:
        statements = kcql.parse(_standard_input() if statement is None else statement)
    except kcql.KcqlError as error:
        if as_json:
            _print(_json({name: getattr(error, name) for name in ("message", "line", "column", "suggestion")}))
        _refuse(error)
    if as_json:
        _print(_json([kcql.explain_json(parsed) for parsed in statements], indent=2))
    else:
        _print("\n\n".join(kcql.explain_words(parsed) for parsed in statements))


@app.command(cls=LightCommand, context_settings=_STATEMENT_MAY_BEGIN_WITH_DASHES)
def project(
    statement: Annotated[str, typer.Argument(help="One or more statements, separated by `;`.")],
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="Each line holds key, value, headers, topic, partition, offset and timestamp."),
    ] = False,
) -> None:
    """Apply KCQL to JSON records from stdin, and print target, id and row, or the error, of each.

    One record a line. Exit code 2 when the statement is invalid, 0 otherwise.
    """
    _cache_grammar()
    try:
        outcomes = kcql.apply(statement, sys.stdin.buffer, envelope=envelope)
    except kcql.KcqlError as error:
        _refuse(error)
    for outcome in outcomes:
        _print(_json(outcome))


def _cache_grammar() -> None:
    """Keep the compiled grammar in the user's cache folder, where that is possible (XDG base directories)."""
    with suppress(OSError, RuntimeError):  # no writable folder, or no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotherm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        # The file is a pickle, so only this user may be able to write it.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            kcql.cache_grammar(folder / "kcql-grammar")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise kcql.KcqlError("the text is not UTF-8") from None


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _print(text: str, *, err: bool = False) -> None:
    # A lone surrogate, which JSON may contain as an escape, has no UTF-8 form; write the escape again.
    typer.echo(text.encode("utf-8", "backslashreplace"), err=err)


def _refuse(error: kcql.KcqlError) -> NoReturn:
    _print(str(error), err=True)
    raise typer.Exit(REFUSED)

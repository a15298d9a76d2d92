"""`isotherm kcql`: what a statement says, and what it would make of records."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

from isotherm.kcql import (
    KcqlError,
    apply,
    explain_json,
    explain_words,
    parse,
)

REFUSED = 2
"""The exit code of a statement that is no KCQL."""

# A statement may begin with a comment, `-- ...`, which must not be taken for an option.
_STATEMENT_MAY_BEGIN_WITH_DASHES = {"ignore_unknown_options": True}

app = typer.Typer(name="kcql", help="Explain KCQL statements and try them on records.", no_args_is_help=True)


@app.command(context_settings=_STATEMENT_MAY_BEGIN_WITH_DASHES)
def explain(
    statement: Annotated[
        str | None, typer.Argument(help="One or more statements, separated by `;`; from stdin when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, one object a statement.")] = False,
) -> None:
    """Say what KCQL statements will do. Exit code 2 when they are refused, with the place on stderr."""
    try:
        statements = parse(_standard_input() if statement is None else statement)
    except KcqlError as error:
        if as_json:
            _print(_json({name: getattr(error, name) for name in ("message", "line", "column", "suggestion")}))
        _refuse(error)
    if as_json:
        _print(_json([explain_json(parsed) for parsed in statements], indent=2))
    else:
        _print("\n\n".join(explain_words(parsed) for parsed in statements))


@app.command(context_settings=_STATEMENT_MAY_BEGIN_WITH_DASHES)
def project(
    statement: Annotated[str, typer.Argument(help="One or more statements, separated by `;`.")],
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="Each line holds key, value, headers, topic, partition, offset and timestamp."),
    ] = False,
) -> None:
    """Apply KCQL to JSON records from stdin, one a line: target, id and row, or the error, one a line.

    Exit code 2 when the statement is refused, 0 otherwise.
    """
    try:
        outcomes = apply(statement, sys.stdin.buffer, envelope=envelope)
    except KcqlError as error:
        _refuse(error)
    for outcome in outcomes:
        _print(_json(outcome))


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KcqlError("the text is not UTF-8") from None


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _print(text: str, *, err: bool = False) -> None:
    # A lone surrogate, which JSON may hold escaped, has no UTF-8: it is written as the escape that it came as.
    typer.echo(text.encode("utf-8", "backslashreplace"), err=err)


def _refuse(error: KcqlError) -> NoReturn:
    _print(str(error), err=True)
    raise typer.Exit(REFUSED)

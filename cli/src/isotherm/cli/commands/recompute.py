"""`isotherm recompute`."""

from __future__ import annotations

import os

import typer

from isotherm.cli.output import refuse
from isotherm.cli.recompute import AggregatorMissingError, aggregator_command


def recompute(context: typer.Context) -> None:
    """Correct published windows with late readings.

    Runs `isotherm-aggregator recompute`, which takes all options. For example: isotherm recompute --config
    aggregator.toml --from 2026-11-20 --to 2026-11-21 --dry-run
    """
    try:
        command = aggregator_command(context.args)
    except AggregatorMissingError as error:
        refuse(str(error))
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted

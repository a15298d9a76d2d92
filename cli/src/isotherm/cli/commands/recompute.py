"""`isotherm recompute`: the aggregator's own `recompute`, which needs Spark and the aggregator's settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from isotherm.cli.output import refuse

PROGRAM = "isotherm-aggregator"


class AggregatorMissingError(FileNotFoundError):
    """The aggregator is not installed on this machine."""


def aggregator_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of the aggregator that is installed beside this command or on PATH.

    Raises AggregatorMissingError.
    """
    beside = Path(sys.executable).parent
    found = shutil.which(PROGRAM, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise AggregatorMissingError(
            f"there is no command {PROGRAM!r} here: recompute runs where the aggregator is installed, in its image "
            f"as `{PROGRAM} recompute`"
        )
    return [found, "recompute", *arguments]


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

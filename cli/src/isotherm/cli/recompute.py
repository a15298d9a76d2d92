"""The command line of the aggregator's own `recompute`, which needs Spark and the aggregator's settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

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

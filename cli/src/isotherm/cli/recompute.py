"""`isotherm recompute`: hands over to the aggregator's own command, which needs Spark and its settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "isotherm-aggregator"


class AggregatorMissingError(FileNotFoundError):
    """The aggregator is not installed here."""


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of the aggregator beside this command, else on PATH. Raises AggregatorMissingError."""
    beside = Path(sys.executable).parent
    found = shutil.which(PROGRAM, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise AggregatorMissingError(
            f"there is no command {PROGRAM!r} here: recompute runs where the aggregator is installed, in its image "
            f"as `{PROGRAM} recompute`"
        )
    return [found, "recompute", *arguments]

"""`python -m isotherm.proofs`: one command a part."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isotherm.proofs.commands import command as commands_
from isotherm.proofs.faults import command as faults
from isotherm.proofs.history import command as history
from isotherm.proofs.tampering import command as tampering
from isotherm.proofs.worlds import command as worlds


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m isotherm.proofs", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for part in (commands_, faults, history, tampering, worlds):
        part.add_commands(commands)
    arguments = parser.parse_args(argv)
    code: int = arguments.go(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The commands about histories: `check` and `record`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from isotherm.proofs.history.checking.checker import check
from isotherm.proofs.history.format import HistoryError
from isotherm.proofs.history.report import lines_of

_CLEAN, _CONVICTED, _BAD_USAGE, _NOT_JUDGED = 0, 1, 2, 3


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands to those of `python -m isotherm.proofs`; each sets `go`, which returns the exit code."""
    checking = commands.add_parser(
        "check",
        help="judge a history",
        description="Judge a history. Exit code 0: clean; 1: findings; 2: no history; 3: not everything can be judged.",
    )
    checking.add_argument("history", type=Path, help="JSON Lines, as docs/reference/histories.md describes")
    checking.add_argument(
        "--shards", type=int, help="passes over the file; more need less memory (default: by its size)"
    )
    checking.set_defaults(go=_check)
    recording = commands.add_parser("record", help="run the demo, write its history, and judge it")
    recording.add_argument("history", type=Path, help="the file to write")
    recording.add_argument("--demo", type=Path, required=True, help="folder of the demo's data and logs, emptied first")
    recording.add_argument("--seconds", type=float, default=90.0, help="how long the simulators send (90)")
    recording.add_argument("--free-ports", action="store_true", help="any free ports in place of the usual ones")
    recording.set_defaults(go=_record, shards=None)


def _record(arguments: argparse.Namespace) -> int:
    # Its clients take a second to import.
    from isotherm.proofs.history.recording.demo_run import record_demo

    record_demo(arguments.demo, arguments.history, arguments.seconds, free_ports=arguments.free_ports)
    return _check(arguments)


def _check(arguments: argparse.Namespace) -> int:
    try:
        verdict = check(arguments.history, arguments.shards)
    except (HistoryError, OSError) as error:
        sys.stderr.write(f"{arguments.history}: {error}\n")
        return _BAD_USAGE
    for line in lines_of(verdict, arguments.history):
        print(line)
    if verdict.counts:
        return _CONVICTED
    return _CLEAN if verdict.clean else _NOT_JUDGED

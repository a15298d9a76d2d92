"""Results of runs that are kept as lines of a file: of what code one is, and how it is added."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Return the commit of the working tree, with + behind it where files differ; `unknown` outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def add_line(path: Path, line: str) -> None:
    """Add the line of a run, with its line break, to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)

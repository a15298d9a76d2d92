"""The committed inputs of the targets: one file each, one Python bytes literal a line."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[5] / "proofs" / "corpora"
MAX_BYTES = 60 * 1024
"""Maximum size of one target's file."""


def load(name: str) -> list[bytes]:
    """Return the inputs of a target; none if it has no file."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        return []
    return [ast.literal_eval(line) for line in path.read_text(encoding="ascii").splitlines()]


def save(name: str, inputs: Iterable[bytes]) -> None:
    """Write inputs, the shortest first, as long as the file stays below MAX_BYTES."""
    lines, size = [], 0
    for line in (f"{data!r}\n" for data in sorted(set(inputs), key=lambda data: (len(data), data))):
        size += len(line)
        if size > MAX_BYTES:
            break
        lines.append(line)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text("".join(lines), encoding="ascii")

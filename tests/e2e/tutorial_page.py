"""A tutorial page as a script: its commands as printed, and the output that the page shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "@@ end of step"


@dataclass(frozen=True)
class Step:
    """One block of commands, and the output that the page shows for it."""

    commands: str
    output: str | None
    """`...` stands for any text. None where the page shows nothing."""


def steps_of(page: str) -> list[Step]:
    """The blocks `bash` of a page, each with the block `text` that follows it directly."""
    blocks = [(kind, text) for kind, text in _FENCE.findall(page)]
    following: list[tuple[str, str]] = [*blocks[1:], ("", "")]
    return [
        Step(text, after if kind_after == "text" else None)
        for (kind, text), (kind_after, after) in zip(blocks, following, strict=True)
        if kind == "bash"
    ]


def run(steps: list[Step], folder: Path, environment: Mapping[str, str], timeout_s: float) -> list[str]:
    """Run all steps in one shell, as a reader does; what each of them printed, stderr included.

    The shell ends at the first command that fails: then fewer outputs come back than there are steps. What a step left
    running in the background is ended with the shell's process group.
    """
    script = "".join(f"{step.commands}\necho\necho '{_MARK}'\n" for step in steps)
    log = folder / "tutorial.log"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(timeout_s)
        finally:
            subprocess.run(["pkill", "-KILL", "--session", str(shell.pid)], check=False)
            shell.wait()
    return log.read_text(encoding="utf-8").split(f"\n{_MARK}\n")


def missing(step: Step, printed: str) -> str | None:
    """The difference of the printed text from the page; None when they agree."""
    if step.output is None:
        return None
    pattern = ".*?".join(re.escape(part) for part in step.output.strip().split("..."))
    return None if re.search(pattern, printed, re.DOTALL) else f"expected:\n{step.output}\nprinted:\n{printed}"


def links(root: Path, folder: Path, own: Iterator[str]) -> None:
    """Make `folder` a work tree of links to `root`, except for the entries that must be its own."""
    kept = set(own)
    for entry in root.iterdir():
        if entry.name not in kept:
            (folder / entry.name).symlink_to(entry)

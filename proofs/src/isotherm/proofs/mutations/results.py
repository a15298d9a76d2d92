"""docs/results/mutations.txt: the score of each core by commit, and the survivors of its last run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[5] / "docs" / "results" / "mutations.txt"
_TITLE = (
    "Mutation testing of the delivery cores (`make mutations`). score = killed / (mutants - equivalent), in percent.\n"
    'Below: the survivors of each core\'s last run, as file:line operator: change; "not run": no test runs the line.'
)
_HEAD = f"{'commit':<12}{'core':<24}{'mutants':>8}{'equivalent':>12}{'killed':>8}{'survived':>10}{'score':>8}"


class Row(NamedTuple):
    """One core's run at one commit."""

    commit: str
    core: str
    mutants: int
    equivalent: int
    survived: int

    @property
    def killed(self) -> int:
        """How many mutants a test noticed."""
        return self.mutants - self.equivalent - self.survived

    @property
    def score(self) -> float:
        """Percent of the mutants that can be noticed."""
        return 100.0 * self.killed / max(1, self.mutants - self.equivalent)

    def line(self) -> str:
        """Return the row of the table."""
        return (
            f"{self.commit:<12}{self.core:<24}{self.mutants:>8}{self.equivalent:>12}{self.killed:>8}"
            f"{self.survived:>10}{self.score:>8.1f}"
        )


def add(row: Row, survivors: list[str], file: Path = FILE) -> None:
    """Add a run, which replaces one of the same core at the same commit, and list its survivors."""
    rows, of_core = read(file)
    rows = [one for one in rows if one[:2] != row[:2]] + [row]
    of_core[row.core] = survivors
    last = {one.core: one for one in rows}.values()
    everything = Row("", "all, last run of each", *(sum(column) for column in list(zip(*last, strict=True))[2:]))
    parts = ["\n".join([_TITLE, "", _HEAD, *(one.line() for one in rows), everything.line()])]
    parts += ["\n".join([f"== {core} ==", *lines]) for core, lines in sorted(of_core.items())]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def read(file: Path = FILE) -> tuple[list[Row], dict[str, list[str]]]:
    """Return the runs, oldest first, and the survivors by core; nothing if there is no file."""
    if not file.exists():
        return [], {}
    _, table, *sections = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    rows = []
    for line in table.splitlines()[1:-1]:
        commit, core, mutants, equivalent, _killed, survived, _score = line.split()
        rows.append(Row(commit, core, int(mutants), int(equivalent), int(survived)))
    of_core = {}
    for section in sections:
        title, *lines = section.splitlines()
        of_core[title.strip("= ")] = lines
    return rows, of_core

"""The table of what was fuzzed: processor seconds, inputs and findings by target and commit, over all runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[5] / "docs" / "results" / "fuzzing.txt"
_TITLE = "Fuzzing: processor seconds, inputs and findings by commit and target, added up over all runs of `make fuzz`."


class Row(NamedTuple):
    """The runs of one target at one commit with one engine."""

    commit: str
    target: str
    engine: str
    cpu_s: float = 0.0
    inputs: int = 0
    findings: int = 0


def add(row: Row, file: Path = FILE) -> None:
    """Add a run to the file."""
    rows = {each[:3]: each for each in read(file)}
    before = rows.get(row[:3], row._replace(cpu_s=0.0, inputs=0, findings=0))
    rows[row[:3]] = row._replace(
        cpu_s=before.cpu_s + row.cpu_s, inputs=before.inputs + row.inputs, findings=before.findings + row.findings
    )
    file.write_text(_text(list(rows.values())), encoding="utf-8")


def read(file: Path = FILE) -> list[Row]:
    """Return the rows of the file; none if there is no file."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8").partition("\n\n")[2].partition("\n\n")[0].splitlines()[1:]:
        commit, target, engine, cpu_s, inputs, findings = line.split()
        rows.append(Row(commit, target, engine, float(cpu_s), int(inputs), int(findings)))
    return rows


def _text(rows: list[Row]) -> str:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.target] += row.cpu_s
    lines = [_TITLE, "", f"{'commit':<12}{'target':<22}{'engine':<10}{'cpu s':>10}{'inputs':>14}{'findings':>10}"]
    lines += [
        f"{row.commit:<12}{row.target:<22}{row.engine:<10}{row.cpu_s:>10.1f}{row.inputs:>14}{row.findings:>10}"
        for row in rows
    ]
    lines += ["", "Processor seconds by target, over all commits:"]
    lines += [f"{target:<34}{cpu_s:>20.1f}" for target, cpu_s in sorted(sums.items())]
    return "\n".join([*lines, f"{'all':<34}{sum(sums.values()):>20.1f}", ""])

"""The page of what each process costs, computed from the last measurement of the whole (`make bench-whole`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.reference import markdown

RESULTS = Path(__file__).parents[4] / "docs" / "results" / "bench-whole.txt"
HEADLINE_PER_S = 115_741
"""Ten billion readings a day."""
_SECTION = re.compile(r"^== .* ==$", re.MULTILINE)
_ABOUT = re.compile(r"^(commit|started|machine) {5,}(.*)$", re.MULTILINE)
_SECONDS = re.compile(r"^(\d+) s each", re.MULTILINE)
_LAG = re.compile(r"^([\d,]+) [\d.]+ s, ([\d,]+) [\d.]+ s, ([\d.]+) s$")
_CAME_IN, _SHARES, _LAGS = (
    "came in",
    "processor time, % of a core",
    "behind: records and seconds, first, last, most seconds",
)
_READERS: Mapping[str, Sequence[str]] = {
    "aggregator, windows": ("aggregator", "aggregator 2 (java)"),
    "isotherm-alerts": ("alerts",),
    "connect-readings-to-cassandra": ("persister-cassandra", "cassandra"),
}
"""The processes that work for what a consumer of readings reads; they did less where it fell behind."""
_LEFT_OUT = ("everything", "all ", "suite without", "the machine", "mqtt-devices", "coap-sensors")
"""Sums, and what plays the devices."""
_LEAST_SHARE = 0.5
_INTRODUCTION = """
The last measurement of the whole pipeline on one machine, from devices to stores and alerts, and what follows from it
for 115,741 readings/s. A process that reads readings is charged for those that it read: where it fell behind, for fewer
than came in. What else runs costs less than half a percent of a core. [Sizing](../explanation/sizing.md) has the steps
from here to a deployment, and what one process does alone.
""".strip().replace("\n", " ")


@dataclass
class Stage:
    """One load of a measurement."""

    asked: str
    came_in_per_s: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)
    """Percent of a core by process."""
    behind_per_s: dict[str, float] = field(default_factory=dict)
    """By consumer, how many more readings it was behind after each second."""
    most_behind_s: dict[str, float] = field(default_factory=dict)

    def handled_per_s(self, process: str) -> float:
        """Return how many readings the process worked for in a second."""
        behind = sum(rate for reader, rate in self.behind_per_s.items() if process in _READERS.get(reader, ()))
        return self.came_in_per_s - behind

    def us_of(self, process: str) -> float:
        """Return the processor time that a reading takes."""
        return self.shares[process] / 100 / self.handled_per_s(process) * 1_000_000


def stages(text: str) -> list[Stage]:
    """Return the loads of the last measurement in the results that measured readings."""
    last = _last_section(text)
    table = last[last.index("\nreadings/s\n") :]
    seconds = int(next(_SECONDS.finditer(last)).group(1))
    found = [Stage(asked) for asked in next(_rows(table, "readings/s"))[1]]
    for name, values in _rows(table, "readings/s"):
        if name == _CAME_IN:
            for stage, value in zip(found, values, strict=True):
                stage.came_in_per_s = _number(value)
    for name, values in _rows(table, _SHARES):
        for stage, value in zip(found, values, strict=True):
            if not name.startswith(_LEFT_OUT):
                stage.shares[name] = _number(value)
    for name, values in _rows(table, _LAGS):
        for stage, value in zip(found, values, strict=True):
            lag = _LAG.match(value)
            assert lag is not None, value
            stage.behind_per_s[name] = max(0.0, _number(lag[2]) - _number(lag[1])) / seconds
            stage.most_behind_s[name] = _number(lag[3])
    return found


def _last_section(text: str) -> str:
    return [one for one in _SECTION.split(text) if f"\n  {_CAME_IN} " in one][-1]


def text() -> str:
    """The whole page."""
    results = RESULTS.read_text(encoding="utf-8")
    measured = _ABOUT.findall(_last_section(results))
    lines = [", ".join(f"{name} {value}" for name, value in measured), ""]
    for stage in stages(results):
        of = "readings/s" if stage.asked[0].isdigit() else "readings"
        lines += [f"## {stage.asked} {of}", "", f"{stage.came_in_per_s:,.0f} readings/s came in.", ""]
        shown = sorted(one for one in stage.shares if stage.shares[one] >= _LEAST_SHARE)
        rows = [
            (
                process,
                f"{stage.shares[process]:.1f}",
                f"{stage.handled_per_s(process):,.0f}",
                f"{stage.us_of(process):.1f}",
                f"{stage.us_of(process) * HEADLINE_PER_S / 1_000_000:.1f}",
            )
            for process in shown
        ]
        total_us = sum(map(stage.us_of, shown))
        rows.append(("together", "", "", f"{total_us:.1f}", f"{total_us * HEADLINE_PER_S / 1_000_000:.1f}"))
        head = ("process", "% of a core", "readings/s that it worked for", "us a reading", "cores at 115,741/s")
        lines += [*markdown.table(head, rows), ""]
        behind = {
            name: most_s for name, most_s in stage.most_behind_s.items() if stage.behind_per_s[name] and most_s > 10
        }
        if behind:
            told = ", ".join(f"`{name}` {most_s:.0f} s" for name, most_s in sorted(behind.items()))
            lines += [f"It did not hold this rate: at the end these were behind and still falling back: {told}.", ""]
    return markdown.page("What the whole costs", _INTRODUCTION, lines)


def _rows(table: str, title: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and values of the rows below a title."""
    lines = iter(table.splitlines())
    for line in lines:
        if line == title:
            break
    for line in lines:
        if not line.startswith("  "):
            return
        name, *values = re.split(r"\s{2,}", line.strip())
        yield name, values


def _number(text: str) -> float:
    return float(text.replace(",", ""))

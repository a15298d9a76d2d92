"""The results of simulations, which accumulate in one file by world, commit and seeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_HEADER = (
    "Simulated hours by world, commit and seeds (`make simulate`). One seed always gives the same run on one commit.\n"
    "cpu_s is processor time. Faults are counted by kind, as drawn. `found` names the seeds that have a finding.\n"
)
_LINE = re.compile(
    r"^(?P<date>\S+) (?P<world>\S+) commit=(?P<commit>\S+) seeds=(?P<first>\d+)-(?P<last>\d+) hours=(?P<hours>\S+) "
    r"cpu_s=(?P<cpu_s>\S+) findings=(?P<findings>\d+) faults=(?P<faults>\S*)(?: found=(?P<found>\S+))?$"
)


@dataclass(frozen=True)
class Result:
    """What successive seeds of one world gave on one commit."""

    date: str
    world: str
    commit: str
    first: int
    last: int
    hours: float
    cpu_s: float
    findings: int
    faults: Counter[str] = field(default_factory=Counter)
    """How many faults there were, by kind."""
    found: tuple[int, ...] = ()
    """The seeds that have a finding."""

    def __str__(self) -> str:
        faults = ",".join(f"{kind}:{number}" for kind, number in sorted(self.faults.items()))
        found = f" found={','.join(map(str, self.found))}" if self.found else ""
        # The parts of a campaign are added to what is written, so a rounded hour would be lost again and again.
        return (
            f"{self.date} {self.world} commit={self.commit} seeds={self.first}-{self.last} hours={self.hours:.4f} "
            f"cpu_s={self.cpu_s:.1f} findings={self.findings} faults={faults}{found}"
        )

    def precedes(self, other: Result) -> bool:
        """Return whether the other is the same campaign's next part."""
        mine, its = (self.date, self.world, self.commit), (other.date, other.world, other.commit)
        return mine == its and self.last + 1 == other.first

    def joined(self, other: Result) -> Result:
        """Return both parts as one."""
        return replace(
            self,
            last=other.last,
            hours=self.hours + other.hours,
            cpu_s=self.cpu_s + other.cpu_s,
            findings=self.findings + other.findings,
            faults=self.faults + other.faults,
            found=self.found + other.found,
        )


def read(recorded: str) -> list[Result]:
    """Return the results in the text of the file."""
    found = []
    for match in filter(None, map(_LINE.match, recorded.splitlines())):
        counts = (one.split(":") for one in match["faults"].split(",") if one)
        found.append(
            Result(
                match["date"],
                match["world"],
                match["commit"],
                int(match["first"]),
                int(match["last"]),
                float(match["hours"]),
                float(match["cpu_s"]),
                int(match["findings"]),
                Counter({kind: int(number) for kind, number in counts}),
                tuple(map(int, match["found"].split(","))) if match["found"] else (),
            )
        )
    return found


def written(results: Sequence[Result]) -> str:
    """Return the text of the file."""
    worlds = sorted({one.world for one in results})
    totals = [("together", list(results)), *((name, [one for one in results if one.world == name]) for name in worlds)]
    lines = [
        f"{name}: {sum(one.hours for one in some):.1f} hours, {sum(one.faults.total() for one in some)} faults, "
        f"{sum(one.findings for one in some)} findings"
        for name, some in totals
    ]
    return "\n".join([_HEADER, *lines, "", *map(str, results), ""])


def added(recorded: str, result: Result) -> str:
    """Return the text with one result more; it extends the one that it continues."""
    results = read(recorded)
    for index, one in enumerate(results):
        if one.precedes(result):
            results[index] = one.joined(result)
            return written(results)
    return written([*results, result])


def next_seed(recorded: str, world: str) -> int:
    """Return the seed after the highest that the results have of this world."""
    return max((one.last + 1 for one in read(recorded) if one.world == world), default=0)

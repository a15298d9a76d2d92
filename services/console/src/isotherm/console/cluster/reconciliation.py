"""Whether every record that a task read has an outcome: read = written + dead-lettered + filtered + skipped + open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OUTCOMES = ("written", "dead_lettered", "filtered", "skipped")
_OPEN = "open"
"""Records that are read and not settled yet, of services that count them."""


@dataclass(frozen=True)
class Balance:
    """Records that were read, and what became of them."""

    read: int
    outcomes: Mapping[str, int]

    @property
    def missing(self) -> int:
        """Records without an outcome; negative when there are more outcomes than records."""
        return self.read - sum(self.outcomes.values())


def balance_of(counts: Mapping[str, int]) -> Balance | None:
    """The balance of a task's counts; None for a task that does not count what it read and wrote."""
    if "read" not in counts or "written" not in counts:
        return None
    names = (*OUTCOMES, _OPEN) if _OPEN in counts else OUTCOMES
    return Balance(counts["read"], {name: counts.get(name, 0) for name in names})


def total(balances: Iterable[Balance]) -> Balance:
    """All of them together."""
    read, outcomes = 0, dict.fromkeys(OUTCOMES, 0)
    for one in balances:
        read += one.read
        for name, count in one.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return Balance(read, outcomes)

"""The reconciliation report: read = written + dead-lettered + filtered + skipped + in flight, for each task. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OUTCOMES = ("written", "dead_lettered", "filtered", "skipped")
_OPEN = "open"
"""The count of records that are read and have no outcome yet, for services that report it."""


@dataclass(frozen=True)
class Reconciliation:
    """How many records were read, and how many have which outcome."""

    read: int
    outcomes: Mapping[str, int]

    @property
    def missing(self) -> int:
        """Records without an outcome; negative when there are more outcomes than records."""
        return self.read - sum(self.outcomes.values())


def reconcile(counts: Mapping[str, int]) -> Reconciliation | None:
    """Reconcile a task's counts; None for a task that does not report `read` and `written`."""
    if "read" not in counts or "written" not in counts:
        return None
    names = (*OUTCOMES, _OPEN) if _OPEN in counts else OUTCOMES
    return Reconciliation(counts["read"], {name: counts.get(name, 0) for name in names})


def total(reconciliations: Iterable[Reconciliation]) -> Reconciliation:
    """Add up the reconciliations of several tasks."""
    read, outcomes = 0, dict.fromkeys(OUTCOMES, 0)
    for one in reconciliations:
        read += one.read
        for name, count in one.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    return Reconciliation(read, outcomes)

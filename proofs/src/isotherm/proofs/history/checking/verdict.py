"""What the checker found: the findings, what it looked at, and what it could not judge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts

MOST_FINDINGS = 20
"""Findings of one anomaly that are kept; the others are counted."""


@dataclass(frozen=True)
class Finding:
    """One broken promise: what is wrong, and the lines of the events that show it."""

    anomaly: str
    what: str
    lines: tuple[int, ...]


@dataclass
class Verdict:
    """The result of one check of a history."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Findings by anomaly, those that are not kept included."""
    judged: Counter[str] = field(default_factory=Counter)
    """How many identities, windows, incidents or sums each anomaly's module compared."""
    unjudged: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Why an anomaly could not be judged, or not everywhere."""
    ambiguous: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What the promises leave open, so that nothing was compared; no reason against a clean verdict."""
    events: int = 0

    @property
    def clean(self) -> bool:
        """Whether everything could be judged and nothing was found; an empty history is not clean."""
        return not self.counts and not self.unjudged and bool(self.judged)


@dataclass(frozen=True)
class Report:
    """The part of a verdict that one anomaly's module writes."""

    verdict: Verdict
    anomaly: str

    def convict(self, what: str, *lines: int) -> None:
        """Add a finding, with the lines of the events that show it."""
        self.verdict.counts[self.anomaly] += 1
        if self.verdict.counts[self.anomaly] <= MOST_FINDINGS:
            self.verdict.findings.append(Finding(self.anomaly, what, tuple(line for line in lines if line)))

    def compared(self, number: int = 1) -> None:
        """Count what was compared."""
        self.verdict.judged[self.anomaly] += number

    def ambiguous(self, what: str) -> None:
        """Note something of which the promises allow several outcomes."""
        self.verdict.ambiguous[self.anomaly].append(what)

    def cannot(self, *reasons: str) -> bool:
        """Note why something cannot be judged; return whether there is a reason."""
        known = self.verdict.unjudged
        for reason in reasons:
            if reason not in known[self.anomaly]:
                known[self.anomaly].append(reason)
        return bool(reasons)


@dataclass(frozen=True)
class Anomaly:
    """A kind of broken promise, and the functions that look for it."""

    name: str
    promise: str
    of_keys: Callable[[Collection, RunFacts, Report], None] | None = None
    """Judges one shard of keys."""
    of_run: Callable[[RunFacts, Report], None] | None = None
    """Judges what concerns the whole run, after all shards."""

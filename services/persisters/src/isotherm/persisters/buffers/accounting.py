"""Exact counts of one partition: read = written + dead-lettered + skipped + filtered.

The metadata of the committed offset holds them. Kafka commits them together with the position, so they always match it
and survive `kill -9`. See docs/adr/0042.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

_VERSION = 1
_OUTCOMES = ("dead_lettered", "skipped", "filtered")


@dataclass
class Counts:
    """Cumulative numbers of a partition's records: how many were read, and their outcomes, some of them by reason."""

    read: int = 0
    """Counted when records are taken: `read` is then greater than `settled` if a record gets no outcome."""
    written: int = 0
    dead_lettered: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    """Offsets that were gone from the topic before they were read: an upper bound of records, none of them `read`."""

    @property
    def settled(self) -> int:
        """All records that have an outcome."""
        return self.written + sum(sum(getattr(self, outcome).values()) for outcome in _OUTCOMES)

    def add(self, other: Counts) -> None:
        """Add the numbers of `other`."""
        self.read += other.read
        self.written += other.written
        self.lost += other.lost
        for outcome in _OUTCOMES:
            getattr(self, outcome).update(getattr(other, outcome))

    def to_metadata(self) -> str:
        """Return the counts as the metadata of a committed offset."""
        by_reason = {outcome: dict(getattr(self, outcome)) for outcome in _OUTCOMES if getattr(self, outcome)}
        lost = {"lost": self.lost} if self.lost else {}
        return json.dumps(
            {"v": _VERSION, "read": self.read, "written": self.written, **by_reason, **lost}, separators=(",", ":")
        )

    @classmethod
    def from_metadata(cls, text: str | None) -> Counts:
        """Read the counts from a committed offset's metadata; zero if there are none or another program wrote it."""
        try:
            document = json.loads(text or "")
            if document["v"] != _VERSION:
                return cls()
            counters = [Counter(_whole_numbers(document.get(outcome, {}))) for outcome in _OUTCOMES]
            dead_lettered, skipped, filtered = counters
            counts = cls(0, int(document["written"]), dead_lettered, skipped, filtered)
            # Metadata of older versions has no `read`: it was equal to what is settled.
            counts.read = int(document.get("read", counts.settled))
            counts.lost = int(document.get("lost", 0))
            return counts
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()


def _whole_numbers(document: dict[str, object]) -> dict[str, int]:
    if not all(isinstance(count, int) for count in document.values()):
        raise TypeError("counts are whole numbers")
    return {reason: count for reason, count in document.items() if isinstance(count, int)}

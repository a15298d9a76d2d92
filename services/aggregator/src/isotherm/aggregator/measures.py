"""What the windows of a configuration hold beside the numbers that all windows have (ADR 0260). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

NUMBERS = ("count", "sum", "mean", "min", "max", "stddev")
"""The fields of TemperatureAggregate that every version of it has, without identity and revision."""


@dataclass(frozen=True)
class Measures:
    """What the windowed query computes of the readings of a window; a part of the checkpoint."""

    deduplicate: bool = False
    """Whether a reading counts once, however many copies of it the input has."""

    @property
    def schema_version(self) -> int:
        """Return the version of TemperatureAggregate that has the fields for it."""
        return 2 if self.deduplicate else 1

    @property
    def numbers(self) -> Sequence[str]:
        """Return the fields of a published row that merging it with another one needs."""
        return NUMBERS if self.schema_version == 1 else (*NUMBERS, "duplicates")

    @property
    def of_unique(self) -> Measures:
        """Return the same measures of readings that are there once already."""
        return replace(self, deduplicate=False)

    @property
    def reading_fields(self) -> Sequence[str]:
        """Return the fields of a reading that are decoded for it, beside those that every window needs."""
        return ("sequence",) if self.deduplicate else ()


PLAIN = Measures()
"""What windows hold when nothing is switched on."""

"""What the windows of a configuration hold beside the numbers that all windows have (ADR 0260, ADR 0261). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

NUMBERS = ("count", "sum", "mean", "min", "max", "stddev")
"""The fields of TemperatureAggregate that every version of it has, without identity and revision."""

_MERGED = (*NUMBERS, "duplicates", "histogram", "sketches")
_THOUSANDTHS_OF_ALL = 100_000


@dataclass(frozen=True)
class Percentile:
    """A percentile by its nearest rank: the smallest value that so many percent of the values do not exceed."""

    thousandths: int
    """In thousandths of a percent, so that ranks are computed in whole numbers."""

    @classmethod
    def of(cls, percent: float) -> Percentile:
        """Return the percentile of a number of percent, which has at most three decimals."""
        return cls(round(percent * 1000))

    @property
    def name(self) -> str:
        """Return its name in records: p50, p99_9. A dot would make an object of it in document stores."""
        return f"p{self.percent:.6g}".replace(".", "_")

    @property
    def percent(self) -> float:
        """Return it as a number of percent."""
        return self.thousandths / 1000

    @property
    def share(self) -> tuple[int, int]:
        """Return the share of the values as a fraction."""
        return self.thousandths, _THOUSANDTHS_OF_ALL


@dataclass(frozen=True)
class Measures:
    """What the windowed query computes of the readings of a window."""

    deduplicate: bool = False
    """Whether a reading counts once, however many copies of it the input has."""
    percentiles: tuple[Percentile, ...] = ()
    """They are read from the histogram of a row, so that they are no part of the checkpoint."""
    relative_error: float = 0.01
    """Of the histogram, which there is when there are percentiles."""
    distinct: tuple[str, ...] = ()
    """The fields of a reading whose distinct values are counted."""
    are_unique: bool = False
    """Whether the readings that are given have no copies any more."""

    @property
    def leaves_copies_out(self) -> bool:
        """Return whether copies among the given readings are to be left out."""
        return self.deduplicate and not self.are_unique

    @property
    def schema_version(self) -> int:
        """Return the version of TemperatureAggregate that has the fields for it."""
        return 2 if self.deduplicate or self.percentiles or self.distinct else 1

    @property
    def numbers(self) -> Sequence[str]:
        """Return the fields of a published row that merging it with another one needs."""
        return NUMBERS if self.schema_version == 1 else _MERGED

    @property
    def state(self) -> Mapping[str, object]:
        """Return what the state of the query depends on, by setting; empty when nothing is switched on."""
        return {
            # The state holds readings then, and not windows.
            **({"deduplicate": True} if self.deduplicate else {}),
            **({"percentile_relative_error": self.relative_error} if self.percentiles else {}),
            **({"distinct_counts": list(self.distinct)} if self.distinct else {}),
        }

    @property
    def reading_fields(self) -> Sequence[str]:
        """Return the fields of a reading that are decoded for it, beside those that every window needs."""
        fields = [*(["sequence"] if self.deduplicate else []), *(name.partition(".")[0] for name in self.distinct)]
        return tuple(dict.fromkeys(fields))

    @property
    def of_unique(self) -> Measures:
        """Return the same measures, of readings that have no copies any more."""
        return replace(self, are_unique=True)


PLAIN = Measures()
"""What windows hold when nothing is switched on."""

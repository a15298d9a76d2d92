"""Which dated indices are expired. Pure; see docs/adr/0043."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from string import Formatter
from typing import NamedTuple

from isotherm.kcql.dates import compile_pattern, epoch_ms

_UNITS = ("year", "month", "day", "hour", "minute", "second")
_STEPS = {unit: timedelta(**{f"{unit}s": 1}) for unit in _UNITS[2:]}
_ON_THEIR_WAY_MS = 3_600_000
"""Extra time of an index: records that were read just before they expired may still wait for the server."""


class ListedIndex(NamedTuple):
    """An index as the server lists it."""

    name: str
    is_open: bool


class ExpiredIndices(NamedTuple):
    """What one pass has to do; an index is closed in one pass and deleted in a later one."""

    close: list[str]
    delete: list[str]

    @property
    def expired(self) -> list[str]:
        """All expired indices."""
        return sorted([*self.close, *self.delete])


@dataclass(frozen=True)
class IndexSeries:
    """The dated indices of one statement: `base`, then `suffix` (`-{YYYY.MM.DD}`) filled with a time in UTC."""

    base: str
    suffix: str

    @property
    def unsuitable(self) -> str | None:
        """Why the age of an index cannot be read from its name; None if it can."""
        units = self._units
        if not units:
            return f"the suffix {self.suffix!r} has no date in it"
        if set(units) != set(_UNITS[: max(map(_UNITS.index, units)) + 1]):
            return f"the suffix {self.suffix!r} does not say which period an index is of; begin with the year"
        return None

    def end_ms(self, index: str) -> int | None:
        """Return the end of the period that `index` holds, in epoch milliseconds.

        Returns None for any other name, including one whose date does not exist.
        """
        found = self._regex.fullmatch(index)
        if found is None or self.unsuitable is not None:
            return None
        fields = dict.fromkeys(_UNITS[:3], 1) | dict(zip(self._units, map(int, found.groups()), strict=True))
        try:
            start = datetime(**fields, tzinfo=UTC)
            end = self._after(start)
        except (ValueError, OverflowError):
            return None
        # A unit may occur twice in a suffix: both must say the same.
        return epoch_ms(end) if self.base + self._template.format(start) == index else None

    def _after(self, start: datetime) -> datetime:
        smallest = max(self._units, key=_UNITS.index)
        if smallest == "year":
            return start.replace(year=start.year + 1)
        if smallest == "month":
            return (start + timedelta(days=31)).replace(day=1)
        return start + _STEPS[smallest]

    @property
    def _template(self) -> str:
        return compile_pattern(self.suffix).template

    @cached_property
    def _units(self) -> list[str]:
        return [place.removeprefix("0.") for _, place, _, _ in Formatter().parse(self._template) if place]

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        pieces = [re.escape(self.base)]
        for literal, place, width, _ in Formatter().parse(self._template):
            pieces.append(re.escape(literal))
            if place:
                pieces.append(f"([0-9]{{{int((width or '').rstrip('d'))}}})")
        return re.compile("".join(pieces))


def expired_indices(
    series: Sequence[IndexSeries], indices: Iterable[ListedIndex], *, now_ms: float, retention_ms: int
) -> ExpiredIndices:
    """Return the indices of `series` whose whole period is older than `retention_ms`: to close if open,
    else to delete.
    """
    expired = ExpiredIndices([], [])
    for index in sorted(indices):
        ends = [end for each in series if (end := each.end_ms(index.name)) is not None]
        if ends and max(ends) + retention_ms + _ON_THEIR_WAY_MS <= now_ms:
            (expired.close if index.is_open else expired.delete).append(index.name)
    return expired

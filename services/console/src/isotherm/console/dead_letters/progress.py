"""Which records of a dead-letter topic are handled, in the form in which a consumer group's commit stores it. Pure.

The group's offset says that all earlier records are handled; the commit's metadata names further ranges, as the
persisters keep their counts (docs/adr/0042).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

GROUP = "isotherm-dead-letters"
MAX_METADATA = 4_000
"""Characters; a broker accepts 4096 bytes by default (`offset.metadata.max.bytes`)."""
_DONE = re.compile(r"done=((?:\d+(?:-\d+)?)(?:,\d+(?:-\d+)?)*)?")


class TooScatteredError(Exception):
    """Too many separate ranges of records are handled to be stored in a commit's metadata."""


@dataclass(frozen=True)
class Progress:
    """The handled records of one partition: all before `position`, and those in `ranges` (both ends inclusive)."""

    position: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def is_handled(self, offset: int) -> bool:
        """Whether the record at `offset` is handled."""
        return offset < self.position or any(first <= offset <= last for first, last in self.ranges)

    def starting_at(self, low: int) -> Progress:
        """Return the progress of a partition whose first offset is `low`."""
        return self if low <= self.position else _progress(low, self.ranges)

    def with_handled(self, ranges: Iterable[tuple[int, int]]) -> Progress:
        """Return the progress with these ranges (both ends inclusive) handled too."""
        return _progress(self.position, (*self.ranges, *ranges))

    def metadata(self) -> str:
        """Return the commit's metadata. Raises TooScatteredError."""
        text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)
        if len(text) > MAX_METADATA:
            raise TooScatteredError(
                f"{len(self.ranges)} separate ranges of records are handled, more than a commit can store: "
                "replay or discard the oldest open records first"
            )
        return f"done={text}" if text else ""


def progress_of(position: int, metadata: str) -> Progress:
    """Read the progress of a commit. Metadata in another form is ignored."""
    found = _DONE.fullmatch(metadata)
    if not found or not found.group(1):
        return Progress(position)
    ends = [part.partition("-") for part in found.group(1).split(",")]
    return _progress(position, [(int(first), int(last or first)) for first, _, last in ends])


def _progress(position: int, ranges: Iterable[tuple[int, int]]) -> Progress:
    """Merge ranges that touch each other, and move the position over ranges that touch it."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if last < position:
            continue
        if first <= position:
            position = last + 1
        elif joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return Progress(position, tuple(joined))

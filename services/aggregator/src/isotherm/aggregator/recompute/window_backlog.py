"""Which late readings were read, and which of their windows are not corrected yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isotherm.aggregator.offsets import Partition


@dataclass
class _Part:
    """A stretch of the late topic that was read at once."""

    ends: Mapping[Partition, int]
    open_windows: dict[int, int]
    """How many of its readings wait for their correction, by the start of the window (epoch ms)."""


class WindowBacklog:
    """The late topic as far as it was read, and the windows that wait for their correction.

    A window waits until the windowed query has written it. Until then everything after its first late reading would be
    read again after a restart: a correction is the same whenever it is made, so that costs time and changes nothing.
    """

    def __init__(self, position: Mapping[Partition, int]) -> None:
        """`position` is where reading begins: the offset after the last one that is done, by partition."""
        self.read_to: Mapping[Partition, int] = dict(position)
        """The offset after the last record that was read, by partition."""
        self._parts: list[_Part] = []
        self._done = dict(position)

    def add(self, ends: Mapping[Partition, int], windows: Mapping[int, int]) -> None:
        """Record that the topic was read up to `ends`, and which windows (by start, epoch ms) have new readings."""
        self.read_to = dict(ends)
        self._parts.append(_Part(dict(ends), dict(windows)))
        self._drop_done()

    def waiting(self) -> frozenset[int]:
        """Return the starts of the windows (epoch ms) that wait for their correction."""
        return frozenset(start for part in self._parts for start in part.open_windows)

    def remove(self, starts_ms: Iterable[int]) -> int:
        """Forget windows that are corrected, or never will be; return how many readings waited in them."""
        readings = 0
        for start_ms in starts_ms:
            for part in self._parts:
                readings += part.open_windows.pop(start_ms, 0)
        self._drop_done()
        return readings

    @property
    def position(self) -> Mapping[Partition, int]:
        """The offset by partition up to which no window waits any more."""
        return dict(self._done)

    def _drop_done(self) -> None:
        while self._parts and not self._parts[0].open_windows:
            self._done = dict(self._parts.pop(0).ends)

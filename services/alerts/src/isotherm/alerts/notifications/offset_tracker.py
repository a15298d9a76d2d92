"""Which offsets of the alerts topic may be committed while alerts wait for their notification. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class OffsetTracker:
    """The records of each partition that were read and are not settled yet."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._open: dict[int, OrderedDict[int, None]] = {}
        self._committed: dict[int, int] = {}

    def start(self, positions: dict[int, int]) -> None:
        """Forget everything: these partitions are read from these offsets on, which are committed."""
        self._positions, self._committed = dict(positions), dict(positions)
        self._open = {number: OrderedDict() for number in positions}

    def read(self, partition: int, offset: int) -> bool:
        """Note a record that was read; return False for a partition that is not read any more."""
        if partition not in self._open:
            return False
        self._positions[partition] = offset + 1
        self._open[partition][offset] = None
        return True

    def settle(self, partition: int, offset: int) -> None:
        """Note that nothing is left to do for a record."""
        if partition in self._open:
            self._open[partition].pop(offset, None)

    @property
    def is_started(self) -> bool:
        """Whether there is any partition."""
        return bool(self._open)

    def read_until(self) -> dict[int, int]:
        """Return the offset behind the last record that was read, by partition."""
        return dict(self._positions)

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offsets that may be committed for some partitions."""
        return {number: next(iter(self._open[number]), self._positions[number]) for number in partitions}

    def to_commit(self) -> dict[int, int]:
        """Return, by partition, the offsets to commit that are not committed yet."""
        found = self.positions(self._open)
        return {number: offset for number, offset in found.items() if offset != self._committed[number]}

    def committed(self, offsets: dict[int, int]) -> None:
        """Note that offsets are committed."""
        self._committed.update(offsets)

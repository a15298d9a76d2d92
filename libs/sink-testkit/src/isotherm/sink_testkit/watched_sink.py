"""The sink under test as the loop gets it: every call goes through, and the kit sees which ones there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.api.sink import PartitionedSink, Sink, Unavailable


class WatchedSink:
    """Passes calls on to `sink`; after each write that returned it calls `on_written`."""

    def __init__(self, sink: Sink, on_written: Callable[[], None] = lambda: None) -> None:
        self._sink, self._on_written = sink, on_written
        self.opens = self.refused_opens = self.closes = 0
        self.misuses: list[str] = []
        """What the sink answered although the interface does not allow it."""

    def open(self) -> None:
        """Open the sink."""
        self.opens += 1
        try:
            self._sink.open()
        except Unavailable:
            self.refused_opens += 1
            raise

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write a batch."""
        failed = self._sink.write(batch)
        indices = [one.index for one in failed]
        if len(set(indices)) != len(indices) or not all(0 <= index < len(batch.rows) for index in indices):
            self.misuses.append(f"write answered with the indices {indices} for {len(batch.rows)} rows")
        self._on_written()
        return failed

    def close(self) -> None:
        """Close the sink."""
        self.closes += 1
        self._sink.close()

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Tell the sink, if it wants to know."""
        if isinstance(self._sink, PartitionedSink):
            self._sink.open_partitions(partitions)

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Tell the sink, if it wants to know."""
        if isinstance(self._sink, PartitionedSink):
            self._sink.close_partitions(partitions)

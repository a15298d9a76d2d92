"""The sink under test as the loop gets it: every call goes through, and the kit sees which ones there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.api.sink import BulkSink, PartitionedSink, Sink, Unavailable


class WatchedSink:
    """Passes calls on to `sink`; after each write that returned it calls `on_written`."""

    def __init__(self, sink: Sink, on_written: Callable[[], None] = lambda: None) -> None:
        self.watched = sink
        self._on_written = on_written
        self.opens = self.refused_opens = self.closes = 0
        self.misuses: list[str] = []
        """What the sink answered although the interface does not allow it."""

    def open(self) -> None:
        """Open the sink."""
        self.opens += 1
        try:
            self.watched.open()
        except Unavailable:
            self.refused_opens += 1
            raise

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write a batch."""
        failed = self.watched.write(batch)
        self._check(batch, failed)
        self._on_written()
        return failed

    def _check(self, batch: Batch, failed: Sequence[FailedRow]) -> None:
        indices = [one.index for one in failed]
        if len(set(indices)) != len(indices) or not all(0 <= index < len(batch.rows) for index in indices):
            self.misuses.append(f"write answered with the indices {indices} for {len(batch.rows)} rows")

    def close(self) -> None:
        """Close the sink."""
        self.closes += 1
        self.watched.close()

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Tell the sink, if it wants to know."""
        if isinstance(self.watched, PartitionedSink):
            self.watched.open_partitions(partitions)

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Tell the sink, if it wants to know."""
        if isinstance(self.watched, PartitionedSink):
            self.watched.close_partitions(partitions)


class WatchedBulkSink(WatchedSink):
    """Passes the writes of several partitions on as well."""

    def __init__(self, sink: BulkSink, on_written: Callable[[], None]) -> None:
        super().__init__(sink, on_written)
        self._bulk_sink = sink

    def write_bulk(self, batches: Sequence[Batch]) -> Sequence[Sequence[FailedRow]]:
        """Write several batches."""
        answers = self._bulk_sink.write_bulk(batches)
        if len(answers) != len(batches):
            self.misuses.append(f"write_bulk answered {len(answers)} times for {len(batches)} batches")
        for batch, failed in zip(batches, answers, strict=False):
            self._check(batch, failed)
        self._on_written()
        return answers


def watched(sink: Sink, on_written: Callable[[], None]) -> WatchedSink:
    """Return what watches the sink, with the methods that the sink has."""
    return WatchedBulkSink(sink, on_written) if isinstance(sink, BulkSink) else WatchedSink(sink, on_written)

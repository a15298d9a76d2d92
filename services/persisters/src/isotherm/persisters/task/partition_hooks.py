"""Tells a sink that keeps state for partitions which ones the task gets and gives up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from isotherm.persisters.api.sink import PartitionedSink, Sink
from isotherm.persisters.buffers.partition_buffer import Partition


class PartitionHooks:
    """Calls `open_partitions` and `close_partitions` of a sink that has them; for one thread, the loop's.

    A partition is opened once and closed once between two assignments, however the task loses it. Both methods take the
    task's failure so far and return it, or else what the sink raised.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink if isinstance(sink, PartitionedSink) else None
        self._open: set[Partition] = set()

    def open(self, partitions: Sequence[Partition], failure: BaseException | None) -> BaseException | None:
        """Tell of partitions that the task got, before the first write for them."""
        self._open.update(partitions)
        return failure if self._sink is None else _call(self._sink.open_partitions, partitions, failure)

    def close(self, partitions: Iterable[Partition], failure: BaseException | None) -> BaseException | None:
        """Tell of partitions that the task does not own any more."""
        closed = sorted(self._open.intersection(partitions))
        self._open.difference_update(closed)
        return failure if self._sink is None else _call(self._sink.close_partitions, closed, failure)


def _call(
    method: Callable[[Sequence[Partition]], None], partitions: Sequence[Partition], failure: BaseException | None
) -> BaseException | None:
    if partitions:
        try:
            method(partitions)
        except Exception as error:
            return failure or error
    return failure

"""A sink with state for partitions is told which ones the task has."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.persisters.api.row import Batch, FailedRow
from isotherm.persisters.task.partition_hooks import PartitionHooks

A, B = ("t", 0), ("t", 1)


class PlainSink:
    """A sink with the three methods only."""

    def open(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        return ()

    def close(self) -> None: ...


class NotedSink(PlainSink):
    """A sink that notes what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[tuple[str, list[tuple[str, int]]]] = []
        self._error = error

    def open_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        self._note("open", partitions)

    def close_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        self._note("close", partitions)

    def _note(self, what: str, partitions: Sequence[tuple[str, int]]) -> None:
        self.told.append((what, list(partitions)))
        if self._error is not None:
            raise self._error


def test_a_partition_is_opened_once_and_closed_once() -> None:
    sink = NotedSink()
    hooks = PartitionHooks(sink)
    assert hooks.open([A, B], None) is None
    assert hooks.close([A], None) is None
    hooks.close([A, B], None)
    hooks.close([A, B], None)
    assert hooks.open([A], None) is None
    assert sink.told == [("open", [A, B]), ("close", [A]), ("close", [B]), ("open", [A])]


def test_a_sink_without_the_methods_is_asked_nothing() -> None:
    hooks = PartitionHooks(PlainSink())
    assert hooks.open([A], None) is None
    assert hooks.close([A], None) is None


def test_what_a_sink_raises_stops_the_task_unless_something_did_before() -> None:
    error, earlier = RuntimeError("full"), ValueError("earlier")
    hooks = PartitionHooks(NotedSink(error))
    assert hooks.open([A], None) is error
    assert hooks.close([A], earlier) is earlier

"""A record as it came from Kafka, and what decoding and projection make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from isotherm.persisters.api.row import Row

RECORD_BYTES = 200
"""Flat rate of a record for everything but key and value, in bytes of memory."""


class Record(NamedTuple):
    """A record as it came from Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def size_bytes(self) -> int:
        """Memory that the record takes while it waits, in bytes: key, value, and a flat rate for everything else."""
        return RECORD_BYTES + len(self.key or b"") + len(self.value or b"")


class RecordRun(NamedTuple):
    """Records that follow each other in one partition."""

    records: Sequence[Record]
    sizes: Sequence[int]
    """The size of each, see `Record.size_bytes`."""


_partition_of: Callable[[Record], tuple[str, int]] = attrgetter("topic", "partition")


def runs_of(records: Sequence[Record]) -> list[RecordRun]:
    """Return records of any partitions as runs, in their order."""
    runs = [list(theirs) for _, theirs in groupby(records, _partition_of)]
    return [RecordRun(run, [record.size_bytes for record in run]) for run in runs]


class FailedRecord(NamedTuple):
    """A record that cannot be written, and why."""

    record: Record
    stage: str
    """Kafka Connect's name of the stage that failed: VALUE_CONVERTER, TRANSFORMATION, TASK_PUT..."""
    reason: str
    """One word, the label under which the record is counted."""
    error: Exception


class ProjectedRecord(NamedTuple):
    """What decoding and projection made of one record: rows, or the reason why it has none."""

    rows: Sequence[Row] = ()
    failed: FailedRecord | None = None
    filtered: str | None = None
    """One word, why the statements make no row of the record."""

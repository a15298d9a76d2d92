"""A record as it came from Kafka, and what decoding and projection make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.persisters.api.row import Row


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
        return 200 + len(self.key or b"") + len(self.value or b"")


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

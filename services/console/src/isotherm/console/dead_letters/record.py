"""A record of a dead-letter queue: what its headers say, which ones are copies, and the original to replay. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.connector.errors.dead_letters import PREFIX, DeadLetterRecord, Headers
from isotherm.console.records.record import NUMBER, Record, header_text

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of records that one response holds; a single record may be larger."""


@dataclass(frozen=True)
class QueuedRecord(Record):
    """One record of a dead-letter queue, as it was consumed."""

    def error_header(self, name: str) -> str:
        """Return the value of the header `__connect.errors.<name>`; empty if it is missing."""
        return next((header_text(value) for key, value in self.headers if key == PREFIX + name), "")

    @property
    def origin(self) -> tuple[str, int] | None:
        """Topic and partition of the original record; None if it was never in a topic, like a device's message."""
        topic, partition = self.error_header("topic"), self.error_header("partition")
        return (topic, int(partition)) if topic and NUMBER.fullmatch(partition) else None

    @property
    def failed_record(self) -> tuple[str, ...] | None:
        """Identity of the failed record, the same for all copies in the queue. None if headers are missing."""
        names = ("topic", "partition", "offset", "connector.name")
        found = tuple(self.error_header(name) for name in names)
        return found if all(found[:3]) else None

    @property
    def original_headers(self) -> Headers:
        """The headers of the original record."""
        return [(name, value) for name, value in self.headers if not name.startswith(PREFIX)]

    def original(self) -> DeadLetterRecord:
        """Return the original record to produce again: bytes, headers and timestamp."""
        return DeadLetterRecord(self.key, self.value, self.original_headers, self.timestamp_ms)


class OpenRecords(NamedTuple):
    """Some open (not yet handled) records, by partition and offset."""

    records: list[QueuedRecord]
    is_cut: bool
    """Whether there may be more records, because a limit of number or bytes was reached."""


class PendingRecord(NamedTuple):
    """A record to be handled."""

    record: QueuedRecord
    first: int
    """No other open record lies between this offset and the record."""


def take_first(records: Iterable[QueuedRecord], limit: int, max_bytes: int = MAX_BYTES) -> OpenRecords:
    """Take the first records, up to `limit` records or `max_bytes`, but at least one if there is one."""
    found: list[QueuedRecord] = []
    for record in records:
        found.append(record)
        max_bytes -= record.size_bytes
        if len(found) == limit or max_bytes <= 0:
            return OpenRecords(found, is_cut=True)
    return OpenRecords(found, is_cut=False)


def without_copies(records: Iterable[QueuedRecord], replayed: Collection[tuple[str, ...]]) -> list[QueuedRecord]:
    """Keep one record of each failed record that is not in `replayed`, and all records without an identity."""
    fresh: list[QueuedRecord] = []
    seen: set[tuple[str, ...]] = set()
    for record in records:
        identity = record.failed_record
        if identity is None or not (identity in seen or identity in replayed):
            fresh.append(record)
        if identity is not None:
            seen.add(identity)
    return fresh


def batches(
    entries: Iterable[PendingRecord], max_records: int, max_bytes: int = MAX_BYTES
) -> Iterator[list[PendingRecord]]:
    """Split entries into lists of at most `max_records` or `max_bytes`, with at least one entry each."""
    batch: list[PendingRecord] = []
    left_bytes = max_bytes
    for entry in entries:
        batch.append(entry)
        left_bytes -= entry.record.size_bytes
        if len(batch) == max_records or left_bytes <= 0:
            yield batch
            batch, left_bytes = [], max_bytes
    if batch:
        yield batch

"""Lets aiokafka hand fetched records over in parts, each of which Faust carries as one message (ADR 146).

aiokafka still fetches, decompresses, verifies and parses; only the object that it makes of each record, and Faust's
message and event for it, are left out. A part holds committed records of one partition in their order. What the
consumer's position becomes is what aiokafka's own reading would make of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult
from aiokafka.errors import CorruptRecordException
from faust.types import TP, ConsumerMessage

MAX_RECORDS = 5_000
"""Most records of a part, but for a larger record batch: so long the event loop does nothing else."""


class FetchedRecord(Protocol):
    """A record as aiokafka parses it."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def timestamp(self) -> int:
        """Epoch ms."""

    @property
    def timestamp_type(self) -> int:
        """1 for a time of the broker, 0 for one of the producer."""

    @property
    def key(self) -> bytes | None:
        """The key."""

    @property
    def value(self) -> bytes | None:
        """The value."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The headers."""


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Records that were fetched together from one partition, at least one."""

    records: Sequence[FetchedRecord]

    @property
    def offset(self) -> int:
        """The offset of the last record."""
        return self.records[-1].offset


def hand_over_parts(fetcher: Any) -> None:
    """Let what `fetcher`, aiokafka's, has fetched and nobody has read come in parts. It may be called again."""
    for result in fetcher._records.values():
        if type(result) is FetchResult and result.has_more():
            result._partition_records._records_iterator = parts(result._partition_records)


def parts(read: Any) -> Iterator[FetchedPart]:
    """Yield what `read`, aiokafka's PartitionRecords, has; as `PartitionRecords._unpack_records` of aiokafka 0.14.

    It moves `next_fetch_offset` behind what it has read. Raises CorruptRecordException.
    """
    waiting: list[FetchedRecord] = []
    while read._records.has_next():
        batch = read._records.next_batch()
        if read._check_crcs and not batch.validate_crc():
            raise CorruptRecordException(f"Invalid CRC - {read._tp}")
        if not _is_skipped(read, batch):
            records = list(batch)
            if records and records[0].offset < read.next_fetch_offset:
                # The consumer began amid a batch.
                records = [one for one in records if one.offset >= read.next_fetch_offset]
            waiting += records
        # The batch knows its last offset also when compaction has removed that record.
        read.next_fetch_offset = batch.next_offset
        if len(waiting) >= MAX_RECORDS:
            yield FetchedPart(waiting)
            waiting = []
    if waiting:
        yield FetchedPart(waiting)


def _is_skipped(read: Any, batch: Any) -> bool:
    """Return whether a record batch is a transaction's marker, or of an aborted transaction."""
    if read._isolation_level == READ_COMMITTED and batch.producer_id is not None:
        read._consume_aborted_up_to(batch.base_offset)
        if batch.is_control_batch and read._contains_abort_marker(batch):
            read._aborted_producers.discard(batch.producer_id)
        if batch.is_transactional and batch.producer_id in read._aborted_producers:
            return True
    return bool(batch.is_control_batch)


class InputRecord(NamedTuple):
    """A record of a part as the readings' converter takes it."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Epoch seconds, as in a message of Faust."""
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def input_record(tp: TP, record: FetchedRecord) -> InputRecord:
    """Return a record of a part with its partition."""
    return InputRecord(
        tp.topic,
        tp.partition,
        record.offset,
        record.timestamp / 1000,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
    )


def part_message(tp: TP, part: FetchedPart, generation_id: int) -> ConsumerMessage:
    """Return the message in which Faust carries a part: its value is the part, its offset that of the last record."""
    last = part.records[-1]
    carried: Any = part
    return ConsumerMessage(
        tp.topic,
        tp.partition,
        last.offset,
        last.timestamp / 1000,
        last.timestamp_type,
        None,
        None,
        carried,
        None,
        tp=tp,
        generation_id=generation_id,
    )

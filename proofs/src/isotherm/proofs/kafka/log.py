"""One partition's log: idempotent producers, transactions, the last stable offset, retention and compaction.

Source: Kafka's `ProducerStateManager` and `UnifiedLog`; KIP-98 (exactly once), KIP-890 part 1 (verified transactions).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.refusal import RefusedError

Headers = tuple[tuple[str, bytes | None], ...]

NO_PRODUCER = -1
_REMEMBERED_BATCHES = 5
"""How many batches of a producer the leader remembers, to recognise one that is sent again."""


class Payload(NamedTuple):
    """What a producer sends as one record."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0


class Batch(NamedTuple):
    """Records of one producer for one partition. Without a producer id it is not idempotent."""

    payloads: Sequence[Payload]
    producer_id: int = NO_PRODUCER
    epoch: int = 0
    sequence: int = 0
    """The producer's number of the first record."""
    is_transactional: bool = False


class StoredRecord(NamedTuple):
    """A record in the log, or the marker that ends a transaction."""

    offset: int
    payload: Payload
    producer_id: int = NO_PRODUCER
    is_transactional: bool = False
    is_marker: bool = False


@dataclass
class _Producer:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))
    """First and last number, and first offset, of the last batches."""


class PartitionLog:
    """The log of one partition, as its leader has it; a change of leader loses nothing (acks=all)."""

    def __init__(self, *, is_compacted: bool = False) -> None:
        """`is_compacted`: cleanup.policy=compact."""
        self.is_compacted = is_compacted
        self.leader_epoch = 0
        self.start = 0
        """The first offset that is left."""
        self.end = 0
        """The offset after the last record. All replicas have it, so it is the high watermark, too."""
        self.records: list[StoredRecord] = []
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        """By producer id, the first offset of its open transaction."""
        self._aborted: set[int] = set()
        self._waiting: list[Callable[[], None]] = []

    @property
    def last_stable_offset(self) -> int:
        """Where a read_committed reader has to stop: the first offset of an open transaction, or the end."""
        return min(self._open.values(), default=self.end)

    def has_open_transaction(self, producer_id: int) -> bool:
        """Whether the producer has written in a transaction that has no marker yet."""
        return producer_id in self._open

    def append(self, batch: Batch) -> int:
        """Append a batch and return its first offset; of a batch that is sent again, the offset that it has already.

        Raises RefusedError.
        """
        if batch.producer_id != NO_PRODUCER:
            known = self._check_sequence(batch)
            if known is not None:
                return known
        first = self.end
        for payload in batch.payloads:
            self.records.append(StoredRecord(self.end, payload, batch.producer_id, batch.is_transactional))
            self.end += 1
        if batch.is_transactional:
            self._open.setdefault(batch.producer_id, first)
        if batch.producer_id != NO_PRODUCER:
            last = batch.sequence + len(batch.payloads) - 1
            self._producers[batch.producer_id].batches.append((batch.sequence, last, first))
        self._tell_waiting()
        return first

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the next append or marker: this is how a fetch waits."""
        self._waiting.append(callback)

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _check_sequence(self, batch: Batch) -> int | None:
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            self._producers[batch.producer_id] = _Producer(batch.epoch)
            return None
        if batch.epoch < producer.epoch:
            raise RefusedError(KafkaError.INVALID_PRODUCER_EPOCH)
        if batch.epoch > producer.epoch:
            if batch.sequence:
                raise RefusedError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self._producers[batch.producer_id] = _Producer(batch.epoch)
            return None
        if not producer.batches:
            return None
        last = batch.sequence + len(batch.payloads) - 1
        for first_number, last_number, offset in producer.batches:
            if (first_number, last_number) == (batch.sequence, last):
                return offset
        newest = producer.batches[-1][1]
        if last <= newest:
            raise RefusedError(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
        if batch.sequence != newest + 1:
            raise RefusedError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def append_marker(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """End the producer's transaction in this partition. From here on, older epochs are refused."""
        first = self._open.pop(producer_id, None)
        if first is not None and not is_commit:
            begin = bisect_left(self.records, first, key=lambda one: one.offset)
            self._aborted.update(one.offset for one in self.records[begin:] if one.producer_id == producer_id)
        self.records.append(StoredRecord(self.end, Payload(None, None), producer_id, True, True))
        self.end += 1
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            self._producers[producer_id] = _Producer(epoch)
        self._tell_waiting()

    def read(self, offset: int, most: int, *, committed: bool = True) -> tuple[list[StoredRecord], int]:
        """Return at most `most` records from `offset` on, and the offset to go on from.

        With `committed`, records of open and aborted transactions are left out; markers always. Raises RefusedError.
        """
        if not self.start <= offset <= self.end:
            raise RefusedError(KafkaError.OFFSET_OUT_OF_RANGE)
        limit = self.last_stable_offset if committed else self.end
        found: list[StoredRecord] = []
        for index in range(bisect_left(self.records, offset, key=lambda one: one.offset), len(self.records)):
            record = self.records[index]
            if record.offset >= limit:
                break
            if len(found) == most:
                return found, record.offset
            if not record.is_marker and not (committed and record.offset in self._aborted):
                found.append(record)
        return found, max(offset, limit)

    def delete_before(self, offset: int) -> None:
        """Delete the records before `offset`, as retention does; never one of an open transaction."""
        offset = min(offset, self.last_stable_offset)
        if offset > self.start:
            self.start = offset
            del self.records[: bisect_left(self.records, offset, key=lambda one: one.offset)]

    def compact(self, before_ms: float = math.inf) -> None:
        """Keep the last record of each key below the last stable offset, as a compacted topic does some time.

        From the first record on that is not older than `before_ms`, nothing is removed (`min.compaction.lag.ms`).
        """
        young = (one.offset for one in self.records if not one.is_marker and one.payload.timestamp_ms >= before_ms)
        stable = min(self.last_stable_offset, next(young, self.end))
        newest = {
            one.payload.key: one.offset
            for one in self.records
            if one.offset < stable and not one.is_marker and one.offset not in self._aborted
        }
        self.records = [
            one for one in self.records if one.offset >= stable or newest.get(one.payload.key) == one.offset
        ]

"""What a consumer has fetched: positions, pauses, the queue of records and events. librdkafka's semantics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.cluster import Fetched
from isotherm.proofs.kafka.log import StoredRecord
from isotherm.proofs.kafka.refusal import RefusedError

BEGINNING, END = -2, -1
"""Logical offsets, as `confluent_kafka.OFFSET_BEGINNING` and `OFFSET_END`."""
_RETRY_MS = 100.0
_RECORDS_A_FETCH = 500
_QUEUED_RECORDS = 2_000
"""How many records of one partition wait for the application before its fetches pause."""


class PartitionEvent(NamedTuple):
    """The end of a partition, or an error of it, in the place of a record."""

    code: int
    offset: int


class Delivered(NamedTuple):
    """What the application gets: a record or an event of one partition."""

    partition: Partition
    content: StoredRecord | PartitionEvent


@dataclass
class Position:
    """One assigned partition."""

    offset: int
    """The next offset to fetch."""
    consumed: int
    """The offset after the last record that the application got."""
    is_paused: bool = False
    is_fetching: bool = False
    is_stopped: bool = False
    """Out of range: the application has to choose another position."""
    reported_end: int | None = None
    low: int = -1001
    high: int = -1001
    """The bounds that the last fetch told; negative before it."""
    version: int = 0
    """Answers and queued records of an older version are dropped."""
    queue: deque[StoredRecord | PartitionEvent] = field(default_factory=deque)


class Fetcher:
    """The assigned partitions of one consumer."""

    def __init__(
        self,
        connection: Connection,
        *,
        committed: bool,
        reports_ends: bool,
        reset: int | None,
        on_content: Callable[[], None],
        wait_ms: float = 10_000.0,
    ) -> None:
        """Fetch over `connection`.

        Args:
            connection: the client's.
            committed: whether it reads only committed transactions.
            reports_ends: `enable.partition.eof`.
            reset: where to go if the position is out of range, BEGINNING or END; None reports it.
            on_content: is called when something is there for the application.
            wait_ms: how long the broker holds a fetch that finds nothing.
        """
        self._connection = connection
        self._committed, self._reports_ends, self._reset = committed, reports_ends, reset
        self._on_content, self._wait_ms = on_content, wait_ms
        self.positions: dict[Partition, Position] = {}
        self.paused: set[Partition] = set()
        """Partitions stay paused when they are unassigned, until they are resumed."""
        self.stalled: set[Partition] = set()
        """Partitions that deliver nothing until they are assigned again: a fault of the client."""
        self._turn = 0

    def assign(self, partition: Partition, offset: int) -> None:
        """Read the partition from an offset or a logical offset."""
        version = self.positions[partition].version + 1 if partition in self.positions else 0
        self._turn += 1
        position = self.positions[partition] = Position(offset, offset, version=version + 1_000_000 * self._turn)
        position.is_paused = partition in self.paused
        self.stalled.discard(partition)
        self._fetch(partition)

    def unassign(self, partition: Partition) -> None:
        """Stop reading the partition, and drop what was fetched."""
        self.positions.pop(partition, None)

    def pause(self, partition: Partition) -> None:
        """Deliver nothing of the partition, and drop what was fetched."""
        self.paused.add(partition)
        position = self.positions.get(partition)
        if position is not None:
            self._start_again(position)
            position.is_paused = True

    def resume(self, partition: Partition) -> None:
        """Read the partition from where the application stopped."""
        self.paused.discard(partition)
        position = self.positions.get(partition)
        if position is not None and position.is_paused:
            self._start_again(position)
            position.is_paused = False
            self._fetch(partition)

    @staticmethod
    def _start_again(position: Position) -> None:
        position.version += 1
        position.offset, position.is_fetching = position.consumed, False
        position.queue.clear()

    def take(self) -> Delivered | None:
        """Return what the application gets next; partitions take turns."""
        filled = [partition for partition, position in self.positions.items() if position.queue]
        if not filled:
            return None
        self._turn += 1
        partition = filled[self._turn // 50 % len(filled)]
        position = self.positions[partition]
        content = position.queue.popleft()
        if isinstance(content, StoredRecord):
            position.consumed = content.offset + 1
        if len(position.queue) < _QUEUED_RECORDS // 2:
            self._fetch(partition)
        return Delivered(partition, content)

    def _fetch(self, partition: Partition) -> None:
        position = self.positions.get(partition)
        if position is None or position.is_fetching or position.is_paused or position.is_stopped:
            return
        if partition in self.stalled or len(position.queue) >= _QUEUED_RECORDS:
            return
        position.is_fetching = True
        version, offset, cluster = position.version, position.offset, self._connection.cluster
        # What is known already is waited for; a first fetch, and the end of a partition, are answered at once.
        is_new = position.high < 0 or (self._reports_ends and position.reported_end != offset)
        wait_ms = 0.0 if is_new else self._wait_ms

        def answered(result: object) -> None:
            if self.positions.get(partition) is position and position.version == version:
                position.is_fetching = False
                self._answered(partition, position, result)

        try:
            leader = cluster.leader_of(partition)
        except RefusedError:
            self._connection.host.call_later(1_000.0, lambda: answered(None))
            return
        self._connection.request(
            leader,
            lambda answer: self._ask(partition, offset, wait_ms, answer),
            answered,
            self._wait_ms + 5_000.0,
        )

    def _ask(self, partition: Partition, offset: int, wait_ms: float, answer: Callable[[object], None]) -> None:
        cluster = self._connection.cluster
        if offset in (BEGINNING, END):
            log = cluster.log_of(partition)
            end = log.last_stable_offset if self._committed else log.end
            answer(Fetched((), log.start if offset == BEGINNING else end, log.start, end, log.end))
            return
        cluster.fetch(partition, offset, _RECORDS_A_FETCH, committed=self._committed, wait_ms=wait_ms, answer=answer)

    def _answered(self, partition: Partition, position: Position, result: object) -> None:
        if isinstance(result, Fetched):
            position.low, position.high = result.start, result.end
            position.queue.extend(result.records)
            if position.offset < 0:
                position.consumed = result.go_on
            is_end = not result.records and result.go_on >= result.readable_end
            position.offset = result.go_on
            if is_end and self._reports_ends and position.reported_end != result.go_on:
                position.reported_end = result.go_on
                position.queue.append(PartitionEvent(KafkaError._PARTITION_EOF, result.go_on))
            if position.queue:
                self._on_content()
            self._fetch(partition)
        elif isinstance(result, RefusedError) and result.code == KafkaError.OFFSET_OUT_OF_RANGE:
            if self._reset is not None:
                position.offset = self._reset
                self._fetch(partition)
                return
            position.is_stopped = True
            position.queue.append(PartitionEvent(KafkaError._AUTO_OFFSET_RESET, position.offset))
            self._on_content()
        else:
            self._connection.host.call_later(_RETRY_MS, lambda: self._fetch(partition))

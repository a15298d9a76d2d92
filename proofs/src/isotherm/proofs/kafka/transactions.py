"""The transaction coordinator: fencing, the two phases of an end, time-outs. Transactions of version 1.

In version 1 a producer keeps its epoch from one transaction to the next, so that a delayed EndTxn can end the next
transaction of the same producer (KIP-890, what version 2 repairs). librdkafka 2 uses version 1.
Source: Kafka's `TransactionCoordinator` and `TransactionMetadata`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.log import NO_PRODUCER, PartitionLog
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kafka.timers import Cancel, Timers

Partition = tuple[str, int]
_MARKERS_MS = (0.5, 40.0)
"""Limits of the time between the decision and its markers."""


class _State(Enum):
    EMPTY = auto()
    ONGOING = auto()
    PREPARED = auto()
    """The outcome is decided; not all markers are written."""
    COMPLETE = auto()


@dataclass
class _Transaction:
    producer_id: int
    epoch: int
    timeout_ms: float
    state: _State = _State.EMPTY
    is_commit: bool = False
    """The outcome, from PREPARED on."""
    partitions: set[Partition] = field(default_factory=set)
    cancel_timeout: Cancel = lambda: None


class TransactionCoordinator:
    """All transactional ids of the cluster."""

    def __init__(self, timers: Timers, log_of: Callable[[Partition], PartitionLog]) -> None:
        self._timers, self._log_of = timers, log_of
        self._by_id: dict[str, _Transaction] = {}
        self._next_producer_id = 1_000
        self.away_code: int | None = None
        """What every request is refused with while the coordinator moves: NOT_COORDINATOR and the like."""

    def init_producer_id(self, transactional_id: str | None, timeout_ms: float = 60_000.0) -> tuple[int, int]:
        """Return a producer id and its epoch; the older producers of a transactional id are fenced.

        Raises RefusedError, with CONCURRENT_TRANSACTIONS until an open transaction is aborted.
        """
        self._check_here()
        if transactional_id is None:
            self._next_producer_id += 1
            return self._next_producer_id, 0
        found = self._by_id.get(transactional_id)
        if found is None:
            self._next_producer_id += 1
            found = self._by_id[transactional_id] = _Transaction(self._next_producer_id, 0, timeout_ms)
            return found.producer_id, found.epoch
        if found.state is _State.ONGOING:
            found.epoch += 1
            self._decide(transactional_id, found, is_commit=False)
        if found.state is _State.PREPARED:
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS)
        found.epoch += 1
        found.timeout_ms, found.state = timeout_ms, _State.EMPTY
        return found.producer_id, found.epoch

    def add_partitions(self, transactional_id: str, producer_id: int, epoch: int, partitions: set[Partition]) -> None:
        """Add partitions to the transaction, which this begins if none is open. Raises RefusedError."""
        found = self._checked(transactional_id, producer_id, epoch)
        if found.state is _State.PREPARED:
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS)
        if found.state is not _State.ONGOING:
            found.state, found.partitions = _State.ONGOING, set()
            found.cancel_timeout = self._timers.call_later(
                found.timeout_ms, lambda: self._time_out(transactional_id, found)
            )
        found.partitions |= partitions

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        """Decide the outcome of the open transaction; the markers follow. Raises RefusedError."""
        found = self._checked(transactional_id, producer_id, epoch)
        if found.state is _State.ONGOING:
            self._decide(transactional_id, found, is_commit=is_commit)
        elif found.state is _State.PREPARED:
            same = found.is_commit is is_commit
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS if same else KafkaError.INVALID_TXN_STATE)
        elif found.state is _State.EMPTY or found.is_commit is not is_commit:
            raise RefusedError(KafkaError.INVALID_TXN_STATE)

    def verify(self, producer_id: int, epoch: int, partition: Partition) -> None:
        """Check that the producer has added the partition to its open transaction. Raises RefusedError."""
        for found in self._by_id.values():
            if found.producer_id == producer_id:
                if epoch < found.epoch:
                    raise RefusedError(KafkaError.INVALID_PRODUCER_EPOCH)
                if found.state is _State.ONGOING and partition in found.partitions:
                    return
        raise RefusedError(KafkaError.INVALID_TXN_STATE)

    def _check_here(self) -> None:
        if self.away_code is not None:
            raise RefusedError(self.away_code)

    def _checked(self, transactional_id: str, producer_id: int, epoch: int) -> _Transaction:
        self._check_here()
        found = self._by_id.get(transactional_id)
        if found is None or NO_PRODUCER in (producer_id, found.producer_id) or producer_id != found.producer_id:
            raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if epoch != found.epoch:
            raise RefusedError(KafkaError.PRODUCER_FENCED)
        return found

    def _decide(self, transactional_id: str, found: _Transaction, *, is_commit: bool) -> None:
        found.state, found.is_commit = _State.PREPARED, is_commit
        found.cancel_timeout()
        self._timers.note("transaction", transactional_id, found.epoch, "commits" if is_commit else "aborts")
        # Each leader gets its marker by itself: for a while readers see a part of the transaction.
        for partition in sorted(found.partitions):
            delay_ms = self._timers.random.uniform(*_MARKERS_MS)
            self._timers.call_later(delay_ms, partial(self._write_marker, found, partition))

    def _write_marker(self, found: _Transaction, partition: Partition) -> None:
        self._log_of(partition).append_marker(found.producer_id, found.epoch, is_commit=found.is_commit)
        found.partitions.discard(partition)
        if not found.partitions:
            found.state = _State.COMPLETE

    def _time_out(self, transactional_id: str, found: _Transaction) -> None:
        if found.state is _State.ONGOING:
            found.epoch += 1
            self._decide(transactional_id, found, is_commit=False)

"""The cluster: topics with their logs and leaders, and the two coordinators."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.groups import GroupCoordinator
from isotherm.proofs.kafka.log import Batch, PartitionLog, StoredRecord
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kafka.timers import Timers
from isotherm.proofs.kafka.transactions import TransactionCoordinator

Partition = tuple[str, int]

NODES = 3


class Fetched(NamedTuple):
    """The answer to a fetch."""

    records: Sequence[StoredRecord]
    go_on: int
    """The offset to fetch next."""
    start: int
    readable_end: int
    """Where this reader has to stop for now."""
    end: int


class Cluster:
    """What the brokers hold together. Requests reach it through `network.Network`; they raise RefusedError."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._logs: dict[Partition, PartitionLog] = {}
        self._leaders: dict[Partition, int] = {}
        self.transactions = TransactionCoordinator(timers, self.log_of)
        self.groups = GroupCoordinator(timers, self.partition_counts)
        self.refuses: Callable[[Partition, Batch], int | None] = lambda _partition, _batch: None
        """Decides by records which batches the leader refuses for good: returns the code, or None."""

    def create_topic(self, topic: str, partitions: int = 1, *, is_compacted: bool = False) -> None:
        """Create a topic. Raises RefusedError."""
        if (topic, 0) in self._logs:
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS)
        for number in range(partitions):
            self._logs[topic, number] = PartitionLog(is_compacted=is_compacted)
            self._leaders[topic, number] = (len(self._logs) + number) % NODES

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with the groups' offsets of it."""
        for partition in [one for one in self._logs if one[0] == topic]:
            del self._logs[partition], self._leaders[partition]
        self.groups.forget_topic(topic)

    def partition_counts(self) -> Mapping[str, int]:
        """Return how many partitions each topic has."""
        counts: dict[str, int] = {}
        for topic, _ in self._logs:
            counts[topic] = counts.get(topic, 0) + 1
        return counts

    def log_of(self, partition: Partition) -> PartitionLog:
        """Return a partition's log. Raises RefusedError."""
        found = self._logs.get(partition)
        if found is None:
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def leader_of(self, partition: Partition) -> int:
        """Return the number of the broker that leads the partition. Raises RefusedError."""
        self.log_of(partition)
        return self._leaders[partition]

    def move_leader(self, partition: Partition) -> None:
        """Make the next broker the partition's leader, in the next leader epoch."""
        self._leaders[partition] = (self._leaders[partition] + 1) % NODES
        self._logs[partition].leader_epoch += 1

    def produce(self, partition: Partition, batch: Batch) -> int:
        """Append a batch and return its first offset. Raises RefusedError."""
        log = self.log_of(partition)
        code = self.refuses(partition, batch)
        if code is not None:
            raise RefusedError(code)
        if batch.is_transactional and not log.has_open_transaction(batch.producer_id):
            self.transactions.verify(batch.producer_id, batch.epoch, partition)
        return log.append(batch)

    def coordinator_of(self, name: str) -> int:
        """Return the number of the broker that coordinates a group or a transactional id."""
        return zlib.crc32(name.encode()) % NODES

    def fetch(
        self,
        partition: Partition,
        offset: int,
        most: int,
        *,
        committed: bool,
        wait_ms: float,
        answer: Callable[[object], None],
    ) -> None:
        """Answer with a Fetched, at the latest after `wait_ms` if there is nothing to read. Raises RefusedError."""
        log = self.log_of(partition)
        records, go_on = log.read(offset, most, committed=committed)
        if records or go_on > offset or wait_ms <= 0:
            answer(Fetched(records, go_on, log.start, log.last_stable_offset if committed else log.end, log.end))
            return
        asked_ms, is_over = self._timers.now_ms, False

        def again(is_late: bool) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            cancel()
            left_ms = 0.0 if is_late else wait_ms - (self._timers.now_ms - asked_ms)
            try:
                self.fetch(partition, offset, most, committed=committed, wait_ms=left_ms, answer=answer)
            except RefusedError as refused:
                answer(refused)

        cancel = self._timers.call_later(wait_ms, lambda: again(True))
        log.when_changed(lambda: again(False))

"""What librdkafka's idempotent producer does in its own threads: batches, sequence numbers, retries, time-outs.

It has one batch in flight for each partition, so that the order is that of `enqueue`. Source: librdkafka's
INTRODUCTION.md, "Idempotent Producer".
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.log import Batch, Payload
from isotherm.proofs.kafka.refusal import RefusedError

RETRIABLE = frozenset(
    (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
)
"""Codes after which the client repeats a request by itself."""
FENCED = frozenset((KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED))


class Report(NamedTuple):
    """How the delivery of one record ended."""

    partition: Partition
    payload: Payload
    offset: int
    """-1 if it is not known."""
    code: int | None
    """None if it is stored."""


OnReport = Callable[[Report], None]


class _Queued(NamedTuple):
    payload: Payload
    on_report: OnReport
    deadline_ms: float


@dataclass
class _PartitionQueue:
    waiting: deque[_Queued] = field(default_factory=deque)
    in_flight: list[_Queued] = field(default_factory=list)
    next_sequence: int = 0
    is_sending: bool = False
    version: int = 0
    """Answers of an older version are ignored: their records were purged."""


@dataclass(frozen=True)
class ProducerSettings:
    """A producer's properties; times in milliseconds."""

    linger_ms: float = 5.0
    delivery_timeout_ms: float = 30_000.0
    retry_backoff_ms: float = 100.0
    request_timeout_ms: float = 30_000.0
    most_queued: int = 100_000
    most_in_batch: int = 10_000


class ProducerQueue:
    """The records of one producer on their way to the brokers."""

    def __init__(self, connection: Connection, settings: ProducerSettings) -> None:
        self._connection, self.settings = connection, settings
        self._queues: dict[Partition, _PartitionQueue] = {}
        self.identity: tuple[int, int] | None = None
        """Producer id and epoch; nothing is sent before they are known."""
        self.is_transactional = False
        self._has_gap = False
        """Whether a record failed whose number the broker waits for. No new batch is sent then."""
        self.outstanding = 0
        """Records without a report."""
        self.fatal: int | None = None
        """The code of the error after which this producer can do nothing more."""
        self.on_gap: Callable[[], None] = lambda: None
        """Is called when a record failed whose number the broker waits for: the producer needs another epoch."""
        self.before_send: Callable[[Partition, Callable[[], None]], bool] = lambda _partition, _go_on: True
        """Whether a batch for the partition may be sent now; if not, it calls the function when it may."""

    def partition_for(self, topic: str, key: bytes | None) -> Partition:
        """Return the partition of a key, always the same one."""
        count = self._connection.cluster.partition_counts().get(topic, 1)
        number = self._connection.timers.random.randrange(count) if key is None else zlib.crc32(key) % count
        return topic, number

    def enqueue(self, partition: Partition, payload: Payload, on_report: OnReport) -> None:
        """Queue a record. Raises BufferError if there is no room."""
        if self.outstanding >= self.settings.most_queued:
            raise BufferError("Local: Queue full")
        self.outstanding += 1
        deadline_ms = self._connection.timers.now_ms + self.settings.delivery_timeout_ms
        queue = self._queues.setdefault(partition, _PartitionQueue())
        queue.waiting.append(_Queued(payload, on_report, deadline_ms))
        if self.settings.delivery_timeout_ms < math.inf:
            self._connection.host.call_later(self.settings.delivery_timeout_ms, lambda: self._expire(partition, queue))
        self._connection.host.call_later(self.settings.linger_ms, lambda: self._send(partition, queue))

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Number the records of each partition from 0 under this identity, and send them."""
        self.identity = producer_id, epoch
        for partition, queue in self._queues.items():
            queue.next_sequence = 0
            self._send(partition, queue)

    def fail(self, code: int) -> None:
        """End the producer: every record fails, also later ones."""
        self.fatal = self.fatal or code
        self.purge(code)

    def purge(self, code: int = KafkaError._PURGE_QUEUE) -> None:
        """Drop every record. Those in flight may have been stored."""
        for partition, queue in self._queues.items():
            # librdkafka need not report in the order of the records: what was never sent may come first.
            dropped = [*queue.waiting, *queue.in_flight]
            queue.in_flight, queue.is_sending = [], False
            queue.waiting.clear()
            queue.version += 1
            for one in dropped:
                self._report(partition, one, -1, code)
        if self.fatal is None:
            self._renew_identity()

    def _send(self, partition: Partition, queue: _PartitionQueue) -> None:
        if queue.is_sending or self.identity is None or self.fatal is not None:
            return
        if not queue.in_flight:
            if not queue.waiting or self._has_gap:
                return
            while queue.waiting and len(queue.in_flight) < self.settings.most_in_batch:
                queue.in_flight.append(queue.waiting.popleft())
        if not self.before_send(partition, lambda: self._send(partition, queue)):
            return
        queue.is_sending = True
        producer_id, epoch = self.identity
        payloads = [one.payload for one in queue.in_flight]
        batch = Batch(payloads, producer_id, epoch, queue.next_sequence, self.is_transactional)
        version, cluster = queue.version, self._connection.cluster

        def answered(result: object) -> None:
            if queue.version == version:
                queue.is_sending = False
                self._answered(partition, queue, result)

        try:
            leader = cluster.leader_of(partition)
        except RefusedError as refused:
            self._connection.host.call_later(1_000.0, lambda refused=refused: answered(refused))  # type: ignore[misc]
            return
        self._connection.request(
            leader,
            lambda answer: answer(cluster.produce(partition, batch)),
            answered,
            self.settings.request_timeout_ms,
        )

    def _answered(self, partition: Partition, queue: _PartitionQueue, result: object) -> None:
        if isinstance(result, int):
            self._settle(partition, queue, result, None)
        elif isinstance(result, RefusedError) and result.code == KafkaError.DUPLICATE_SEQUENCE_NUMBER:
            self._settle(partition, queue, -1, None)
        elif isinstance(result, RefusedError) and result.code in FENCED:
            self.fail(KafkaError._FENCED)
        elif isinstance(result, RefusedError) and result.code == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.fail(result.code)
        elif isinstance(result, RefusedError) and result.code not in RETRIABLE:
            self._settle(partition, queue, -1, result.code)
        elif queue.in_flight[0].deadline_ms <= self._connection.timers.now_ms:
            self._settle(partition, queue, -1, KafkaError._MSG_TIMED_OUT)
        else:
            self._connection.host.call_later(self.settings.retry_backoff_ms, lambda: self._send(partition, queue))

    def _settle(self, partition: Partition, queue: _PartitionQueue, first: int, code: int | None) -> None:
        settled, queue.in_flight = queue.in_flight, []
        queue.next_sequence += len(settled)
        if code is not None:
            # The broker may or may not have these records, so the numbers after them would not fit.
            self._has_gap = True
        self._renew_identity()
        for index, one in enumerate(settled):
            self._report(partition, one, first + index if first >= 0 else -1, code)
        self._send(partition, queue)

    def _renew_identity(self) -> None:
        """Ask for another identity after a gap, once nothing is in flight that would be stored twice under it."""
        if self._has_gap and not any(queue.in_flight for queue in self._queues.values()):
            self._has_gap, self.identity = False, None
            self.on_gap()

    def _expire(self, partition: Partition, queue: _PartitionQueue) -> None:
        now_ms = self._connection.timers.now_ms
        while queue.waiting and queue.waiting[0].deadline_ms <= now_ms:
            self._report(partition, queue.waiting.popleft(), -1, KafkaError._MSG_TIMED_OUT)
        if queue.in_flight and not queue.is_sending and queue.in_flight[0].deadline_ms <= now_ms:
            self._settle(partition, queue, -1, KafkaError._MSG_TIMED_OUT)

    def _report(self, partition: Partition, one: _Queued, offset: int, code: int | None) -> None:
        self.outstanding -= 1
        one.on_report(Report(partition, one.payload, offset, code))

"""confluent_kafka's Producer for simulated threads, over the model: idempotent, or transactional.

What it cannot do as librdkafka does is to be in several requests for one partition at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.fetcher import Delivered
from isotherm.proofs.kafka.clients.producing import FENCED, RETRIABLE, ProducerQueue, ProducerSettings, Report
from isotherm.proofs.kafka.clients.thread_clients import Caller, kafka_error, message_of
from isotherm.proofs.kafka.log import Payload, StoredRecord
from isotherm.proofs.kafka.network import BrokenError, Request, acknowledged
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kernel.simulation import Simulation, Thread

_MAX_RETRY_MS = 1_000.0

OnDelivery = Callable[[KafkaError | None, Any], None]


class Producer:
    """confluent_kafka.Producer, as far as the services use it."""

    def __init__(self, connection: Connection, run: Simulation, config: Mapping[str, Any]) -> None:
        """`config` is librdkafka's, with dots."""
        self._connection, self._run = connection, run
        self._caller = Caller(connection, run)
        self._transactional_id: str | None = config.get("transactional.id")
        self._transaction_timeout_ms = float(config.get("transaction.timeout.ms", 60_000))
        settings = ProducerSettings(
            linger_ms=float(config.get("linger.ms", 5)),
            # 0 is never.
            delivery_timeout_ms=float(config.get("delivery.timeout.ms", 300_000)) or math.inf,
            retry_backoff_ms=float(config.get("retry.backoff.ms", 100)),
            most_queued=int(config.get("queue.buffering.max.messages", 100_000)),
            most_in_batch=int(config.get("batch.num.messages", 10_000)),
        )
        self.queue = ProducerQueue(connection, settings)
        self.queue.on_gap = self._needs_identity
        self._reports: deque[tuple[OnDelivery | None, Report]] = deque()
        self._waiting: Thread | None = None
        self._is_open = False
        """Whether a transaction is open."""
        self._added: set[Partition] = set()
        self._after_adding: list[Callable[[], None]] = []
        """What goes on when the partition that is being added to the transaction is in it."""
        self._abortable: int | None = None
        """Why the open transaction can only be aborted."""
        if self._transactional_id is None:
            self._needs_identity()
        else:
            self.queue.is_transactional = True
            self.queue.before_send = self._add_partition

    def __len__(self) -> int:
        return self.queue.outstanding + len(self._reports)

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Sequence[tuple[str, str | bytes | None]] | None = None,
        callback: OnDelivery | None = None,
    ) -> None:
        """Queue a record. Raises BufferError, KafkaException."""
        self._caller.check()
        self._check_fatal()
        if self._transactional_id is not None and not self._is_open:
            raise KafkaException(kafka_error(KafkaError._STATE))
        raw_key = key.encode() if isinstance(key, str) else key
        payload = Payload(
            raw_key,
            value.encode() if isinstance(value, str) else value,
            tuple((name, one.encode() if isinstance(one, str) else one) for name, one in headers or ()),
            timestamp or int(self._run.epoch_ms()),
        )
        where = self.queue.partition_for(topic, raw_key) if partition < 0 else (topic, partition)
        report = on_delivery or callback
        self.queue.enqueue(where, payload, lambda found: self._reported(report, found))

    def poll(self, timeout: float = 0.0) -> int:
        """Call the callbacks of the reports that are there, after waiting up to `timeout` seconds for the first one."""
        self._caller.check()
        if not self._reports and timeout:
            self._wait(timeout * 1000)
        served = 0
        while self._reports:
            callback, report = self._reports.popleft()
            served += 1
            if callback is not None:
                error = None if report.code is None else kafka_error(report.code)
                offset = report.offset if report.offset >= 0 else -1001
                stored = StoredRecord(offset, report.payload)
                callback(error, message_of(Delivered(report.partition, stored)))
        if not timeout:
            self._run.yield_turn()
        return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until every record has its report; return how many have none."""
        deadline_ms = None if timeout < 0 else self._run.now_ms + timeout * 1000
        while len(self) and (deadline_ms is None or self._run.now_ms < deadline_ms):
            left_s = 1.0 if deadline_ms is None else max(0.0, deadline_ms - self._run.now_ms) / 1000
            self.poll(max(0.001, min(1.0, left_s)))
        return len(self)

    def purge(self, **_: object) -> None:
        """Drop all records."""
        self.queue.purge()

    def init_transactions(self, timeout: float = 60.0) -> None:
        """Fence the older producers of the transactional id. Raises KafkaException."""
        cluster, name = self._connection.cluster, str(self._transactional_id)
        found = self._retry(
            lambda answer: answer(cluster.transactions.init_producer_id(name, self._transaction_timeout_ms)), timeout
        )
        self._added.clear()
        self.queue.begin_epoch(*found)

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises KafkaException."""
        self._check_fatal()
        if self.queue.identity is None or self._is_open:
            raise KafkaException(kafka_error(KafkaError._STATE))
        self._is_open, self._abortable = True, None
        self._added.clear()

    def commit_transaction(self, timeout: float = 60.0) -> None:
        """Flush and commit. Raises KafkaException; after a time-out the outcome is unknown."""
        deadline_ms = self._run.now_ms + timeout * 1000
        if self.flush(timeout):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
        self._check_fatal()
        if self._abortable is not None:
            raise KafkaException(KafkaError(self._abortable, txn_requires_abort=True))
        self._end(True, max(0.001, (deadline_ms - self._run.now_ms) / 1000))

    def abort_transaction(self, timeout: float = 60.0) -> None:
        """Drop what is not sent, and abort. Raises KafkaException."""
        self._check_fatal()
        self.queue.purge()
        self.poll(0)
        self._end(False, timeout)

    def _end(self, is_commit: bool, timeout_s: float) -> None:
        if self._added:
            cluster, name = self._connection.cluster, str(self._transactional_id)
            producer_id, epoch = self.queue.identity or (-1, -1)
            ends = acknowledged(lambda: cluster.transactions.end(name, producer_id, epoch, is_commit=is_commit))
            self._retry(ends, timeout_s)
        self._is_open, self._abortable = False, None

    def _retry(self, request: Request, timeout_s: float) -> Any:
        """Send a request to the coordinator until it is answered. Raises KafkaException."""
        broker = self._connection.cluster.coordinator_of(str(self._transactional_id))
        deadline_ms = self._run.now_ms + timeout_s * 1000
        while (left_ms := deadline_ms - self._run.now_ms) > 0:
            try:
                return self._caller.call(broker, request, left_ms)
            except KafkaException as failure:
                code = failure.args[0].code()
                if code in FENCED:
                    self.queue.fail(KafkaError._FENCED)
                    raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True)) from failure
                if code not in RETRIABLE and code not in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                    raise
            self._run.wait(
                min(self.queue.settings.retry_backoff_ms * self._run.random.uniform(0.8, 1.2), _MAX_RETRY_MS)
            )
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))

    def _add_partition(self, partition: Partition, go_on: Callable[[], None]) -> bool:
        if partition in self._added:
            return True
        self._after_adding.append(go_on)
        if len(self._after_adding) > 1:
            return False
        cluster, name = self._connection.cluster, str(self._transactional_id)
        producer_id, epoch = self.queue.identity or (-1, -1)

        def answered(result: object) -> None:
            waiting, self._after_adding = self._after_adding, []
            if result is None:
                self._added.add(partition)
                for one in waiting:
                    one()
            elif isinstance(result, RefusedError) and result.code in FENCED:
                self.queue.fail(KafkaError._FENCED)
            elif isinstance(result, BrokenError) or (isinstance(result, RefusedError) and result.code in RETRIABLE):
                for one in waiting:
                    self._connection.host.call_later(self.queue.settings.retry_backoff_ms, one)
            elif isinstance(result, RefusedError):
                self._abortable = result.code
                self.queue.purge(result.code)

        self._connection.request(
            cluster.coordinator_of(name),
            acknowledged(lambda: cluster.transactions.add_partitions(name, producer_id, epoch, {partition})),
            answered,
        )
        return False

    def _needs_identity(self) -> None:
        """Ask for a producer id; a transactional producer gets one by `init_transactions` only."""
        if self._transactional_id is not None:
            self._abortable = self._abortable or KafkaError._INCONSISTENT
            return
        cluster = self._connection.cluster

        def answered(result: object) -> None:
            if isinstance(result, tuple):
                self.queue.begin_epoch(*result)
            elif self.queue.fatal is None:
                self._connection.host.call_later(self.queue.settings.retry_backoff_ms, self._needs_identity)

        self._connection.request(
            self._run.random.randrange(3),
            lambda answer: answer(cluster.transactions.init_producer_id(None)),
            answered,
        )

    def _reported(self, callback: OnDelivery | None, report: Report) -> None:
        if report.code is not None and self._is_open:
            self._abortable = self._abortable or report.code
        self._reports.append((callback, report))
        if self._waiting is not None:
            self._run.wake(self._waiting)

    def _wait(self, timeout_ms: float) -> None:
        self._waiting = self._run.current
        self._run.wait(timeout_ms)
        self._waiting = None

    def _check_fatal(self) -> None:
        if self.queue.fatal is not None:
            raise KafkaException(KafkaError(self.queue.fatal, fatal=True))

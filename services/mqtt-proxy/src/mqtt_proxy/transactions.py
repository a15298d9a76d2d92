"""The transactional producer: a thread that writes one batch at a time, and its feeder on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from enum import Enum, auto

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mqtt_proxy.grouping import Batch, Grouping, Outcome, OutRecord, Unit
from mqtt_proxy.metrics import Metrics
from mqtt_proxy.sessions import StoredState
from servicekit import logs
from servicekit.kafka import error_of
from servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_CALL_TIMEOUT_S = 5.0
_POLL_S = 0.05

RECORDS_AT_FAULT = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)
"""Errors that the same record would meet again."""


class FatalTransactionError(Exception):
    """The producer is fenced or broken for good: this process must end, its successor reads the truth from Kafka."""


class Written(Enum):
    """How a transaction ended."""

    COMMITTED = auto()
    ABORTED = auto()
    ABORTED_RECORD_AT_FAULT = auto()


class TransactionalWriter:
    """Writes batches of records, each in a transaction of its own. Blocks; used by one thread only."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._refused: KafkaError | None = None

    def open(self, stop: Stop) -> None:
        """Fence every predecessor with this transactional id and decide what it left open.

        Waits for Kafka until `stop`. Raises FatalTransactionError when it can never work.
        """
        while not stop.is_set():
            try:
                self._producer.init_transactions(_CALL_TIMEOUT_S)
            except KafkaException as failure:
                _raise_unless_retriable(failure)
                _log.warning("waiting for the transaction coordinator", reason=str(failure))
            else:
                return

    def write(self, records: Sequence[OutRecord]) -> Written:
        """Store all of `records` or none, and return when that is decided. Raises FatalTransactionError."""
        self._refused = None
        try:
            self._until_done(self._producer.begin_transaction)
            for record in records:
                self._produce(record)
            self._until_done(lambda: self._producer.commit_transaction(_CALL_TIMEOUT_S))
        except _AbortError as reason:
            return self._abort(reason, len(records))
        return Written.COMMITTED

    def _abort(self, reason: _AbortError, records: int) -> Written:
        self._until_done(lambda: self._producer.abort_transaction(_CALL_TIMEOUT_S))
        refused = self._refused
        _log.warning("transaction aborted", reason=str(refused or reason), records=records)
        if refused is not None and refused.code() in RECORDS_AT_FAULT:
            return Written.ABORTED_RECORD_AT_FAULT
        return Written.ABORTED

    def _produce(self, record: OutRecord) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,
                    on_delivery=self._on_delivery,
                )
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as failure:
                error = error_of(failure)
                if error is not None and error.fatal():
                    raise FatalTransactionError(str(failure)) from failure
                self._refused = self._refused or error
                raise _AbortError(str(failure)) from failure
            else:
                return

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        # The first error is the cause, unless a record was refused for its own sake; the rest is purged because of it.
        if error is not None and (self._refused is None or error.code() in RECORDS_AT_FAULT):
            self._refused = error

    def _until_done(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except KafkaException as failure:
                error = error_of(failure)
                if error is not None and error.txn_requires_abort():
                    raise _AbortError(str(failure)) from failure
                # The outcome is open: asking again is the only way to learn it.
                _raise_unless_retriable(failure)
            else:
                return


class _AbortError(Exception):
    """The transaction cannot commit any more."""


def _raise_unless_retriable(failure: KafkaException) -> None:
    error = error_of(failure)
    if error is None or not error.retriable():
        raise FatalTransactionError(str(failure)) from failure


class Transactions:
    """Collects units on the event loop, hands batches to the writer's thread and decides them.

    A first unit waits `linger_s` for others; while a batch is out, everything that comes forms the next one.
    `on_fatal` is called once, on the loop; nothing is decided any more then.
    """

    def __init__(
        self,
        writer: TransactionalWriter,
        *,
        executor: Executor,
        session_record: Callable[[str, StoredState | None], OutRecord],
        max_records: int,
        linger_s: float,
        metrics: Metrics,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.grouping = Grouping(max_records)
        self._writer = writer
        self._executor = executor
        self._session_record = session_record
        self._linger_s = linger_s
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, unit: Unit) -> None:
        """Have `unit` stored with the next batch."""
        self.grouping.add(unit)
        self._idle.clear()
        if self.grouping.is_deciding:
            return
        if self.grouping.is_full:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self._start)

    async def decide(self, unit: Unit) -> Outcome:
        """Submit `unit`, which must have no `on_decided` of its own use, and return its outcome."""
        decided: asyncio.Future[Outcome] = self._loop.create_future()
        unit.on_decided = lambda outcome: None if decided.done() else decided.set_result(outcome)
        self.submit(unit)
        return await decided

    async def drain(self) -> None:
        """Return when everything submitted is decided."""
        await self._idle.wait()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self.grouping.take()
        if batch is None:
            if not self.grouping.has_work:
                self._idle.set()
            return
        records = [record for unit in batch.units for record in unit.records]
        records += [self._session_record(client_id, state) for client_id, state in batch.changes()]
        if not records:
            # Only sessions that do not outlive their connection, and nothing to store: there is nothing to commit.
            self._loop.call_soon(self._decided, batch, Written.COMMITTED)
            return
        future = self._loop.run_in_executor(self._executor, self._writer.write, records)
        future.add_done_callback(lambda done: self._written(batch, done))

    def _written(self, batch: Batch, done: asyncio.Future[Written]) -> None:
        if done.cancelled():
            return
        failure = done.exception()
        if failure is not None:
            self._metrics.transactions["fatal"] += 1
            self._on_fatal(failure)
            return
        written = done.result()
        self._metrics.transactions["committed" if written is Written.COMMITTED else "aborted"] += 1
        self._decided(batch, written)

    def _decided(self, batch: Batch, written: Written) -> None:
        outcome = Outcome.COMMITTED if written is Written.COMMITTED else Outcome.ABORTED
        self.grouping.decided(batch, outcome, records_at_fault=written is Written.ABORTED_RECORD_AT_FAULT)
        self._start()

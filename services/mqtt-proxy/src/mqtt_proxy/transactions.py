"""The transactional producer: a thread that writes one batch at a time, and its feeder on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
"""Errors that say: somebody initialised our transactional id after us."""


class FatalTransactionError(Exception):
    """The producer is broken for good; what its last transaction did is known to Kafka only."""


class FencedError(FatalTransactionError):
    """Another process has our transactional id: this one must end, or each would fence the other for ever."""


class Written(Enum):
    """How a transaction ended."""

    COMMITTED = auto()
    ABORTED = auto()
    ABORTED_RECORD_AT_FAULT = auto()


class TransactionalWriter:
    """Writes batches of records, each in a transaction of its own. Blocks; used by one thread only.

    `make_producer` gives a producer whenever one is needed, always with the same transactional id; Kafka itself fences
    a producer whose transaction was open for `timeout_s`.
    """

    def __init__(self, make_producer: Callable[[], Producer], *, timeout_s: float) -> None:
        self._make_producer = make_producer
        self._timeout_s = timeout_s
        self._producer: Producer
        self._refused: KafkaError | None = None
        self._begun_s = time.monotonic()

    def open(self, stop: Stop) -> None:
        """Fence every predecessor with this transactional id, our own last producer too, and decide what it left open.

        Waits for Kafka until `stop`. Raises FatalTransactionError when it can never work.
        """
        self._producer = self._make_producer()
        while not stop.is_set():
            try:
                self._producer.init_transactions(_CALL_TIMEOUT_S)
            except KafkaException as failure:
                self._raise_unless_retriable(failure)
                _log.warning("waiting for the transaction coordinator", reason=str(failure))
            else:
                return

    def write(self, records: Sequence[OutRecord]) -> Written:
        """Store all of `records` or none, and return when that is decided. Raises FatalTransactionError."""
        self._refused = None
        self._begun_s = time.monotonic()
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
                    raise self._fatal(failure) from failure
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
                self._raise_unless_retriable(failure)
            else:
                return

    def _raise_unless_retriable(self, failure: KafkaException) -> None:
        error = error_of(failure)
        if error is None or not error.retriable():
            raise self._fatal(failure) from failure

    def _fatal(self, failure: KafkaException) -> FatalTransactionError:
        error = error_of(failure)
        if error is not None and error.code() in FENCED and time.monotonic() - self._begun_s < self._timeout_s:
            return FencedError(str(failure))
        return FatalTransactionError(str(failure))


class _AbortError(Exception):
    """The transaction cannot commit any more."""


def verdict(batch: Batch, stored: Mapping[str, StoredState]) -> Outcome:
    """How the transaction of `batch`, the last one of its producer, ended: judged by the session states in Kafka now.

    A transaction is whole or not at all, and nobody else writes the sessions that it changed: one of them tells of all.
    """
    for session, draft in batch.drafts.items():
        if draft != session.stored:
            return Outcome.COMMITTED if stored.get(session.client_id) == draft else Outcome.ABORTED
    return Outcome.UNKNOWN


class Transactions:
    """Collects units on the event loop, hands batches to the writer's thread and decides them.

    A first unit waits `linger_s` for others; while a batch is out, everything that comes forms the next one.
    When the producer breaks, `reopen` gives the writer a new one and returns the session states in Kafka, from which
    the broken transaction is decided. When that cannot be, `on_fatal` is called once and nothing is decided any more.
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
        reopen: Callable[[BaseException], Awaitable[Mapping[str, StoredState]]],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.grouping = Grouping(max_records)
        self._writer = writer
        self._executor = executor
        self._session_record = session_record
        self._linger_s = linger_s
        self._metrics = metrics
        self._reopen = reopen
        self._on_fatal = on_fatal
        self._recovery: asyncio.Task[None] | None = None
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
        if isinstance(failure, FatalTransactionError) and not isinstance(failure, FencedError):
            self._recovery = self._loop.create_task(self._recover(batch, failure))
            return
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

    async def _recover(self, batch: Batch, failure: BaseException) -> None:
        self._metrics.transactions["broken"] += 1
        try:
            stored = await self._reopen(failure)
        except FatalTransactionError as final:
            self._on_fatal(final)
            return
        outcome = verdict(batch, stored)
        _log.info("a new transactional producer goes on", units=len(batch.units), broken_transaction=outcome.name)
        self._metrics.recoveries += 1
        self.grouping.decided(batch, outcome)
        self._start()

"""Writes one batch after the other in Kafka transactions and learns how each one ended (ADR 0010, ADR 0016)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.servicekit import logs
from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_CALL_TIMEOUT_S = 5.0
_POLL_S = 0.05
_PAUSE_S = 0.5
_SURE_S = 2.0
"""So long after Kafka took something of this producer, another one is initialised without asking who has its id.

A standby takes over when it has heard no heartbeat for 12.5 s, and they come each 5 s (ADR 17): not earlier than 7.5 s
after a sign of life. An initialisation that Kafka has not answered is given up after 5 s of them.
"""

RETRY_BACKOFF_MS = 500
"""librdkafka's `retry.backoff.ms` of the transactional producer; no configuration may change it.

When a connection breaks, librdkafka sends an EndTxn again and reports success when the second one is answered. The
first one may still be on its way and would end the next transaction of this producer (jepsen.io, bufstream-0.1.0;
KIP-890). Only the time shows it: librdkafka waits this long, less 20 %, before each retry.
"""

_RETRIED_AFTER_S = RETRY_BACKOFF_MS / 1000 * 0.8 * 0.9
"""An EndTxn that takes this long may have been sent twice. A tenth is subtracted for the clocks."""

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
"""Errors that the same record would cause again."""

FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
"""Errors that mean that another producer initialised our transactional id after us."""


class FatalTransactionError(Exception):
    """The process cannot learn how its last transaction ended, or cannot write any more. It must end."""


class FencedError(FatalTransactionError):
    """Another process uses our transactional id. This one must end, or each would fence the other forever."""


class SuccessorUnknownError(Exception):
    """At present nobody tells whether another process has taken over the transactional id."""


class WriteResult(Enum):
    """How a transaction ended."""

    COMMITTED = auto()
    ABORTED = auto()
    ABORTED_RECORD_AT_FAULT = auto()


class TransactionalWriter:
    """Writes batches of records, each in a transaction of its own. Its methods block; one thread uses it.

    `make_producer` returns a producer, always with the same transactional id and with RETRY_BACKOFF_MS. Kafka fences a
    producer whose transaction is open for `timeout_s` seconds. An EndTxn without an answer within `end_timeout_s`
    seconds has an unknown outcome. `is_committed` returns for a topic, partition and offset whether a read_committed
    reader finds the record, and raises FatalTransactionError when Kafka cannot tell. The writer calls `on_replacing`
    with the reason when it gives up a producer, and `on_replaced` when the next one is ready; both in its thread.
    `find_successor` returns the name of a process that has taken over the transactional id, None for nobody; it raises
    SuccessorUnknownError while nobody tells. The writer calls `confirm` with a function that says when to give up
    waiting, after it initialised a producer and before it uses it: a process that another one has replaced does not
    come back from there.
    """

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        *,
        timeout_s: float,
        end_timeout_s: float = _CALL_TIMEOUT_S,
        is_committed: Callable[[str, int, int], bool],
        on_replacing: Callable[[str], None],
        on_replaced: Callable[[], None],
        find_successor: Callable[[], str | None] = lambda: None,
        confirm: Callable[[Callable[[], bool]], None] = lambda _is_over: None,
    ) -> None:
        self._make_producer = make_producer
        self._timeout_s = timeout_s
        self._end_timeout_s = end_timeout_s
        self._is_committed = is_committed
        self._on_replacing, self._on_replaced = on_replacing, on_replaced
        self._find_successor = find_successor
        self._confirm = confirm
        self._producer: Producer
        self._refused: KafkaError | None = None
        self._witness: tuple[str, int, int] | None = None
        self.stored: list[Message] = []
        """The records of the last `write`, as their delivery reports tell them; they count when it has committed."""
        self._begun_s = time.monotonic()
        self._given_up = threading.Event()

    @property
    def fault(self) -> str:
        """Kafka's reason for refusing a record in the last `write`; empty when it refused none."""
        return "" if self._refused is None else str(self._refused.str())

    def open(self, stop: Stop) -> None:
        """Fence every predecessor with this transactional id and decide the transaction that it left open.

        Waits for Kafka until `stop`. Raises FatalTransactionError for an error that does not pass.
        """
        self._producer = self._make_producer()
        while not stop.is_set() and not self._try_to_initialise(stop.is_set):
            pass

    def give_up(self) -> None:
        """Stop waiting for Kafka, because the process ends. Any thread may call this."""
        self._given_up.set()

    def is_given_up(self) -> bool:
        """Return whether `give_up` was called."""
        return self._given_up.is_set()

    def write(self, records: Sequence[ProducerRecord]) -> WriteResult:
        """Store all of `records` or none, and return when that is decided.

        When an EndTxn may still be on its way, this initialises another producer before it returns. That raises the
        epoch, so the broker refuses the late request. The last of `records` is the witness: when an EndTxn is not
        answered, the outcome is whether a reader finds the witness. Kafka must not delete or compact it meanwhile.
        Raises FatalTransactionError.
        """
        self._refused, self._witness, self.stored = None, None, []
        self._begun_s = time.monotonic()
        try:
            try:
                self._fill(records)
                self._end(self._producer.commit_transaction)
            except _AbortError as reason:
                return self._abort(reason, len(records))
        except _UnansweredError as reason:
            return self._decided_by_kafka(str(reason))
        except _LateAnswerError as reason:
            self._replace(str(reason))
        return WriteResult.COMMITTED

    def _fill(self, records: Sequence[ProducerRecord]) -> None:
        """Produce all records in an open transaction. Raises _AbortError when that fails."""
        try:
            with _as_kafka_exception():
                self._producer.begin_transaction()
                for record in records[:-1]:
                    self._produce(record, self._on_delivery)
                self._produce(records[-1], self._on_witness)
                # Flushed first, so that the commit takes as long as its EndTxn, and only a whole batch gets an EndTxn.
                while self._producer.flush(_CALL_TIMEOUT_S):
                    self._check_given_up()
        except KafkaException as failure:
            # The call that serves librdkafka's event of a fatal error raises it, whichever call that is.
            raise self._aborting(failure) from failure
        if self._refused is not None:
            raise _AbortError(str(self._refused))

    def _produce(self, record: ProducerRecord, on_delivery: Callable[[KafkaError | None, Message], None]) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic, value=record.value, key=record.key, headers=record.headers, on_delivery=on_delivery
                )
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as failure:
                self._refused = self._refused or error_of(failure)
                raise
            else:
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.stored.append(message)
        # The first error is the cause, unless Kafka refused a record for its own sake and purged the rest for it.
        if error is not None and (self._refused is None or error.code() in RECORDS_AT_FAULT):
            self._refused = error

    def _on_witness(self, error: KafkaError | None, message: Message) -> None:
        self._on_delivery(error, message)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None and offset >= 0:
            self._witness = topic, partition, offset

    def _aborting(self, failure: KafkaException) -> Exception:
        """Return the exception for a failure before any EndTxn, when the transaction can only be aborted."""
        error = error_of(failure)
        if error is not None and error.code() in FENCED:
            fatal = self._fatal(failure)
            if isinstance(fatal, FencedError):
                return fatal
        return _AbortError(str(failure))

    def _abort(self, reason: _AbortError, records: int) -> WriteResult:
        """Abort the transaction. Nothing was committed, so the outcome is certain, however the EndTxn ends."""
        refused = self._refused
        _log.warning("transaction aborted", reason=str(refused or reason), records=records)
        try:
            self._end(self._producer.abort_transaction)
        except (_UnansweredError, _LateAnswerError) as failure:
            self._replace(str(failure))
        else:
            # The report of a refused record may come only now: the next record was not even taken because of it.
            if self._refused is not None and self._refused.code() in RECORDS_AT_FAULT:
                refused = self._refused
            if refused is not None:
                # The broker waits for the sequence numbers of the refused records. The next transaction that writes to
                # the same partition would fail (OUT_OF_ORDER_SEQUENCE_NUMBER; KIP-360) and take other writes with it.
                self._replace("a record was refused, which leaves a gap in the producer's sequence")
        if refused is not None and refused.code() in RECORDS_AT_FAULT:
            return WriteResult.ABORTED_RECORD_AT_FAULT
        return WriteResult.ABORTED

    def _end(self, call: Callable[[float], object]) -> None:
        """End the transaction with `call`, which sends one EndTxn to the coordinator.

        Raises _UnansweredError when the outcome is unknown. Raises _LateAnswerError when the transaction has ended, but
        another EndTxn for it may be on its way.
        """
        started_s = time.monotonic()
        try:
            with _as_kafka_exception():
                call(self._end_timeout_s)
        except KafkaException as failure:
            fatal = self._fatal(failure)
            if isinstance(fatal, FencedError):
                raise fatal from failure
            raise _UnansweredError(str(failure)) from failure
        took_s = time.monotonic() - started_s
        if took_s >= _RETRIED_AFTER_S:
            raise _LateAnswerError(f"the end of a transaction took {took_s:.3f} s: it may have been sent twice")

    def _decided_by_kafka(self, reason: str) -> WriteResult:
        """Ask Kafka how the transaction ended. All of its records had arrived when its commit was sent."""
        self._replace(reason)
        if self._witness is None:
            raise FatalTransactionError(f"Kafka did not say where a record of an undecided transaction is: {reason}")
        topic, partition, offset = self._witness
        is_committed = self._is_committed(topic, partition, offset)
        _log.info("the outcome of a transaction is known now", committed=is_committed)
        return WriteResult.COMMITTED if is_committed else WriteResult.ABORTED

    def _replace(self, reason: str) -> None:
        """Replace the producer, so that no request of the old one can reach a transaction of the new one.

        Raises FencedError when another process has taken over, because this one stood still or was cut off: to
        initialise would fence that one, which knows more than this one. Each attempt has a producer of its own, since
        librdkafka goes on with an initialisation that was given up, and Kafka could get it after a takeover (ADR 155).
        """
        _log.warning("replacing the transactional producer", reason=reason)
        self._on_replacing(reason)
        known_s, is_ready = self._begun_s, False
        while not is_ready:
            if time.monotonic() - known_s > _SURE_S:
                self._check_not_taken_over()
                known_s = time.monotonic()
            self._check_given_up()
            self._producer = self._make_producer()
            is_ready = self._try_to_initialise(self._given_up.is_set)
        self._on_replaced()

    def _check_not_taken_over(self) -> None:
        """Return as soon as it is known that no other process has the transactional id. Raises FencedError."""
        while True:
            try:
                successor = self._find_successor()
            except SuccessorUnknownError as failure:
                _log.warning("waiting to learn who has the transactional id", reason=str(failure))
                self._given_up.wait(_PAUSE_S)
                self._check_given_up()
            else:
                break
        if successor is not None:
            raise FencedError(f"{successor} has taken over the transactional id")

    def _try_to_initialise(self, is_over: Callable[[], bool]) -> bool:
        """Initialise the producer; False if Kafka does not answer in time. Raises FatalTransactionError."""
        try:
            self._producer.init_transactions(_CALL_TIMEOUT_S)
        except KafkaException as failure:
            error = error_of(failure)
            if error is None or not error.retriable():
                raise self._fatal(failure) from failure
            _log.warning("waiting for the transaction coordinator", reason=str(failure))
            return False
        self._confirm(is_over)
        return True

    def _check_given_up(self) -> None:
        if self._given_up.is_set():
            raise FatalTransactionError("the process was told to end before Kafka decided a transaction")

    def _fatal(self, failure: KafkaException) -> FatalTransactionError:
        error = error_of(failure)
        if error is not None and error.code() in FENCED and time.monotonic() - self._begun_s < self._timeout_s:
            return FencedError(str(failure))
        return FatalTransactionError(str(failure))


@contextmanager
def _as_kafka_exception() -> Iterator[None]:
    """Raise a fatal error of the producer as a KafkaException.

    confluent-kafka sets the exception in the middle of a call that continues to run delivery callbacks. CPython then
    raises a SystemError in the first callback that calls a function.
    """
    try:
        yield
    except SystemError as failure:
        cause: BaseException | None = failure
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None


class _AbortError(Exception):
    """The transaction cannot commit any more, and no EndTxn was sent for it."""


class _UnansweredError(Exception):
    """An EndTxn may have been sent, and only Kafka knows its effect."""


class _LateAnswerError(Exception):
    """An EndTxn was answered, but a copy of it may still be on its way."""

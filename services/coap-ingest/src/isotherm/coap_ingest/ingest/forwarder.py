"""The forwarder: takes notifications from the queue, makes records of them, and produces the records in order."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException
from prometheus_client import Counter

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.outlets import Outlet
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.ingest.records import headers
from isotherm.coap_ingest.ingest.traces import DEAD_LETTER, NotificationTrace, begin_trace, headers_by_topic
from isotherm.coap_ingest.metrics import Metrics
from isotherm.connector.errors.dead_letters import dead_letter_headers
from isotherm.connector.errors.policies import (
    Action,
    ErrorPolicy,
    Failure,
    Policy,
)
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.producer.delivery import Headers, LoopProducer, QueueFullError
from isotherm.servicekit.throttling.sparse_log import SparseLog

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces

_log = logs.logger(__name__)

_RECORD_ERRORS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)
"""Errors that the record causes; every other error is transient."""

_PRODUCER_ERRORS = (
    KafkaError._FATAL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
"""Errors that a producer reports after a fatal error; its reports do not set `fatal()`. The next producer sends the
records again."""

_DEFAULT_POLICY = ErrorPolicy(Policy.NOOP, dead_letters=True)

_FULL_WAIT_S = 0.01
_BATCH = 64
"""How many notifications are forwarded before other callbacks of the loop run."""
_RESEND_CAP_MS = 2_000
_RETRY_LOG_INTERVAL_S = 10.0


class ProducerFailedError(Exception):
    """No producer can send; only a new process can."""


class RetriesExhaustedError(ProducerFailedError):
    """Kafka refused a record as often as its connector's `max.retries` allows."""


class RecordRefusedError(Exception):
    """Kafka refuses this record."""


@dataclass(slots=True, eq=False)
class _PendingRecord:
    """A record that Kafka has not acknowledged, with the notification that it was made of."""

    topic: str
    key: str
    value: bytes
    headers: Headers
    queued: QueuedNotification
    dead_reason: str | None = None
    """The kind of reason for the metric, when this is a dead-letter record."""
    attempts: int = 1
    trace: NotificationTrace | None = None
    ordinal: int = -1
    """Its place among all records that were handed to a producer; -1 before."""


class Forwarder:
    """Takes notifications from the queue in order and stores their records in Kafka in the same order for each key.

    While Kafka is away, the producer retries what is outstanding without end, and the queue before it fills up. Records
    that a broken producer did not store go to its successor first, in their order.
    """

    def __init__(
        self,
        queue: BoundedQueue[QueuedNotification],
        producer: LoopProducer,
        outlets: Mapping[tuple[str, str], Sequence[Outlet]],
        dead_letter_topics: Mapping[str, str],
        metrics: Metrics,
        policies: Mapping[str, ErrorPolicy] | None = None,
        sequences: payloads.SequenceGenerator | None = None,
        traces: IngestTraces | None = None,
    ) -> None:
        """`sequences` is shared by all that store readings of the same devices; without it the forwarder is alone."""
        self._traces = traces
        self._policies = policies or {}
        self._sequences = sequences or payloads.SequenceGenerator()
        self._queue = queue
        self._producer = producer
        self._current_producer = producer.producer
        self._outlets = outlets
        self._dead_letter_topics = dead_letter_topics
        self._metrics = metrics
        self._produced: dict[str, Counter] = {}
        self._backoff = Backoff()
        self._retrying = 0
        self._ordinals = itertools.count()
        self._unsent: deque[_PendingRecord] = deque()
        """Records that a broken producer did not store, in the order of its reports."""
        self._resent: deque[_PendingRecord] = deque()
        """The part of `_unsent` that is being produced again."""
        self._resending: asyncio.Task[None] | None = None
        self._log_retry = SparseLog(_log, "deliveries fail and are retried", interval_s=_RETRY_LOG_INTERVAL_S)
        self._idle = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.halted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the error policy THROW of a connector asks for the end. Notifications in the
        queue are still forwarded."""
        self.last_progress = time.monotonic()
        """When Kafka last acknowledged a record, or when there was last nothing to acknowledge."""

    @property
    def unsettled(self) -> int:
        """The number of notifications and records that Kafka does not have yet."""
        waiting = self._retrying + len(self._unsent) + len(self._resent)
        return self._queue.reserved + self._producer.outstanding + waiting

    async def settled(self) -> None:
        """Return when Kafka has everything that came into the queue."""
        while self.unsettled:
            self._idle.clear()
            await self._idle.wait()

    def fail(self, reason: str) -> None:
        """End `run` with ProducerFailedError."""
        if not self._failure.done():
            self._failure.set_exception(ProducerFailedError(reason))

    def _wake_if_settled(self) -> None:
        if not self.unsettled:
            self._idle.set()

    async def run(self) -> None:
        """Forward until cancelled. Raises ProducerFailedError."""
        forwarding = asyncio.create_task(self._forward())
        try:
            await asyncio.wait({forwarding, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            await (forwarding if forwarding.done() else self._failure)
        finally:
            for task in (forwarding, self._resending):
                if task is not None:
                    task.cancel()

    async def _forward(self) -> None:
        queue = self._queue
        while True:
            queued: QueuedNotification | None = await queue.get()
            left = _BATCH
            while queued is not None:
                for record in self._records(queued):
                    if not self._has_room() or not self._produce(record):
                        await self._send(record)
                queue.release()
                left -= 1
                queued = queue.get_nowait() if left else None
            self._wake_if_settled()
            # `get` returns at once while there are items, but sockets and delivery reports need the loop.
            await asyncio.sleep(0)

    def _records(self, queued: QueuedNotification) -> list[_PendingRecord]:
        """Return the records of a notification, or its dead-letter record."""
        try:
            if queued.fault is not None:
                return [self._dead_letter(queued, queued.fault, "incomplete")]
            records = []
            for outlet in self._outlets[queued.connector, queued.notification.resource.uri]:
                records += self._outlet_records(queued, outlet)
            return records if self._traces is None else self._traced(queued.notification, records)
        except Exception as error:
            # A payload that one device sends must not end the service, and must not come again after a restart.
            uri = queued.notification.resource.uri
            _log.exception("an unexpected error prevents the records of a notification", resource=uri)
            return [self._dead_letter(queued, error, "record")]

    def _outlet_records(self, queued: QueuedNotification, outlet: Outlet) -> list[_PendingRecord]:
        try:
            records = outlet.records(queued.notification, self._sequences)
            return [_PendingRecord(*record, queued) for record in records]
        except payloads.PayloadError as error:
            return [self._dead_letter(queued, error, "key" if outlet.route.statement.with_key else "payload")]

    def _traced(self, notification: Notification, records: list[_PendingRecord]) -> list[_PendingRecord]:
        trace = begin_trace(self._traces, "coap notification", notification)
        if trace is None:
            return records
        if not records:
            trace.end()
        for reason in {record.dead_reason for record in records if record.dead_reason is not None}:
            trace.note(DEAD_LETTER, reason)
        common = NotificationTrace(trace, len(records))
        added = headers_by_topic(trace, (record.topic for record in records))
        return [replace(record, headers=[*record.headers, *added[record.topic]], trace=common) for record in records]

    def _policy(self, queued: QueuedNotification) -> ErrorPolicy:
        return self._policies.get(queued.connector, _DEFAULT_POLICY)

    def _dead_letter(self, queued: QueuedNotification, error: Exception, reason: str) -> _PendingRecord:
        notification = queued.notification
        _log.warning("dead letter", resource=notification.resource.uri, connector=queued.connector, reason=str(error))
        if self._policy(queued).decide(Failure.PERMANENT, 1) is Action.STOP and not self.halted.done():
            text = f"{queued.connector}: error.policy THROW ends the service: {notification.resource.uri}: {error}"
            _log.error("stopping", reason=text)
            self.halted.set_result(text)
        error_headers = dead_letter_headers(
            error,
            stage="VALUE_CONVERTER",
            connector=queued.connector,
            class_name=__name__,
            original=headers(notification),
        )
        topic = self._dead_letter_topics[queued.connector]
        uri, payload = notification.resource.uri, notification.payload
        return _PendingRecord(topic, uri, payload, list(error_headers), queued, reason)

    async def _send(self, record: _PendingRecord) -> None:
        while True:
            if self._resending is not None:
                await asyncio.wait({self._resending})
            await self._producer.room()
            if self._has_room() and self._produce(record):
                return
            await asyncio.sleep(_FULL_WAIT_S)

    def _has_room(self) -> bool:
        """Return whether a record may be produced now."""
        # Records that wait for a retry need memory as well: allow as many as the producer itself may hold.
        limit = self._producer.max_outstanding
        return self._producer.outstanding < limit and self._retrying < limit and self._resending is None

    async def _resend(self) -> None:
        """Produce the records that a broken producer did not store, as soon as it has a successor."""
        backoff = Backoff(cap_ms=_RESEND_CAP_MS)
        while True:
            await self._producer.drain()
            # A broken producer reports what it never sent before what was on its way, so its order is not theirs.
            self._resent = deque(sorted((*self._unsent, *self._resent), key=attrgetter("ordinal")))
            self._unsent.clear()
            if not self._resent:
                return
            await self._resend_batch()
            if self._resent:
                await asyncio.sleep(backoff.next_ms() / 1000)

    async def _resend_batch(self) -> None:
        """Hand over `_resent`, or only its beginning when the producer breaks again."""
        while self._resent:
            await self._producer.room()
            if self._awaits_reports():
                return
            try:
                self._hand_over(self._resent[0])
            except QueueFullError:
                await asyncio.sleep(_FULL_WAIT_S)
            except KafkaException as failure:
                if failure.args[0].code() in _PRODUCER_ERRORS:
                    return
                self._failed(self._resent.popleft(), failure.args[0])
            else:
                self._resent.popleft()

    def _produce(self, record: _PendingRecord) -> bool:
        """Hand the record to the producer; return False when the producer has no room or is broken."""
        if not self._producer.outstanding:
            self.last_progress = time.monotonic()
        if self._awaits_reports():
            self._start_resending()
            return False
        try:
            self._hand_over(record)
        except QueueFullError:
            return False
        except KafkaException as failure:
            if failure.args[0].code() in _PRODUCER_ERRORS:
                # The records that the broken producer has yet to report are older than this one.
                self._start_resending()
                return False
            self._failed(record, failure.args[0])
        return True

    def _awaits_reports(self) -> bool:
        """Return whether the producer was replaced, and the former one has yet to report what it did not store."""
        if self._producer.producer is self._current_producer:
            return False
        if not self._producer.outstanding:
            self._current_producer = self._producer.producer
        return bool(self._producer.outstanding)

    def _hand_over(self, record: _PendingRecord) -> None:
        if record.ordinal < 0:
            record.ordinal = next(self._ordinals)
        self._producer.produce(
            record.topic,
            key=record.key,
            value=record.value,
            headers=record.headers,
            on_delivery=partial(self._on_delivery, record),
        )

    def _on_delivery(self, record: _PendingRecord, error: KafkaError | None) -> None:
        if error is not None:
            self._failed(record, error)
        else:
            self.last_progress = time.monotonic()
            self._backoff.reset()
            if record.trace is not None:
                record.trace.stored()
            if record.dead_reason is None:
                counter = self._produced.get(record.topic)
                if counter is None:
                    counter = self._produced[record.topic] = self._metrics.produced.labels(record.topic)
                counter.inc()
            else:
                self._metrics.dead_letters.labels(record.queued.connector, record.dead_reason).inc()
        self._wake_if_settled()

    def _failed(self, record: _PendingRecord, error: KafkaError) -> None:
        if error.code() in _PRODUCER_ERRORS:
            self._count_retry(record.topic, error)
            self._unsent.append(record)
            self._start_resending()
        elif error.code() not in _RECORD_ERRORS:
            self._retry(record, error)
        elif record.dead_reason is None:
            refused = RecordRefusedError(f"topic {record.topic}: {error.str()}")
            dead_letter = self._dead_letter(record.queued, refused, "refused")
            if (trace := record.trace) is not None:
                added = trace.refused(dead_letter.topic, error.str())
                dead_letter = replace(dead_letter, headers=[*dead_letter.headers, *added], trace=trace)
            self._produce_later(dead_letter)
        else:
            # No other topic can take it; the log keeps what is known of the record.
            _log.error("dead letter refused by Kafka and lost", topic=record.topic, key=record.key, reason=error.str())
            if record.trace is not None:
                record.trace.end(error.str())

    def _start_resending(self) -> None:
        if self._resending is None:
            self._resending = asyncio.create_task(self._resend())
            self._resending.add_done_callback(self._resending_ended)

    def _resending_ended(self, task: asyncio.Task[None]) -> None:
        self._resending = None
        self._wake_if_settled()
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.fail(str(failure))

    def _retry(self, record: _PendingRecord, error: KafkaError) -> None:
        policy = self._policy(record.queued)
        if policy.decide(Failure.TRANSIENT, record.attempts) is Action.STOP:
            text = f"topic {record.topic}: refused {record.attempts} times: {error.str()}"
            if not self._failure.done():
                self._failure.set_exception(RetriesExhaustedError(text))
            return
        self._count_retry(record.topic, error)
        self._produce_later(replace(record, attempts=record.attempts + 1), longest_ms=policy.retry_interval_ms)

    def _count_retry(self, topic: str, error: KafkaError) -> None:
        self._metrics.retried.labels(topic).inc()
        self._log_retry(topic=topic, reason=error.str(), waiting=self._retrying)

    def _produce_later(self, record: _PendingRecord, longest_ms: float = math.inf) -> None:
        self._retrying += 1
        wait_ms = min(self._backoff.next_ms(), longest_ms)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._produce_again, record)

    def _produce_again(self, record: _PendingRecord) -> None:
        self._retrying -= 1
        if not self._produce(record):
            self._produce_later(record)

"""From the queue to Kafka: every notification through its routes; what cannot be used to the dead letters."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException

from isotherm import payloads
from isotherm.coap_ingest.ingest.bounded_queue import Intake
from isotherm.coap_ingest.ingest.records import (
    ReadingRules,
    headers,
    message_record,
    readings,
)
from isotherm.coap_ingest.ingest.routes import Encode, Route
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.resource_observer import Arrived
from isotherm.connector.errors.dead_letters import dead_letter_headers
from isotherm.connector.errors.policies import (
    Action,
    ErrorPolicy,
    Failure,
    Policy,
)
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.delivery import Headers, LoopProducer, QueueFullError

_log = logs.logger(__name__)

_RECORD_ERRORS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)
"""Errors of the record: any other one is Kafka's, and passes."""

_PRODUCER_ERRORS = (
    KafkaError._FATAL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
"""What a producer that met a fatal error reports; reports do not say `fatal()`. The next producer takes the records."""

_GO_ON = ErrorPolicy(Policy.NOOP, dead_letters=True)

_FULL_WAIT_S = 0.01
_RESEND_CAP_MS = 2_000
_LOG_INTERVAL_S = 10.0


class ProducerFailedError(Exception):
    """No producer can send; only a new process can."""


class RetriesExhaustedError(ProducerFailedError):
    """Kafka refused a record as often as its connector's `max.retries` allows."""


class RecordRefusedError(Exception):
    """Kafka will not take this record."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """A route with the encoder of its topic."""

    route: Route
    encode: Encode


Outlets = dict[tuple[str, str], list[Outlet]]
"""By connector and address of the resource."""


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    key: str
    value: bytes
    headers: Headers
    arrived: Arrived
    dead_reason: str | None = None
    """For a dead letter: the kind of reason, for the metric."""
    attempts: int = 1


class Forwarder:
    """Takes notifications in order and has them in Kafka in the same order for each key.

    Kafka away: the producer holds what is outstanding and retries without end, the queue fills up behind it. What a
    broken producer did not store goes, in the same order, to the one that takes its place, before anything else.
    """

    def __init__(
        self,
        intake: Intake[Arrived],
        producer: LoopProducer,
        outlets: Mapping[tuple[str, str], Sequence[Outlet]],
        dead_letter_topics: Mapping[str, str],
        metrics: Metrics,
        policies: Mapping[str, ErrorPolicy] | None = None,
    ) -> None:
        self._policies = policies or {}
        self._intake = intake
        self._producer = producer
        self._handed_to = producer.producer
        self._outlets = outlets
        self._dead_letter_topics = dead_letter_topics
        self._metrics = metrics
        self._backoff = Backoff()
        self._retrying = 0
        self._unsent: deque[_Record] = deque()
        """What a broken producer did not store."""
        self._resent: deque[_Record] = deque()
        """What of it is being produced again."""
        self._resending: asyncio.Task[None] | None = None
        self._retry_logged_at = float("-inf")
        self._idle = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.halted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason when a connector's policy, THROW, wants an end; what arrived is still forwarded."""
        self.last_progress = time.monotonic()
        """When Kafka last acknowledged something, or when there was last nothing to acknowledge."""

    @property
    def unsettled(self) -> int:
        """Notifications and records that Kafka does not have yet."""
        waiting = self._retrying + len(self._unsent) + len(self._resent)
        return self._intake.reserved + self._producer.outstanding + waiting

    async def settled(self) -> None:
        """Return when Kafka has everything that was taken."""
        while self.unsettled:
            self._idle.clear()
            await self._idle.wait()

    def give_up(self, reason: str) -> None:
        """End `run` with ProducerFailedError."""
        if not self._failure.done():
            self._failure.set_exception(ProducerFailedError(reason))

    def _settle(self) -> None:
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
        while True:
            arrived = await self._intake.get()
            for record in self._records_or_letter(arrived):
                await self._send(record)
            self._intake.release()
            self._settle()

    def _records_or_letter(self, arrived: Arrived) -> list[_Record]:
        try:
            return self._records(arrived)
        except Exception as error:
            # What one device can send must not end the service, nor be met again after its restart.
            _log.exception("no record can be made of a notification", resource=arrived.notification.resource.uri)
            return [self._dead_letter(arrived, error, "record")]

    def _records(self, arrived: Arrived) -> list[_Record]:
        notification = arrived.notification
        if arrived.fault is not None:
            return [self._dead_letter(arrived, arrived.fault, "incomplete")]
        records = []
        for outlet in self._outlets[arrived.connector, notification.resource.uri]:
            if outlet.route.rules is None:
                records.append(self._message(arrived, outlet))
            else:
                records += self._readings(arrived, outlet, outlet.route.rules)
        return records

    def _policy(self, arrived: Arrived) -> ErrorPolicy:
        return self._policies.get(arrived.connector, _GO_ON)

    def _message(self, arrived: Arrived, outlet: Outlet) -> _Record:
        notification = arrived.notification
        try:
            key = outlet.route.key(notification)
        except payloads.PayloadError as error:
            return self._dead_letter(arrived, error, "key")
        value = outlet.encode(message_record(notification))
        return _Record(outlet.route.topic.name, key, value, headers(notification), arrived)

    def _readings(self, arrived: Arrived, outlet: Outlet, rules: ReadingRules) -> list[_Record]:
        notification, topic = arrived.notification, outlet.route.topic.name
        try:
            found = readings(notification, rules)
        except payloads.PayloadError as error:
            return [self._dead_letter(arrived, error, "payload")]
        said = headers(notification)
        return [
            _Record(topic, reading.device_id, outlet.encode(reading.as_record()), said, arrived) for reading in found
        ]

    def _dead_letter(self, arrived: Arrived, error: Exception, reason: str) -> _Record:
        notification = arrived.notification
        _log.warning("dead letter", resource=notification.resource.uri, connector=arrived.connector, reason=str(error))
        if self._policy(arrived).decide(Failure.PERMANENT, 1) is Action.STOP and not self.halted.done():
            reached = f"{arrived.connector}: error.policy THROW ends the service: {notification.resource.uri}: {error}"
            _log.error("stopping", reason=reached)
            self.halted.set_result(reached)
        said = dead_letter_headers(
            error,
            stage="VALUE_CONVERTER",
            connector=arrived.connector,
            class_name=__name__,
            original=headers(notification),
        )
        topic = self._dead_letter_topics[arrived.connector]
        return _Record(topic, notification.resource.uri, notification.payload, list(said), arrived, reason)

    async def _send(self, record: _Record) -> None:
        while True:
            if self._resending is not None:
                await asyncio.wait({self._resending})
            await self._producer.room()
            # What is tried again later takes room, too: no more than the producer itself may hold.
            if self._retrying < self._producer.max_outstanding and self._resending is None and self._produce(record):
                return
            await asyncio.sleep(_FULL_WAIT_S)

    async def _resend(self) -> None:
        """Produce what a broken producer did not store, as soon as there is another one."""
        backoff = Backoff(cap_ms=_RESEND_CAP_MS)
        while True:
            # The reports of a broken producer come in its order; after the last one all of it is here.
            await self._producer.drain()
            self._unsent.extend(self._resent)
            self._resent.clear()
            if not self._unsent:
                return
            self._resent, self._unsent = self._unsent, self._resent
            await self._resend_batch()
            if self._resent:
                await asyncio.sleep(backoff.next_ms() / 1000)

    async def _resend_batch(self) -> None:
        """Hand over `_resent`, or its beginning where the producer breaks again."""
        while self._resent:
            await self._producer.room()
            if self._is_replaced():
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

    def _produce(self, record: _Record) -> bool:
        """Hand the record to the producer; False when that has no room, or is broken."""
        if not self._producer.outstanding:
            self.last_progress = time.monotonic()
        if self._is_replaced():
            self._resend_soon()
            return False
        try:
            self._hand_over(record)
        except QueueFullError:
            return False
        except KafkaException as failure:
            if failure.args[0].code() in _PRODUCER_ERRORS:
                # What the broken producer has not reported yet is older than this record.
                self._resend_soon()
                return False
            self._failed(record, failure.args[0])
        return True

    def _is_replaced(self) -> bool:
        """Whether there is another producer, and the one before it has yet to report what it did not store."""
        if self._producer.producer is self._handed_to:
            return False
        if not self._producer.outstanding:
            self._handed_to = self._producer.producer
        return bool(self._producer.outstanding)

    def _hand_over(self, record: _Record) -> None:
        self._producer.produce(
            record.topic,
            key=record.key,
            value=record.value,
            headers=record.headers,
            on_delivery=lambda error: self._reported(record, error),
        )

    def _reported(self, record: _Record, error: KafkaError | None) -> None:
        if error is not None:
            self._failed(record, error)
        else:
            self.last_progress = time.monotonic()
            self._backoff.reset()
            if record.dead_reason is None:
                self._metrics.produced.labels(record.topic).inc()
            else:
                self._metrics.dead_letters.labels(record.arrived.connector, record.dead_reason).inc()
        self._settle()

    def _failed(self, record: _Record, error: KafkaError) -> None:
        if error.code() in _PRODUCER_ERRORS:
            self._metrics.retried.labels(record.topic).inc()
            self._log_retry(record.topic, error)
            self._unsent.append(record)
            self._resend_soon()
        elif error.code() not in _RECORD_ERRORS:
            self._retry(record, error)
        elif record.dead_reason is None:
            refused = RecordRefusedError(f"topic {record.topic}: {error.str()}")
            self._later(self._dead_letter(record.arrived, refused, "refused"))
        else:
            # Nowhere left to put it: the log has to hold what is known of it.
            _log.error("dead letter refused by Kafka and lost", topic=record.topic, key=record.key, reason=error.str())

    def _resend_soon(self) -> None:
        if self._resending is None:
            self._resending = asyncio.create_task(self._resend())
            self._resending.add_done_callback(self._resending_ended)

    def _resending_ended(self, task: asyncio.Task[None]) -> None:
        self._resending = None
        self._settle()
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.give_up(str(failure))

    def _retry(self, record: _Record, error: KafkaError) -> None:
        policy = self._policy(record.arrived)
        if policy.decide(Failure.TRANSIENT, record.attempts) is Action.STOP:
            said = f"topic {record.topic}: refused {record.attempts} times: {error.str()}"
            if not self._failure.done():
                self._failure.set_exception(RetriesExhaustedError(said))
            return
        self._metrics.retried.labels(record.topic).inc()
        self._log_retry(record.topic, error)
        self._later(replace(record, attempts=record.attempts + 1), longest_ms=policy.retry_interval_ms)

    def _log_retry(self, topic: str, error: KafkaError) -> None:
        now = time.monotonic()
        if now - self._retry_logged_at >= _LOG_INTERVAL_S:
            self._retry_logged_at = now
            _log.warning("deliveries fail and are tried again", topic=topic, reason=error.str(), waiting=self._retrying)

    def _later(self, record: _Record, longest_ms: float = math.inf) -> None:
        self._retrying += 1
        wait_ms = min(self._backoff.next_ms(), longest_ms)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._again, record)

    def _again(self, record: _Record) -> None:
        self._retrying -= 1
        if not self._produce(record):
            self._later(record)

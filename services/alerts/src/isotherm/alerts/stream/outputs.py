"""The output topics: the changelog, alerts and the newest states of devices, written by one producer.

Nothing counts as written before Kafka has acknowledged it. Kafka may be unavailable for any time: the producer keeps
trying, and new records wait for room meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

import isotherm.schemas
from isotherm.alerts.engine import alert_records
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.input.reading_traces import ReadingTraces
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from opentelemetry.context import Context

ALERT = isotherm.schemas.schema("Alert", 2)
ALERT_WITHOUT_ATTRIBUTES = isotherm.schemas.schema("Alert", 1)
DEVICE_STATE = isotherm.schemas.schema("DeviceState", 2)

_MAX_OUTSTANDING = 10_000
_MAX_AHEAD = 2_000
"""With so many records outstanding no states of quiet devices are added: an alert waits behind all of them."""
_BY_KEY = -1
_FULL_PAUSE_S = 0.01
"""Pause before the next attempt to produce a record while librdkafka has no room for it."""
WIRE_HEADER_BYTES = 5

OnStored = Callable[[], None]

QuietRow = tuple[bytes, bytes, bytes]
"""Id, value of the changelog, and encoded DeviceState of a quiet device."""


def _do_nothing() -> None:
    """Default action after a record is stored."""


_log = logs.logger(__name__)


class _Record(NamedTuple):
    topic: str
    key: str | bytes
    value: bytes | None
    partition: int
    on_stored: OnStored
    headers: Sequence[tuple[str, str]] = ()


class Cause(NamedTuple):
    """The reading that opens or closes an alert."""

    ingest_time_ms: int
    context: Context | None = None
    """Its trace context."""


class OutputRefusedError(Exception):
    """Kafka refuses a record permanently. Going on would lose it."""


class OutputsClosedError(Exception):
    """The run has ended. Records that Kafka had not acknowledged by then count as not written."""


class Outputs:
    """Writes the records of one run. It owns the producer and belongs to one event loop."""

    def __init__(
        self,
        settings: AlertsSettings,
        registry: SchemaRegistry,
        metrics: Metrics,
        producer: Producer,
        traces: ReadingTraces | None = None,
    ) -> None:
        """`producer` never gives a record up, because a lost record would have to end the process.

        Raises SchemaNotRegisteredError before `isotherm apply` was run, and RegistryUnavailableError.
        """
        self._encode_alert = _alert_encoder(registry, settings.alerts_topic)
        self._encode_state = registry.encoder(settings.latest_topic, DEVICE_STATE)
        empty = alert_records.state_record("", DeviceRuleState(), 0)
        self.latest_header = self._encode_state(empty)[:WIRE_HEADER_BYTES]
        """What comes before the Avro data of a DeviceState: magic byte and schema id."""
        self._producer = LoopProducer(producer, max_outstanding=_MAX_OUTSTANDING)
        self._settings = settings
        self._traces = traces
        self._metrics = metrics
        self._refused: KafkaError | None = None
        self._closed = False
        self._waiting: deque[_Record] = deque()
        self._epoch = 0
        self._unreported: Counter[int] = Counter()
        """How many records wait for their delivery report, by the epoch in which they were produced."""
        self._progress = asyncio.Event()

    def close(self) -> None:
        """Give up what Kafka has not acknowledged: its actions never run, and its waiters get an exception.

        The next run reads from the changelog what this run has written. After that nothing may be added to it.
        """
        self._closed = True
        self._waiting.clear()
        self._producer.producer.purge()
        self._progress.set()

    def release(self) -> None:
        """Free what wakes the event loop for the producer, when nothing waits for Kafka any more."""
        self._producer.close()

    async def wait_for_room(self) -> None:
        """Return when a record can be produced. Raises OutputRefusedError, OutputsClosedError."""
        await self._producer.room()
        while self._waiting:
            waiting = len(self._waiting)
            self._produce(self._waiting.popleft())
            if len(self._waiting) >= waiting and not self._closed:
                # librdkafka's own bound is met before ours. Only reports make room, and the loop polls them.
                await asyncio.sleep(_FULL_PAUSE_S)
            await self._producer.room()
        self._verify()

    async def wait_for_quiet_room(self) -> None:
        """Return when states of quiet devices can be produced. Raises OutputRefusedError, OutputsClosedError."""
        await self.wait_for_room()
        await self._producer.room(_MAX_AHEAD)
        self._verify()

    async def flush(self) -> None:
        """Return when Kafka has every record, including those that the actions after other records have produced.

        Raises OutputRefusedError, OutputsClosedError.
        """
        while self._waiting or self._producer.outstanding:
            await self.wait_for_room()
            await self._producer.drain()
        self._verify()

    async def flush_earlier(self) -> None:
        """Return when Kafka has every record that was produced before this call, whatever is produced meanwhile.

        Raises OutputRefusedError, OutputsClosedError.
        """
        if self._waiting:
            # A state may be among them that `settle` does not write again.
            await self.wait_for_room()
        until, self._epoch = self._epoch, self._epoch + 1
        while not self._is_over() and min(self._unreported, default=self._epoch) <= until:
            self._progress.clear()
            await self._progress.wait()
        self._verify()

    def write_changelog(
        self, partition: int, device_id: str, value: bytes | None, on_stored: OnStored = _do_nothing
    ) -> None:
        """Write a device's state to the changelog partition of its readings; None is a tombstone.

        `on_stored` is called when Kafka has it.
        """
        self._produce(_Record(self._settings.changelog, device_id, value, partition, on_stored))
        self._metrics.changes.inc()

    def write_alert(self, record: AlertRecord, on_stored: OnStored, cause: Cause | None = None) -> None:
        """Write one state of an alert; `on_stored` is called when Kafka has it."""
        topic = self._settings.alerts_topic
        headers: Sequence[tuple[str, str]] = ()
        if cause is not None and cause.context is not None and self._traces is not None:
            headers, on_stored = self._traces.send(cause.context, topic, on_stored)
        # A state that an earlier release has stored may hold alerts without attributes.
        value = self._encode_alert({"attributes": None} | record)
        self._produce(_Record(topic, record["device_id"], value, _BY_KEY, on_stored, headers))
        self._metrics.alerts.labels(record["rule"], record["state"]).inc()

    def write_latest(self, device_id: str, state: DeviceRuleState, now_ms: int) -> None:
        """Write a device's newest state to the topic of newest states."""
        value = self._encode_state(alert_records.state_record(device_id, state, now_ms))
        self._produce(_Record(self._settings.latest_topic, device_id, value, _BY_KEY, _do_nothing))
        self._metrics.latest.inc()

    def write_quiet(self, number: int, rows: Iterable[QuietRow]) -> None:
        """Write the states of quiet devices to the changelog's partition `number`, and their newest states.

        Nothing follows from these records, so they take a shorter way than others. `wait_for_quiet_room` comes before
        some hundred of them.
        """
        if self._closed:
            return
        produce = self._producer.producer.produce
        changelog, latest_topic = self._settings.changelog, self._settings.latest_topic
        report = partial(self._report_quiet, self._epoch)
        written = count = 0
        for device_id, value, latest in rows:
            for topic, one, to in ((changelog, value, number), (latest_topic, latest, _BY_KEY)):
                try:
                    produce(topic, value=one, key=device_id, partition=to, on_delivery=report)
                    written += 1
                except BufferError:
                    # librdkafka's own bound is met before ours.
                    self._waiting.append(_Record(topic, device_id, one, to, _do_nothing))
            count += 1
        self._metrics.changes.inc(count)
        self._metrics.latest.inc(count)
        if written:
            self._unreported[self._epoch] += written
            self._producer.count_produced(written)

    def _report_quiet(self, epoch: int, error: KafkaError | None, _message: Message) -> None:
        self._producer.count_reported(1)
        self._count_reported(epoch)
        if error is not None and not self._closed:
            self._refuse(error)

    def _count_reported(self, epoch: int) -> None:
        self._unreported[epoch] -= 1
        if not self._unreported[epoch]:
            del self._unreported[epoch]
            self._progress.set()

    def _refuse(self, error: KafkaError) -> None:
        self._refused = self._refused or error
        self._progress.set()

    def forget_latest(self, device_id: str) -> None:
        """Remove a device from the topic of newest states: write a tombstone."""
        self._produce(_Record(self._settings.latest_topic, device_id, None, _BY_KEY, _do_nothing))
        self._metrics.latest.inc()

    def _produce(self, record: _Record) -> None:
        epoch = self._epoch

        def report(error: KafkaError | None) -> None:
            self._count_reported(epoch)
            if self._closed:
                return
            if error is None:
                record.on_stored()
            else:
                self._refuse(error)

        if self._closed:
            return
        topic, key, value, partition, _on_stored, headers = record
        try:
            self._producer.produce(
                topic, key=key, value=value, headers=headers, partition=partition, on_delivery=report
            )
        except QueueFullError:
            # A delivery report produces this record, and a report cannot wait for room.
            self._waiting.append(record)
        else:
            self._unreported[epoch] += 1

    def _is_over(self) -> bool:
        return self._closed or self._refused is not None

    def _verify(self) -> None:
        if self._closed:
            raise OutputsClosedError("the run has ended")
        if self._refused is not None:
            raise OutputRefusedError(self._refused.str())


def _alert_encoder(registry: SchemaRegistry, topic: str) -> Callable[[AlertRecord], bytes]:
    """Return what encodes alerts: in version 1 while `isotherm apply` has not registered version 2.

    Then routes take the attributes that a device has when they tell its alert. Raises SchemaNotRegisteredError when
    neither is registered.
    """
    try:
        return registry.encoder(topic, ALERT)
    except SchemaNotRegisteredError:
        encode = registry.encoder(topic, ALERT_WITHOUT_ATTRIBUTES)
        _log.warning("version 2 of Alert is not registered, so alerts are written without attributes", topic=topic)
        return encode

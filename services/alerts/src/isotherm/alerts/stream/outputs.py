"""What the service writes: the changelog, alerts, the newest states. One producer; nothing is taken for written before.

Kafka may be away for any time: the producer goes on trying, and what is handed over waits for room meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, Producer

import isotherm.schemas
from isotherm.alerts.engine import alert_records
from isotherm.alerts.engine.device_state import AlertRecord, DeviceRuleState
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit import kafka
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError

ALERT = isotherm.schemas.schema("Alert", 1)
DEVICE_STATE = isotherm.schemas.schema("DeviceState", 2)

_MAX_OUTSTANDING = 10_000
_BY_KEY = -1

Then = Callable[[], None]


def _nothing() -> None:
    """Nothing follows."""


class _Record(NamedTuple):
    topic: str
    key: str
    value: bytes | None
    partition: int
    then: Then


class OutputRefusedError(Exception):
    """Kafka refuses a record for good: going on would lose it."""


class OutputsClosedError(Exception):
    """The run has ended; what Kafka has not acknowledged by then counts as not written."""


def producer(settings: AlertsSettings) -> Producer:
    """A producer that never gives a record up: whatever is not written in the end would have to end the process."""
    return kafka.producer(settings.kafka, f"{settings.name}-outputs", delivery_timeout_ms=0, linger_ms=2)


class Outputs:
    """Owns the producer of one run; to be used on one event loop."""

    def __init__(self, settings: AlertsSettings, registry: SchemaRegistry, metrics: Metrics, made: Producer) -> None:
        """`made` is such a producer as `producer` makes.

        Raises SchemaNotRegisteredError before `isotherm apply` was run, RegistryUnavailableError.
        """
        self._encode_alert = registry.encoder(settings.alerts_topic, ALERT)
        self._encode_state = registry.encoder(settings.latest_topic, DEVICE_STATE)
        self._producer = LoopProducer(made, max_outstanding=_MAX_OUTSTANDING)
        self._settings = settings
        self._metrics = metrics
        self._refused: KafkaError | None = None
        self._closed = False
        self._waiting: deque[_Record] = deque()
        self._epoch = 0
        self._unreported: Counter[int] = Counter()
        """Records that wait for their report, by the epoch in which they were handed over."""
        self._progress = asyncio.Event()

    def close(self) -> None:
        """Give up what Kafka has not acknowledged: nothing follows from it, and who waits for it is told so.

        The next run finds in the changelog what this one has written; nothing that this one knows may be added to it.
        """
        self._closed = True
        self._waiting.clear()
        self._producer.producer.purge()
        self._progress.set()

    async def room(self) -> None:
        """Return when a record can be handed over. Raises OutputRefusedError, OutputsClosedError."""
        await self._producer.room()
        while self._waiting:
            self._hand_over(self._waiting.popleft())
            await self._producer.room()
        self._verify()

    async def stored(self) -> None:
        """Return when Kafka has everything that was handed over, and what followed from it.

        Raises OutputRefusedError, OutputsClosedError.
        """
        while self._waiting or self._producer.outstanding:
            await self.room()
            await self._producer.drain()
        self._verify()

    async def stored_so_far(self) -> None:
        """Return when Kafka has what was handed over until now, whatever comes after it meanwhile.

        Raises OutputRefusedError, OutputsClosedError.
        """
        until, self._epoch = self._epoch, self._epoch + 1
        while not self._is_over() and min(self._unreported, default=self._epoch) <= until:
            self._progress.clear()
            await self._progress.wait()
        self._verify()

    def change(self, partition: int, device_id: str, value: bytes | None, then: Then = _nothing) -> None:
        """Write a device's memory to the changelog, beside the readings of the device; None forgets it.

        `then` is called when Kafka has it.
        """
        self._hand_over(_Record(self._settings.changelog, device_id, value, partition, then))
        self._metrics.changes.inc()

    def alert(self, record: AlertRecord, then: Then) -> None:
        """Write one state of an alert; `then` is called when Kafka has it."""
        value = self._encode_alert(record)
        self._hand_over(_Record(self._settings.alerts_topic, record["device_id"], value, _BY_KEY, then))
        self._metrics.alerts.labels(record["rule"], record["state"]).inc()

    def state(self, device_id: str, memory: DeviceRuleState, now_ms: int) -> None:
        """Write a device's newest state."""
        value = self._encode_state(alert_records.state_record(device_id, memory, now_ms))
        self._hand_over(_Record(self._settings.latest_topic, device_id, value, _BY_KEY, _nothing))
        self._metrics.latest.inc()

    def _hand_over(self, record: _Record) -> None:
        epoch = self._epoch

        def report(error: KafkaError | None) -> None:
            self._unreported[epoch] -= 1
            if not self._unreported[epoch]:
                del self._unreported[epoch]
                self._progress.set()
            if self._closed:
                return
            if error is None:
                record.then()
            else:
                self._refused = self._refused or error
                self._progress.set()

        if self._closed:
            return
        topic, key, value, partition, _then = record
        try:
            self._producer.produce(topic, key=key, value=value, partition=partition, on_delivery=report)
        except QueueFullError:
            # What follows from a report cannot wait for room where it is decided.
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

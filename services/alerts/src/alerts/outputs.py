"""What the service writes: the changelog, alerts, the newest states. One producer; nothing is taken for written before.

Kafka may be away for any time: the producer goes on trying, and what is handed over waits for room meanwhile.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, Producer

import isotherm_schemas
from alerts import wording
from alerts.memory import AlertRecord, DeviceMemory
from alerts.metrics import Metrics
from alerts.settings import AlertsSettings
from servicekit import kafka
from servicekit.avro import SchemaRegistry
from servicekit.delivery import LoopProducer, QueueFullError

ALERT = isotherm_schemas.schema("Alert", 1)
DEVICE_STATE = isotherm_schemas.schema("DeviceState", 1)

_MAX_OUTSTANDING = 10_000


class OutputRefusedError(Exception):
    """Kafka refuses a record for good: going on would lose it."""


def producer(settings: AlertsSettings) -> Producer:
    """A producer that never gives a record up: whatever is not written in the end would have to end the process."""
    return kafka.producer(settings.kafka, f"{settings.name}-outputs", delivery_timeout_ms=0, linger_ms=2)


class Outputs:
    """Owns the producer; to be used on one event loop."""

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

    async def room(self) -> None:
        """Return when a record can be handed over. Raises OutputRefusedError."""
        await self._producer.room()
        self._verify()

    async def stored(self) -> None:
        """Return when Kafka has everything that was handed over. Raises OutputRefusedError."""
        await self._producer.drain()
        self._verify()

    def change(self, partition: int, device_id: str, value: bytes | None) -> None:
        """Write a device's memory to the changelog, beside the readings of the device; None forgets it."""
        self._produce(self._settings.changelog, device_id, value, partition)
        self._metrics.changes.inc()

    def alert(self, record: AlertRecord) -> None:
        """Write one state of an alert."""
        self._produce(self._settings.alerts_topic, record["device_id"], self._encode_alert(record))
        self._metrics.alerts.labels(record["rule"], record["state"]).inc()

    def state(self, device_id: str, memory: DeviceMemory, now_ms: int) -> None:
        """Write a device's newest state."""
        record = wording.state_record(device_id, memory, now_ms)
        self._produce(self._settings.latest_topic, device_id, self._encode_state(record))
        self._metrics.latest.inc()

    def _produce(self, topic: str, key: str, value: bytes | None, partition: int = -1) -> None:
        try:
            self._producer.produce(topic, key=key, value=value, partition=partition, on_delivery=self._report)
        except QueueFullError as error:
            raise OutputRefusedError("more records were handed over than there was room for") from error

    def _report(self, error: KafkaError | None) -> None:
        self._refused = self._refused or error

    def _verify(self) -> None:
        if self._refused is not None:
            raise OutputRefusedError(self._refused.str())

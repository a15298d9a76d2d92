"""How far topics go, what stands in open transactions included: a killed front door's readings are not read yet."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    OffsetSpec,
)
from faust.types import TP

from isotherm.alerts.settings import AlertsSettings
from isotherm.servicekit import kafka

_ASK_S = 5.0


class Ends:
    """Asks Kafka: what a read_committed consumer is told ends before the first open transaction."""

    def __init__(self, settings: AlertsSettings) -> None:
        self._settings = settings
        self._admin = self._connect()

    def of(self, partitions: Collection[TP]) -> dict[TP, int]:
        """The offset after the last record of each partition, committed or not. Blocks; raises KafkaException."""
        if not partitions:
            return {}
        wanted = {
            TopicPartition(*tp): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
            for tp in partitions
        }
        try:
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_ASK_S
            )
            return {TP(tp.topic, tp.partition): future.result().offset for tp, future in futures.items()}
        except KafkaException as failure:
            error = kafka.error_of(failure)
            if error is not None and error.code() > 0:
                # A broker's word, not a broker that is away. This client keeps the leaders and epochs that it knows for
                # minutes, and is refused (FENCED_LEADER_EPOCH) as long after a broker was started again.
                self._admin = self._connect()
            raise

    def _connect(self) -> AdminClient:
        return kafka.admin(self._settings.kafka, f"{self._settings.name}-ends")

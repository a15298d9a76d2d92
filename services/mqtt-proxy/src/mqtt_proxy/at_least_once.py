"""Publishes of QoS 0 and 1: each record straight to the producer, the answer when all of them are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from mqtt_proxy.answers import Answer
from mqtt_proxy.front_door import FrontDoor
from mqtt_proxy.packets import Publish
from mqtt_proxy.translate import Translated
from servicekit import logs
from servicekit.delivery import QueueFullError

if TYPE_CHECKING:
    from mqtt_proxy.connection import Connection

_log = logs.logger(__name__)


class Delivery:
    """A QoS 0 or 1 publish on its way; called with the report of each of its records."""

    __slots__ = ("_error", "_payload_bytes", "_remaining", "_started_s", "answer", "connection", "qos", "translated")

    def __init__(self, connection: Connection, publish: Publish, translated: Translated, started_s: float) -> None:
        self.connection = connection
        self.qos = publish.qos
        self.translated = translated
        self.answer = Answer(publish.packet_id) if publish.qos else None
        self._remaining = len(translated.records)
        self._payload_bytes = len(publish.payload)
        self._started_s = started_s
        self._error: KafkaError | None = None

    def send(self, door: FrontDoor) -> None:
        """Hand all records to the producer."""
        records = self.translated.records
        door.took(len(records), self._payload_bytes)
        if not records:
            self._finish()
            return
        produce = door.producer.produce
        for sent, (topic, key, value, headers) in enumerate(records):
            try:
                produce(topic, key=key, value=value, headers=headers, on_delivery=self)
            except (QueueFullError, KafkaException) as failure:
                # Those handed over before will report; the rest never will.
                _log.error("a record cannot be produced", topic=topic, reason=repr(failure))
                self._remaining -= len(records) - sent - 1
                self(KafkaError(KafkaError._QUEUE_FULL))
                return

    def __call__(self, error: KafkaError | None) -> None:
        self._remaining -= 1
        if error is not None:
            self._error = error
        if not self._remaining:
            self._finish()

    def _finish(self) -> None:
        connection = self.connection
        door = connection.door
        stored = self._error is None
        door.finished(len(self.translated.records), self._payload_bytes)
        if stored:
            door.count_stored(self.translated, self.qos, connection.loop.time() - self._started_s)
        else:
            door.count_refused(self.qos, connection.arrival.client_id, str(self._error))
        if self.answer is not None:
            connection.pubacks.decided(self.answer, stored=stored)

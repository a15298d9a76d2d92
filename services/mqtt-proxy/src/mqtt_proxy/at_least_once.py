"""Publishes of QoS 0 and 1: each record straight to the producer, the answer when all of them are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from mqtt_proxy.answers import Answer
from mqtt_proxy.front_door import FrontDoor
from mqtt_proxy.packets import Publish
from mqtt_proxy.translate import Translated

if TYPE_CHECKING:
    from mqtt_proxy.connection import Connection


class Delivery:
    """A QoS 0 or 1 publish on its way; called when Kafka has decided about all of its records."""

    __slots__ = ("_payload_bytes", "_started_s", "answer", "connection", "qos", "translated")

    def __init__(self, connection: Connection, publish: Publish, translated: Translated, started_s: float) -> None:
        self.connection = connection
        self.qos = publish.qos
        self.translated = translated
        self.answer = Answer(publish.packet_id) if publish.qos else None
        self._payload_bytes = len(publish.payload)
        self._started_s = started_s

    def send(self, door: FrontDoor) -> None:
        """Hand all records to the producer."""
        records = self.translated.records
        door.took(len(records), self._payload_bytes)
        if records:
            door.producer.produce_all(records, self)
        else:
            self(None)

    def __call__(self, error: KafkaError | None) -> None:
        connection = self.connection
        door = connection.door
        door.finished(len(self.translated.records), self._payload_bytes)
        if error is None:
            door.count_stored(self.translated, self.qos, connection.loop.time() - self._started_s)
        else:
            door.count_refused(self.qos, connection.arrival.client_id, str(error))
        if self.answer is not None:
            connection.pubacks.decided(self.answer, stored=error is None)

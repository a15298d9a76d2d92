"""Publishes of QoS 0 and 1: each record straight to the producer, the answer when all of them are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.delivery.transactional_writer import RECORDS_AT_FAULT
from isotherm.mqtt_proxy.ingest.translation import Translated
from isotherm.mqtt_proxy.protocol.ack_queue import Answer
from isotherm.mqtt_proxy.server.server import FrontDoor

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection


class Delivery:
    """A QoS 0 or 1 publish on its way; called when Kafka has decided about all of its records.

    When Kafka refuses a record for its own sake, the publish becomes a dead letter: its device would send it again for
    ever, and everything behind it would wait.
    """

    __slots__ = ("_bytes", "_is_dead_letter", "_publish", "_started_s", "answer", "connection", "translated")

    def __init__(self, connection: Connection, publish: Publish, translated: Translated, started_s: float) -> None:
        self.connection = connection
        self.translated = translated
        self.answer = Answer(publish.packet_id) if publish.qos else None
        self._publish = publish
        self._is_dead_letter = False
        self._bytes = 0
        self._started_s = started_s

    def send(self, door: FrontDoor) -> None:
        """Hand all records to the producer."""
        translated = self.translated
        self._bytes = translated.bytes + len(self._publish.payload)
        door.took(len(translated.records), self._bytes)
        if translated.records:
            door.producer.produce_all(translated.records, self)
        else:
            self(None)

    def __call__(self, error: KafkaError | None) -> None:
        connection, qos = self.connection, self._publish.qos
        door = connection.door
        door.finished(len(self.translated.records), self._bytes)
        if error is not None and error.code() in RECORDS_AT_FAULT and not self._is_dead_letter:
            self._is_dead_letter = True
            self.translated = door.translator.refused(self._publish, connection.arrival, error.str())
            told = door.refusal(self.translated, connection.protocol.version) if self.answer is not None else None
            if self.answer is None or told is None:
                self.send(door)
            else:
                connection.pubacks.decided(self.answer, stored=False, why=told)
            return
        if error is None:
            door.count_stored(self.translated, qos, connection.loop.time() - self._started_s)
        else:
            door.count_refused(qos, connection.arrival.client_id, str(error))
        if self.answer is not None:
            connection.pubacks.decided(self.answer, stored=error is None)

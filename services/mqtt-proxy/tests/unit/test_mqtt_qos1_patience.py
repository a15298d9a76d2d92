"""What a publish of QoS 0 or 1 tells the producer about its client's patience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.translation import TranslatedPublish
from isotherm.servicekit.producer.delivery import OnDelivery

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class World:
    """One client whose publishes Kafka answers when the test says so; `now_s` is the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[tuple[float, float]] = []
        self.at_once: list[OnDelivery] = []
        self.waiting: list[OnDelivery] = []
        self.acknowledged = 0
        pipeline = SimpleNamespace(
            clock=lambda: self.now_s,
            translator=self,
            producer=self,
            gate=SimpleNamespace(acquire=lambda _records, _size: None, release=lambda _records, _size: None),
            metrics=SimpleNamespace(count_stored=lambda _translated, _qos, _seconds: None),
            refusal=lambda _translated, _version: None,
        )
        protocol, port, acks = SimpleNamespace(version=4), SimpleNamespace(), self
        self.receiver = Qos1Receiver(
            cast(Any, pipeline), cast(Any, protocol), cast(Any, port), context=cast(Any, None), acks=cast(Any, acks)
        )

    # The pipeline's translator.

    def translate(self, _publish: Publish, _context: object) -> TranslatedPublish:
        return TranslatedPublish(records=[ProducerRecord("readings", "dev", b"1", [])])

    def dead_letter(self, _publish: Publish, _context: object, _detail: str) -> TranslatedPublish:
        return TranslatedPublish(records=[ProducerRecord("dead letters", "dev", b"1", [])])

    # The client's acknowledgements.

    def expect(self, _packet_id: int) -> object:
        return object()

    def complete(self, _ack: object) -> None:
        self.acknowledged += 1

    # The pipeline's producer.

    def publish(
        self, _records: Sequence[ProducerRecord], on_delivery: OnDelivery, *, now_s: float, since_answer_s: float
    ) -> None:
        self.told.append((now_s, since_answer_s))
        self.waiting.append(on_delivery)

    def produce_all(self, _records: Sequence[ProducerRecord], on_delivery: OnDelivery) -> None:
        self.at_once.append(on_delivery)

    def client_publishes(self, qos: int = 1) -> None:
        self.receiver.publish(Publish("devices/dev", b"{}", qos=qos, packet_id=1))


def test_the_time_since_the_last_answer_is_told() -> None:
    world = World()
    world.client_publishes()
    world.now_s = 100.5
    world.waiting.pop()(None)
    world.now_s = 100.75
    world.client_publishes()
    world.client_publishes(qos=0)
    assert world.told == [(100.0, math.inf), (100.75, 0.25), (100.75, math.inf)]
    assert world.acknowledged == 1


def test_a_publish_of_qos_0_is_no_answer() -> None:
    world = World()
    world.client_publishes(qos=0)
    world.waiting.pop()(None)
    world.client_publishes()
    assert world.told[-1] == (100.0, math.inf)


def test_a_dead_letter_goes_at_once_and_the_publish_is_answered_when_kafka_has_it() -> None:
    world = World()
    world.client_publishes()
    world.now_s = 101.0
    world.waiting.pop()(TOO_LARGE)
    assert (len(world.at_once), world.acknowledged) == (1, 0)
    world.client_publishes()
    world.now_s = 102.0
    world.at_once.pop()(None)
    world.client_publishes()
    assert world.told == [(100.0, math.inf), (101.0, math.inf), (102.0, 0.0)]
    assert world.acknowledged == 1

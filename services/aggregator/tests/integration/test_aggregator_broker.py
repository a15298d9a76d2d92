"""The questions that the driver asks Kafka directly."""

from __future__ import annotations

import pytest

from isotherm.aggregator.kafka_clients import open_broker
from isotherm.aggregator.watermark.clock import UnreadPartition
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings
from isotherm.stack.servers.kafka import Kafka

pytestmark = pytest.mark.integration

TOPIC = "aggregator-broker"


def test_what_is_unread_is_seen_as_often_as_it_is_asked_for(kafka: Kafka) -> None:
    """Under a steady load there are always unread records; the time must advance nevertheless."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    ensure_topic(clients.admin(settings, TOPIC), TOPIC)
    producer = clients.producer(settings, TOPIC)
    for number in range(3):
        producer.produce(TOPIC, value=str(number), timestamp=1_000 + number)
    assert producer.flush(60) == 0
    broker = open_broker(settings)
    try:
        ends = broker.end_offsets([TOPIC], committed=False)
        asked = [
            broker.unread_partitions({(TOPIC, 0): number}, ends, lambda value: int(value or b"")) for number in range(3)
        ]
    finally:
        broker.close()
    assert asked == [[UnreadPartition(1_000 + number, number)] for number in range(3)]

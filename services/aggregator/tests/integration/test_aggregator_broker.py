"""The questions that the driver asks Kafka directly."""

from __future__ import annotations

from pathlib import Path

import pytest
from aggregator_world import wait_for
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka_clients import open_broker
from isotherm.aggregator.recompute.topic_reader import removed_until_ms
from isotherm.aggregator.settings import AggregatorSettings
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


DAY_MS = 86_400_000
NOW_MS = 1_767_225_600_000


def test_a_partition_that_expired_whole_says_that_its_records_were_older_than_the_retention(kafka: Kafka) -> None:
    """Not that everything up to now is gone: then no window could be corrected until a late reading came there."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    admin = clients.admin(settings, TOPIC)
    late, output = f"{TOPIC}-late", f"{TOPIC}-output"
    for name in (late, output):
        ensure_topic(admin, name)
    chosen = AggregatorSettings(
        checkpoint_dir=Path("c"), jars_dir=Path("j"), late_topic=late, output_topic=output, max_skew_ms=2_000
    )

    def configure(**values: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, late, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)
        asked = ConfigResource(ResourceType.TOPIC, late)

        def are_known() -> bool:
            # The controller has them first.
            found = admin.describe_configs([asked])[asked].result(30)
            return all(found[entry.name].value == entry.value for entry in entries)

        wait_for(are_known, "the topic's new configuration")

    broker = open_broker(settings)

    def answers() -> bool:
        # A topic is made before its partitions have a leader.
        try:
            broker.log_bounds([late, output])
        except BrokerError:
            return False
        return True

    try:
        wait_for(answers, "the leaders of new partitions")
        assert removed_until_ms(chosen, broker, NOW_MS) is None
        producer = clients.producer(settings, TOPIC)
        producer.produce(late, value="a late reading of long ago")
        assert producer.flush(60) == 0
        admin.delete_records([TopicPartition(late, 0, 1)])[TopicPartition(late, 0)].result(30)
        after_ms = 2_000 + chosen.max_publish_delay_ms
        configure(retention_ms=str(7 * DAY_MS), retention_bytes="-1", cleanup_policy="delete")
        assert removed_until_ms(chosen, broker, NOW_MS) == NOW_MS - 7 * DAY_MS + after_ms
        # The newest record that is there came when no older one was left, or was: only the age tells.
        producer.produce(late, value="a late reading", timestamp=NOW_MS - DAY_MS)
        assert producer.flush(60) == 0
        assert removed_until_ms(chosen, broker, NOW_MS) == NOW_MS - 7 * DAY_MS + after_ms
        configure(retention_bytes="1000000")
        assert removed_until_ms(chosen, broker, NOW_MS) == NOW_MS - DAY_MS + after_ms
    finally:
        broker.close()

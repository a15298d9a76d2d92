"""Partitions are added to the topic of devices while the service follows it."""

from __future__ import annotations

import pytest
from alerts_world import until
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # re-exported, but not in its __all__

from isotherm.alerts.input.device_table_follower import READER, DeviceTableFollower
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

TOPIC = "alerts-devices-topic"
DEADLINE_S = 60.0


def test_devices_of_added_partitions_are_known(kafka: Kafka, registry: Registry) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    schemas = RegistrySettings(url=registry.url)
    declared = DeclaredTopic(TOPIC, 1, {"cleanup.policy": "compact"})
    apply(settings, schemas, topics=[declared], subjects=[DeclaredSubject(f"{TOPIC}-value", [READER])])
    encode = SchemaRegistry(schemas).encoder(TOPIC, READER)
    known = DeviceTable(AlertsSettings().rule_book(), {})

    def put(device_id: str, partition: int) -> None:
        nothing: dict[str, object] = {"home": None, "room": None, "region": None, "model": None, "thresholds": {}}
        value = encode({"device_id": device_id, **nothing})
        # A new one each time: it knows the partitions of its start.
        producer = clients.producer(settings, TOPIC)
        producer.produce(TOPIC, key=device_id, value=value, partition=partition)
        assert producer.flush(30) == 0

    follower = DeviceTableFollower(
        TOPIC,
        lambda: clients.consumer(settings, TOPIC, TOPIC, enable_partition_eof=True),
        SchemaRegistry(schemas),
        known,
        Metrics(),
        partitions_interval_s=0.2,
    )
    follower.start()
    try:
        put("first", 0)
        until("the first device", lambda: known.get("first") is not None, DEADLINE_S)
        admin = clients.admin(settings, TOPIC)
        admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result()
        until("partitions", lambda: len(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions) == 3, DEADLINE_S)
        put("added", 2)
        until("the device in an added partition", lambda: known.get("added") is not None, DEADLINE_S)
    finally:
        follower.close()

"""Names and addresses of one running system's servers, topics, stores and ledgers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from isotherm.servicekit.settings import KafkaSettings, RegistrySettings


@dataclass(frozen=True)
class Addresses:
    """Servers, topics, stores and ledgers; the defaults are those of `examples/demo` on a local stack."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    elasticsearch_url: str = "http://127.0.0.1:9200"
    cassandra_host: str = "127.0.0.1"
    cassandra_port: int = 9042
    hazelcast_address: str = "127.0.0.1:5701"
    hazelcast_cluster: str = "dev"
    mqtt_ledgers: tuple[Path, ...] = ()
    coap_ledgers: tuple[Path, ...] = ()

    readings_topic: str = "thermostat.data"
    brightness_topic: str = "brightness"
    coap_topic: str = "coap_sensor_topic"
    aggregates_topic: str = "temperatures.aggregated"
    groups_topic: str = "temperatures.grouped"
    late_topic: str = "thermostat.late"
    alerts_topic: str = "alerts"
    latest_topic: str = "devices.latest"
    aggregator_dead_letters: str = "aggregator.dead-letters"

    aggregates_index: str = "temperatures-aggregated-*"
    groups_index: str = "temperatures-2*"
    keyspace: str = "isotherm"
    aggregates_table: str = "temperatures_aggregated"
    brightness_table: str = "brightness"
    queue: str = "dev"
    aggregates_map: str = "temperatures"
    expected_dead_letters: dict[str, int] = field(default_factory=dict)
    """Dead-letter records that a run provoked on purpose, by topic."""

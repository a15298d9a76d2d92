"""The servers of the benches of the alerts service, and one process of the service."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from isotherm.cli.apply import apply
from isotherm.schemas import schema
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import ports
from isotherm.stack.measurement import metrics
from isotherm.stack.stack import Stack
from measured_process import MeasuredProcess
from prepared_readings import partition_of

INPUT, ALERTS = "thermostat.data", "alerts"
RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30, "hysteresis": 1},
    {"kind": "below", "metric": "temperature", "threshold": 5, "hysteresis": 1},
    {"kind": "rate", "metric": "temperature", "threshold": 50},
    {"kind": "flat", "metric": "temperature"},
    # The readings of a full topic are older than their records, so the time of silence is generous.
    {"kind": "silent", "min_ms": 600_000},
]
"""Typical rules. The readings of the bench break only `above`."""


class Reactions(NamedTuple):
    """The service's own account of how long alerts took."""

    sum_s: float
    alerts: float
    within: Mapping[float, float]
    """How many took at most so many seconds."""

    def __sub__(self, before: Reactions) -> Reactions:
        within = {limit_s: count - before.within[limit_s] for limit_s, count in self.within.items()}
        return Reactions(self.sum_s - before.sum_s, self.alerts - before.alerts, within)

    def mean_ms(self) -> float:
        """Return the mean."""
        return 1_000 * self.sum_s / self.alerts

    def share_within(self, limit_s: float) -> float:
        """Return the share that took at most so long, which is a limit of the histogram."""
        return self.within[limit_s] / self.alerts


class AlertsProcess(MeasuredProcess):
    """One replica of the service."""

    def __init__(self, folder: Path, kafka_settings: KafkaSettings, registry: RegistrySettings) -> None:
        self.port = ports.hold_free_port()
        chosen = {
            "kafka.bootstrap_servers": kafka_settings.bootstrap_servers,
            "registry.url": registry.url,
            "http.port": self.port,
            "rules": json.dumps(RULES),
        }
        sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        super().__init__([sys.executable, "-m", "isotherm.alerts", "run", *sets], folder / "alerts.log")
        ports.release(self.port)

    def read(self) -> int:
        return int(self.metric("readings_read_total"))

    def metric(self, name: str) -> float:
        """Return one metric, summed over its labels."""
        found = metrics(self.port)
        return sum(value for key, value in found.items() if key.partition("{")[0] == f"isotherm_alerts_{name}")

    def reactions(self) -> Reactions:
        """Return the histogram of the time from the ingest time of a reading until Kafka had its alert."""
        name = "isotherm_alerts_reaction_seconds"
        found = {key.removeprefix(name): value for key, value in metrics(self.port).items() if key.startswith(name)}
        within = {float(key.split('"')[1]): value for key, value in found.items() if key.startswith("_bucket")}
        return Reactions(found["_sum"], found["_count"], within)


class World:
    """The servers with every declared topic."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.folder, self.broker_pid = folder, stack.kafka.pid
        self.kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=stack.registry.url)
        apply(self.kafka, self.registry)
        self._schemas = SchemaRegistry(self.registry)
        self._decode = Decoder(self._schemas)

    def service(self) -> AlertsProcess:
        """Return a replica that is not started."""
        return AlertsProcess(self.folder, self.kafka, self.registry)

    def schema_id(self, topic: str, name: str, version: int) -> int:
        """Return the id of a registered schema."""
        return self._schemas.schema_id(f"{topic}-value", schema(name, version))

    def partitions(self) -> int:
        """Return how many partitions the input has."""
        admin = clients.admin(self.kafka, "bench")
        return len(admin.list_topics(INPUT, timeout=30).topics[INPUT].partitions)

    def publish(self, readings: Iterable[Mapping[str, Any]]) -> None:
        """Produce readings to the input topic, where `fill_changelog` has their devices, without the proxy."""
        encode = self._schemas.encoder(INPUT, schema("SensorReading", 1))
        producer, partitions = clients.producer(self.kafka, "bench", linger_ms=50), self.partitions()
        for reading in readings:
            name = reading["device_id"]
            while True:
                try:
                    producer.produce(INPUT, encode(reading), name, partition_of(name, partitions))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def consumer(self) -> Consumer:
        """Return a consumer of the alerts from the beginning."""
        made = clients.consumer(self.kafka, "bench", "bench", fetch_wait_max_ms=10)
        partitions = made.list_topics(ALERTS, timeout=30).topics[ALERTS].partitions
        made.assign([TopicPartition(ALERTS, number, 0) for number in partitions])
        return made

    def alert(self, value: bytes | None) -> dict[str, Any]:
        """Decode a record of the alerts."""
        record: dict[str, Any] = self._decode(value or b"").record
        return record

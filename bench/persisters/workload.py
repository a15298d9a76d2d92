"""The records of the bench: two topics, filled once, read by everything that is measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

import isotherm.schemas
from isotherm.cli.apply import apply, declared_subjects, declared_topics
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.persisters.api.record import Record
from isotherm.persisters.consuming.consumed_records import records_of
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

PARTITIONS = 4
"""As many as declared topics have. A task writes one batch of each partition at once, so this is also the number in
flight.
"""

STATUS = "isotherm.status"

_BASE_MS = 1_767_225_600_000
_WINDOW_MS = 10_000
_PRODUCED_AT_ONCE = 50_000


@dataclass(frozen=True)
class Workload:
    """A topic and its records."""

    topic: str
    record: str
    records: int


def _aggregate(device: int, window: int, chance: random.Random) -> Mapping[str, Any]:
    mean = round(chance.gauss(20.0, 3.0), 3)
    start = _BASE_MS + window * _WINDOW_MS
    return {
        "device_id": f"device-{device:06d}",
        "metric": "temperature",
        "window_start": start,
        "window_end": start + _WINDOW_MS,
        "count": 10,
        "sum": round(mean * 10, 3),
        "mean": mean,
        "min": mean - 1.5,
        "max": mean + 1.5,
        "stddev": 0.7,
        "revision": start + 15_000,
    }


def _reading(device: int, window: int, chance: random.Random) -> Mapping[str, Any]:
    time_ms = _BASE_MS + window * 1_000 + chance.randrange(1_000)
    return {
        "device_id": f"device-{device:06d}",
        "metric": "temperature",
        "value": round(chance.gauss(20.0, 3.0), 2),
        "unit": "Cel",
        "event_time": time_ms,
        "ingest_time": time_ms + 40,
        "sequence": window,
        "attributes": {"room": "kitchen"},
    }


_MAKERS: Mapping[str, Callable[[int, int, random.Random], Mapping[str, Any]]] = {
    "TemperatureAggregate": _aggregate,
    "SensorReading": _reading,
}


def declare(kafka_settings: KafkaSettings, registry: RegistrySettings, *workloads: Workload) -> None:
    """Create the topics and their subjects, and the topic of the tasks' status."""
    topics = [topic for topic in declared_topics() if topic.name == STATUS]
    subjects = [subject for subject in declared_subjects() if subject.name == f"{STATUS}-value"]
    for workload in workloads:
        topics.append(DeclaredTopic(workload.topic, PARTITIONS, {}))
        subjects.append(DeclaredSubject(f"{workload.topic}-value", [isotherm.schemas.schema(workload.record, 1)]))
    apply(kafka_settings, registry, topics=topics, subjects=subjects)


def fill(
    kafka_settings: KafkaSettings, registry: RegistrySettings, workload: Workload, devices: int, first: int = 0
) -> None:
    """Write the records, one device after another, from record number `first` on; all are acknowledged on return."""
    schemas = SchemaRegistry(registry)
    encode = schemas.encoder(workload.topic, isotherm.schemas.schema(workload.record, 1))
    producer = clients.producer(
        kafka_settings, "bench", linger_ms=50, queue_buffering_max_messages=2 * _PRODUCED_AT_ONCE
    )
    make, chance = _MAKERS[workload.record], random.Random(first + 1)
    for number in range(first, workload.records):
        window, device = divmod(number, devices)
        value = make(device, window, chance)
        producer.produce(workload.topic, key=value["device_id"], value=encode(value))
        if number % _PRODUCED_AT_ONCE == 0 and producer.flush(60):
            raise RuntimeError("Kafka did not take the records of the bench")
    if producer.flush(60):
        raise RuntimeError("Kafka did not take the records of the bench")


def read_all(kafka_settings: KafkaSettings, workload: Workload) -> list[list[Record]]:
    """Return all records of the topic by partition, as the persister's loop gets them."""
    return [list(_partition(kafka_settings, workload.topic, number)) for number in range(PARTITIONS)]


def _partition(kafka_settings: KafkaSettings, topic: str, number: int) -> Iterator[Record]:
    consumer: Consumer = clients.consumer(kafka_settings, "bench", "bench-reader", enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, number, 0)])
    try:
        while True:
            messages = consumer.consume(10_000, 5.0)
            yield from records_of([message for message in messages if message.error() is None])
            if any(message.error() is not None for message in messages):
                return
    finally:
        consumer.close()

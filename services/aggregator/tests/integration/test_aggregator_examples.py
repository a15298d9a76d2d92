"""The jobs of examples/spark-joins on a real Kafka, in the Spark of the tests of data frames."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aggregator_world import READING, Topics
from pyspark.sql import SparkSession

from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.class_archives import spark_classes
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytest_plugins = ("aggregator_spark",)
pytestmark = [
    pytest.mark.integration,
    # pyspark leaves the socket of every collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

JOBS = Path(__file__).parents[4] / "examples" / "spark-joins"
WEEK_MS = 7 * 24 * 3_600_000
WINDOW_MS = 60_000


class World:
    """Topics with devices, and producers of readings and aggregates."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self._registry = SchemaRegistry(topics.registry)
        self._producer = clients.producer(topics.kafka, topics.name)

    def put(self, topic: str, record: str, key: str, value: Mapping[str, Any], written_ms: int = 0) -> None:
        encoded = self._registry.encoder(topic, schema(record, 1))(value)
        self._producer.produce(topic, key=key, value=encoded, timestamp=written_ms)

    def device(self, device_id: str, home: str, room: str) -> None:
        nothing: dict[str, Any] = {"region": None, "model": None, "thresholds": {}}
        self.put(
            self.topics.devices, "Device", device_id, {"device_id": device_id, "home": home, "room": room, **nothing}
        )

    def reading(self, device_id: str, value: float, event_ms: int, metric: str = "temperature") -> None:
        reading = {
            "device_id": device_id,
            "metric": metric,
            "value": value,
            "unit": "Cel",
            "event_time": event_ms,
            "ingest_time": event_ms,
            "sequence": 0,
            "attributes": {},
        }
        self.put(self.topics.input, "SensorReading", device_id, reading, written_ms=event_ms)

    def window(self, device_id: str, mean: float, start_ms: int, revision: int) -> None:
        numbers = {"count": 2, "sum": 2 * mean, "mean": mean, "min": mean, "max": mean, "stddev": 0.0}
        times = {"window_start": start_ms, "window_end": start_ms + WINDOW_MS, "revision": revision}
        row = {"device_id": device_id, "metric": "temperature", **times, **numbers}
        key = f"{device_id}|temperature|{start_ms}|{start_ms + WINDOW_MS}"
        self.put(self.topics.output, "TemperatureAggregate", key, row, written_ms=start_ms + 2 * WINDOW_MS)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


@pytest.fixture(scope="module")
def world(kafka: Kafka, registry: Registry) -> World:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-examples")
    topics.declare([READING])
    return World(topics)


@pytest.fixture(scope="module")
def settings(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    topics = world.topics
    return {
        "kafka": topics.kafka,
        "registry": topics.registry,
        "input_topics": [topics.input],
        "output_topic": topics.output,
        "devices_topic": topics.devices,
        "window_ms": WINDOW_MS,
        "shuffle_partitions": 1,
        "trigger_ms": 100,
        "jars_dir": Artifacts().folder("spark"),
        "checkpoint_dir": tmp_path_factory.mktemp("examples"),
        "spark": {
            "master": "local[2]",
            "java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "class_archive": spark_classes(),
        },
    }


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(JOBS))
    return importlib.import_module("joining")


@pytest.fixture
def joined(
    joining: Any, world: World, settings: dict[str, Any], spark: SparkSession
) -> Callable[[str], list[dict[str, Any]]]:
    """Runs a job over what is in the topics; its rows."""

    def run(name: str) -> list[dict[str, Any]]:
        result = f"{world.topics.name}.{name}"
        ensure_topic(clients.admin(world.topics.kafka, name), result)
        chosen = joining.JoinSettings.model_validate({**settings, "result_topic": result})
        query = importlib.import_module(name).start(joining.Topics(spark, chosen))
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return [json.loads(message.value() or b"") for message in world.topics.read(result)]

    return run


@pytest.mark.long
def test_temperatures_inside_and_outside_of_one_home(
    world: World, joined: Callable[[str], list[dict[str, Any]]]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    for device_id, home, room in (("in", "h1", "kitchen"), ("out", "h1", "outdoors"), ("far", "h2", "outdoors")):
        world.device(device_id, home, room)
    world.reading("in", 21.0, now_ms)
    world.reading("in", 40.0, now_ms, metric="humidity")
    world.reading("out", 5.0, now_ms - 30_000)
    world.reading("out", 6.5, now_ms + 20_000)
    world.reading("out", 7.0, now_ms + 30_001)
    world.reading("far", 8.0, now_ms)
    world.flush()
    rows = joined("indoor_outdoor")
    assert {(row["device_id"], row["outdoor_device_id"], row["room"]) for row in rows} == {("in", "out", "kitchen")}
    found = sorted((row["outdoor_event_time_ms"] - row["event_time_ms"], row["difference"]) for row in rows)
    assert found == [(-30_000, 16.0), (20_000, 14.5)]


def test_a_reading_beside_the_window_of_a_week_before(
    world: World, joined: Callable[[str], list[dict[str, Any]]]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    then_ms = (now_ms - WEEK_MS) // WINDOW_MS * WINDOW_MS
    world.window("weekly", 18.0, then_ms, revision=1)
    world.window("weekly", 19.0, then_ms, revision=2)
    world.window("weekly", 90.0, then_ms - WINDOW_MS, revision=3)
    world.window("weekly", 91.0, then_ms + WINDOW_MS, revision=3)
    world.reading("weekly", 20.5, now_ms)
    world.reading("nothing a week before", 20.5, now_ms)
    world.flush()
    rows = [row for row in joined("against_last_week") if row["event_time_ms"] == now_ms]
    assert [(row["device_id"], row["deviation"], row["revision_a_week_before"]) for row in rows] == [("weekly", 1.5, 2)]

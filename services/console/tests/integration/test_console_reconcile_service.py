"""`isotherm-console reconcile` on a real Kafka: a thousand faults are named, and nothing else is."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__
from console_world import WAIT_S, Process, World, until
from unreconciled import open_findings

import isotherm.schemas
from isotherm.connector.distributed import worker_status
from isotherm.connector.errors.dead_letters import dead_letter_headers
from isotherm.connector.state import status
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

READING, WINDOW = isotherm.schemas.schema("SensorReading", 1), isotherm.schemas.schema("TemperatureAggregate", 1)
WINDOW_MS, PATIENCE_MS = 2_000, 3_000
DEVICES, WINDOWS, READINGS, FAULTS = 500, 4, 3, 1_000
KINDS = ("dropped", "doubled", "altered", "missing", "wrong window")
Key = tuple[str, int]
"""A window: device and start."""
Told = dict[Key, str]


@dataclass
class Pipeline:
    """Topics of its own, in which the test plays doors and aggregator."""

    world: World
    name: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:8]}")
    ingested: dict[Key, list[float]] = field(default_factory=dict)
    """The values of each window."""
    with_late: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.readings, self.windows, self.late, self.dead = (
            f"{self.name}.{topic}" for topic in ("readings", "windows", "late", "dead-letters")
        )
        stamped = {"message.timestamp.type": "LogAppendTime"}
        topics = [
            NewTopic(self.readings, 3, 1, config=stamped),
            NewTopic(self.windows, 3, 1),
            NewTopic(self.late, 3, 1),
        ]
        for future in self.world.admin.create_topics([*topics, NewTopic(self.dead, 1, 1)]).values():
            future.result(WAIT_S)
        schemas = SchemaRegistry(self.world.registry)
        self._producer = clients.producer(self.world.kafka, "test")
        self._reading, self._window = (
            schemas.encoder("thermostat.data", READING),
            schemas.encoder("temperatures.aggregated", WINDOW),
        )
        self._status = schemas.encoder(status.TOPIC, worker_status.SCHEMA)
        self.begin_ms = int(time.time() * 1_000) // WINDOW_MS * WINDOW_MS - 60 * WINDOW_MS

    def reading(self, device: str, at_ms: int, value: float, *topics: str) -> None:
        for topic in topics or (self.readings,):
            self._producer.produce(topic, key=device, value=self._encoded(device, at_ms, value))
            self._producer.poll(0)

    def _encoded(self, device: str, at_ms: int, value: float) -> bytes:
        return self._reading(
            {
                "device_id": device,
                "metric": "temperature",
                "value": value,
                "unit": "Cel",
                "event_time": at_ms,
                "ingest_time": at_ms,
                "sequence": at_ms % WINDOW_MS,
                "attributes": {},
            }
        )

    def refused_reading(self, device: str, at_ms: int, value: float) -> None:
        """A reading, and the aggregator's dead letter of it."""

        def refuse(_error: Any, stored: Message) -> None:
            headers = dead_letter_headers(
                ValueError("it lies in the future"),
                stage="TASK_PUT",
                connector="aggregator",
                class_name="aggregator",
                topic=self.readings,
                partition=stored.partition() or 0,
                offset=stored.offset() or 0,
            )
            self._producer.produce(self.dead, key=device, value=stored.value(), headers=headers)

        self._producer.produce(self.readings, key=device, value=self._encoded(device, at_ms, value), on_delivery=refuse)

    def row(self, key: Key, values: list[float], revision: int = 1) -> None:
        device, start_ms = key
        count, total = len(values), sum(values)
        record = {
            "device_id": device,
            "metric": "temperature",
            "window_start": start_ms,
            "window_end": start_ms + WINDOW_MS,
            "count": count,
            "sum": total,
            "mean": total / count,
            "min": min(values),
            "max": max(values),
            "stddev": 0.0,
            "revision": revision,
        }
        identity = f"{device}|temperature|{start_ms}|{start_ms + WINDOW_MS}"
        self._producer.produce(self.windows, key=identity, value=self._window(record))

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def tell_watermark(self, at_ms: int) -> None:
        """What the aggregator's heartbeat tells."""
        now_ms = int(time.time() * 1_000)
        record = {
            "connector": self.name,
            "task": 0,
            "worker": "test",
            "worker_group": "",
            "state": "RUNNING",
            "trace": None,
            "counts": {"watermark_ms": at_ms, "read_until_ms": now_ms},
            "lag": {},
            "classes": [],
            "updated_at": now_ms,
        }
        key = status.status_key(self.name, 0, "test")
        self._producer.produce(status.TOPIC, key=key, value=self._status(record))
        self.flush()

    def ingest(self) -> None:
        """Readings of every fate."""
        for number in range(DEVICES):
            device = f"{self.name}-{number}"
            for window in range(WINDOWS):
                start_ms = self.begin_ms + window * WINDOW_MS
                values = [20 + random.random() for _ in range(READINGS)]
                for at, value in enumerate(values):
                    self.reading(device, start_ms + at, value)
                if number % 5 == 1:
                    # A late one, and one that the aggregator refuses.
                    self.with_late.add((device, start_ms))
                    self.reading(device, start_ms + 10, 50.0, self.readings, self.late)
                    self.refused_reading(device, start_ms + 11, 60.0)
                if number % 5 == 2:
                    # A device that sends again counts twice.
                    self.reading(device, start_ms, values[0])
                    values.append(values[0])
                self.ingested[device, start_ms] = values
        self.flush()

    def publish(self, faults: Mapping[Key, str], revision: int = 1) -> Told:
        """Publish all windows, some of them wrong; return the kinds of what must be found."""
        told: Told = {}
        for key, values in self.ingested.items():
            fault = faults.get(key)
            if fault == "missing":
                told[key] = "missing"
            elif fault == "dropped":
                told[key] = "incomplete"
                self.row(key, values[1:], revision)
            elif fault == "doubled":
                # With a late reading it has no more than there are, and another sum.
                told[key] = "different" if key in self.with_late else "surplus"
                self.row(key, [*values, values[0]], revision)
            elif fault == "altered":
                told[key] = "different"
                self.row(key, [values[0] + 1e-6, *values[1:]], revision)
            elif fault == "wrong window":
                device, start_ms = key
                other = (device, start_ms + 10 * WINDOW_MS)
                told |= {key: "incomplete", other: "surplus"}
                self.row(key, values[1:], revision)
                self.row(other, values[:1], revision)
            else:
                self.row(key, values, revision)
        self.flush()
        return told

    def found_at(self, watermark_ms: int) -> Told:
        """What is open, after a heartbeat of the aggregator."""
        self.tell_watermark(watermark_ms)
        return self.found()

    def found(self) -> Told:
        """What is open."""
        found = [(one["identity"], one["kind"]) for one in open_findings(self.world.kafka, self.world.registry)]
        # Of other hops no identity is a window's.
        return {
            (identity["device_id"], int(identity["window_start"])): kind
            for identity, kind in found
            if identity.get("device_id", "").startswith(self.name)
        }


@pytest.fixture
def pipeline(world: World) -> Pipeline:
    return Pipeline(world)


@pytest.fixture
def reconciler(world: World, pipeline: Pipeline) -> Process:
    """`isotherm-console reconcile` over the pipeline's topics."""
    return world.reconcile(
        pipeline.name,
        aggregators=pipeline.name,
        reading_topics=pipeline.readings,
        windows_topic=pipeline.windows,
        late_topic=pipeline.late,
        dead_letter_topic=pipeline.dead,
        window_ms=WINDOW_MS,
        patience_ms=PATIENCE_MS,
    )


def until_found(pipeline: Pipeline, reconciler: Process, wanted: Told, watermark_ms: int) -> None:
    def is_it() -> bool:
        return pipeline.found_at(watermark_ms) == wanted

    def told() -> str:
        found = pipeline.found()
        differing = {
            key: (found.get(key), wanted.get(key)) for key in found | wanted if found.get(key) != wanted.get(key)
        }
        return f"{len(found)} of {len(wanted)}, {dict(list(differing.items())[:9])}\n{reconciler.log()}"

    until("everything is found and nothing else", is_it, told)


def test_a_thousand_faults_are_named_through_kills_and_settled_when_they_are_mended(
    pipeline: Pipeline, reconciler: Process
) -> None:
    pipeline.ingest()
    chosen = random.sample(sorted(pipeline.ingested), FAULTS)
    faults = dict(zip(chosen, random.choices(KINDS, k=FAULTS), strict=True))
    told = pipeline.publish(faults)
    assert len(told) > FAULTS
    assert set(Counter(told.values())) == {"missing", "incomplete", "surplus", "different"}
    watermark_ms = pipeline.begin_ms + 20 * WINDOW_MS
    until("some are found", lambda: bool(pipeline.found_at(watermark_ms)), reconciler.log)
    reconciler.kill()
    reconciler.start()
    until_found(pipeline, reconciler, told, watermark_ms)
    # Nobody can take back a row of a window that has no readings: a correction says that it has none of them.
    mended = {key: kind for key, kind in told.items() if key not in pipeline.ingested}
    pipeline.publish({}, revision=2)
    until_found(pipeline, reconciler, mended, watermark_ms)
    assert reconciler.stop() == 0

"""Writers and readers of two schema versions side by side on real servers, upgraded in both orders.

Nobody is restarted: what runs when a version arrives goes on with the connections and caches that it has.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from isotherm.cli.apply import RefusedError, apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.connector.config import files
from isotherm.connector.errors.policies import ErrorPolicy
from isotherm.contracts import schema_catalog
from isotherm.contracts.compatibility import gate
from isotherm.contracts.harness import plain
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.routes import Router, kcql_routes
from isotherm.mqtt_proxy.ingest.translation import IngestContext, IngestRules, Translator
from isotherm.mqtt_proxy.service import READING
from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.configuration import check
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

PATIENCE_S = 180.0
UNITS = {"temperature": "Cel"}


def _next(change: Callable[[dict[str, Any]], object]) -> schema_catalog.JsonSchema:
    """SensorReading as a later version would be."""
    copied: dict[str, Any] = json.loads(json.dumps(READING))
    change(copied)
    return copied


WITH_QUALITY = _next(lambda schema: schema["fields"].append({"name": "quality", "type": "string", "default": "good"}))
WITHOUT_ATTRIBUTES = _next(lambda schema: schema["fields"].pop())


class World:
    """One topic on the real servers."""

    def __init__(self, kafka: Kafka, registry: Registry) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry = RegistrySettings(url=registry.url)
        self.schemas = SchemaRegistry(self.registry)
        self.topic = f"mixed-{uuid.uuid4().hex[:8]}"
        self._producer: Producer = clients.producer(self.kafka, "mixed")

    def apply(self, *versions: schema_catalog.JsonSchema) -> None:
        """`isotherm apply` with these versions of the topic's record."""
        topics = [DeclaredTopic(self.topic, 2)]
        apply(self.kafka, self.registry, topics=topics, subjects=[DeclaredSubject(f"{self.topic}-value", versions)])

    def send(self, key: str | bytes | None, value: bytes | None) -> None:
        """Put one record into the topic; it is there on return."""
        self._producer.produce(self.topic, key=key, value=value)
        assert self._producer.flush(PATIENCE_S) == 0


class OldWriter:
    """The present MQTT proxy: its routes and its translator, with the encoder that it created at its start."""

    def __init__(self, world: World) -> None:
        self._world = world
        routes = kcql_routes(
            f"INSERT INTO {world.topic} SELECT id AS device_id, t AS value, seq AS sequence FROM d/+/temperature",
            device_level=None,
            metrics=frozenset(UNITS),
        )
        rules = IngestRules(
            units=UNITS,
            dead_letter_topic="dead",
            connector="mqtt-proxy",
            ordinal=0,
            drop_unrouted=False,
            topic_bytes=100,
            readings_per_publish=5,
        )
        encoders = {world.topic: world.schemas.encoder(world.topic, READING)}
        self._translator = Translator(Router(routes, first_match_only=False), encoders, rules)

    def __call__(self, sequence: int) -> None:
        payload = json.dumps({"id": f"d{sequence % 3}", "t": sequence / 2, "seq": sequence}).encode()
        publish = Publish("d/x/temperature", payload, qos=1)
        (record,) = self._translator.translate(publish, IngestContext("c", 1_767_225_600_000 + sequence)).records
        assert record.topic == self._world.topic
        self._world.send(record.key, record.value)


def new_writer(world: World, schema: schema_catalog.JsonSchema, **more: Any) -> Callable[[int], None]:
    """The writer of a later version."""
    encode = world.schemas.encoder(world.topic, schema)

    def write(sequence: int) -> None:
        at, device_id = 1_767_225_600_000 + sequence, f"d{sequence % 3}"
        fields = {"device_id": device_id, "metric": "temperature", "value": sequence / 2, "unit": "Cel"}
        world.send(
            device_id,
            encode({**fields, "event_time": at, "ingest_time": at, "sequence": sequence, "attributes": {}, **more}),
        )

    return write


class KeptRows:
    """A store in memory, and the loop's observer."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.failures: list[FailedRecord] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        self.rows += batch.rows
        return ()

    def wrote(self, rows: int, seconds: float) -> None: ...
    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None: ...

    def retried(self, rows: int) -> None: ...

    def settled(self, partition: tuple[str, int], counts: Counts) -> None: ...

    def committed(self, seconds: float, failed: bool) -> None: ...

    def failed(self, records: Sequence[FailedRecord]) -> None:
        self.failures += records


@contextmanager
def persister(world: World) -> Iterator[Callable[[], list[Mapping[str, Any]]]]:
    """The present persister with its loop, until the end of the block; yields what it has written so far."""
    text = f"name=mixed\nconnector.class=elasticsearch\ntopics={world.topic}\n"
    text += f"connect.elastic.url=http://127.0.0.1:1\nconnect.elastic.kcql=INSERT INTO r SELECT * FROM {world.topic}\n"
    kind = installed_sinks()["elasticsearch"]
    statements = check(kind, files.parse(text, form="properties")).statements
    schemas = SchemaRegistry(world.registry)
    kept, stop = KeptRows(), Stop()
    project = Projector(statements, value_decoder("auto", schemas), key_decoder("auto", schemas), kind.conventions)
    loop = Loop(
        LoopSettings([world.topic]),
        consumer=clients.consumer(
            world.kafka, "mixed", f"connect-{world.topic}", auto_offset_reset="earliest", enable_partition_eof=True
        ),
        sink=kept,
        project=project,
        try_project_batch=project.try_project_batch,
        policy=ErrorPolicy(),
        send_dead_letters=lambda _records: None,
        health=Health(),
        observer=kept,
    )
    thread = threading.Thread(target=loop.run, args=(stop,), name="persister")
    thread.start()
    try:
        yield lambda: [row.values or {} for row in list(kept.rows)]
        assert thread.is_alive(), "the loop ended by itself"
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not kept.failures


@contextmanager
def pinned_reader(world: World, schema: schema_catalog.JsonSchema) -> Iterator[Callable[[], list[Mapping[str, Any]]]]:
    """A reader that pins a version, as the aggregator does, until the end of the block; yields what it has read."""
    decode = Decoder(SchemaRegistry(world.registry), schema)
    found: list[Mapping[str, Any]] = []
    failures: list[Exception] = []
    stop = threading.Event()

    def read() -> None:
        consumer = clients.consumer(world.kafka, "mixed", f"pinned-{uuid.uuid4()}", auto_offset_reset="earliest")
        consumer.subscribe([world.topic])
        try:
            while not stop.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(plain(decode(message.value() or b"").record))
        except Exception as failure:
            failures.append(failure)
        finally:
            consumer.close()

    thread = threading.Thread(target=read, name="pinned reader")
    thread.start()
    try:
        yield lambda: list(found)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert failures == []


def until_read(reader: Callable[[], list[Mapping[str, Any]]], count: int) -> dict[int, Mapping[str, Any]]:
    """Wait until a reader has `count` records; return them by their sequence."""
    pause, waited_s = threading.Event(), 0.0
    while len(reader()) < count:
        pause.wait(0.1)
        waited_s += 0.1
        assert waited_s < PATIENCE_S, f"{len(reader())} of {count} records"
    by_sequence = {int(record["sequence"]): record for record in reader()}
    assert sorted(by_sequence) == list(range(count))
    assert all(record["value"] == sequence / 2 for sequence, record in by_sequence.items())
    return by_sequence


@pytest.mark.parametrize(
    ("newer", "more"), [(WITH_QUALITY, {"quality": "poor"}), (WITHOUT_ATTRIBUTES, {})], ids=["added", "removed"]
)
def test_writers_are_upgraded_first(
    kafka: Kafka, registry: Registry, newer: schema_catalog.JsonSchema, more: Mapping[str, Any]
) -> None:
    world = World(kafka, registry)
    world.apply(READING)
    old = OldWriter(world)
    with persister(world) as rows, pinned_reader(world, READING) as readings:
        old(0)
        until_read(rows, 1)
        until_read(readings, 1)
        world.apply(READING, newer)
        new = new_writer(world, newer, **more)
        new(1)
        old(2)
        new(3)
        stored, read = until_read(rows, 4), until_read(readings, 4)
    assert all(set(record) == {field["name"] for field in READING["fields"]} for record in read.values())
    assert set(stored[1]) == {field["name"] for field in newer["fields"]}
    assert set(stored[2]) == {field["name"] for field in READING["fields"]}


def test_readers_are_upgraded_first(kafka: Kafka, registry: Registry) -> None:
    world = World(kafka, registry)
    world.apply(READING)
    old = OldWriter(world)
    old(0)
    with ExitStack() as running:
        before = running.enter_context(pinned_reader(world, READING))
        after = running.enter_context(pinned_reader(world, WITH_QUALITY))
        until_read(before, 1)
        assert until_read(after, 1)[0]["quality"] == "good"
        world.apply(READING, WITH_QUALITY)
        old(1)
        new_writer(world, WITH_QUALITY, quality="poor")(2)
        old(3)
        assert [record["quality"] for _, record in sorted(until_read(after, 4).items())] == [
            "good",
            "good",
            "poor",
            "good",
        ]
        until_read(before, 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["fields"][2].update(name="reading"),
        lambda schema: schema["fields"].append({"name": "quality", "type": "string"}),
        lambda schema: schema["fields"].pop(3),
        lambda schema: schema["fields"][2].update(type=["null", "double"]),
    ],
    ids=["rename", "add without default", "remove without default", "widen"],
)
def test_the_registry_judges_as_the_gate_does(
    kafka: Kafka, registry: Registry, change: Callable[[dict[str, Any]], object]
) -> None:
    bad = _next(change)
    found = [*gate.rules(bad, READING), *gate.rules(READING, bad)]
    assert found
    world = World(kafka, registry)
    world.apply(READING)
    with pytest.raises(RefusedError, match="not compatible with the registered version 1"):
        world.apply(READING, bad)

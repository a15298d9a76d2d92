"""Transforms beside those of a real Kafka Connect worker: the same configurations and records, the results compared.

One connector of the worker has the chains of all cases; predicates let each see its own topic. A small sink records
what the worker hands over. Texts of errors are not compared, only which records are bad.
"""

from __future__ import annotations

import base64
import json
import math
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from transform_cases import (
    FIELDS,
    HEADERS,
    KEY,
    KEY_SCHEMA,
    MAPS,
    PACKAGE,
    SCHEMA,
    STRUCTS,
    WITH_SCHEMA,
    WITHOUT_SCHEMA,
    Case,
)

from isotherm.connector.transforms.chain import read_chain
from isotherm.connector.transforms.message import Message, TransformError
from isotherm.connector.transforms.numbers import single, text_of_double
from isotherm.connector.transforms.schemas import shape
from isotherm.connector.transforms.times import MS_PER_DAY, ms_of
from isotherm.persisters.records.decoded_value import Decode
from isotherm.persisters.records.decoding import value_decoder
from isotherm.persisters.records.derived_schemas import avro_of_connect
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.stack.java import find_java
from isotherm.stack.servers.connect import Connect
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.stack import Stack

pytestmark = pytest.mark.integration

JSON = "org.apache.kafka.connect.json.JsonConverter"
TIMESTAMP_MS = 1_769_860_800_123
PATIENCE_S = 120.0
SOURCE = Path(__file__).parent / "recording_sink" / "RecordingSink.java"
FILTERED, BAD = "filtered", "bad"


class World(NamedTuple):
    """The cases of values with schemas, or without."""

    cases: Sequence[Case]
    values: Sequence[Any]
    has_schema: bool

    def written(self, schema: Any, data: Any) -> bytes | None:
        """A value or key as bytes; None for a tombstone."""
        if data is None:
            return None
        return json.dumps({"schema": schema, "payload": data} if self.has_schema else data).encode()


WORLDS = {
    "schemas": World(WITH_SCHEMA, (*STRUCTS, None), has_schema=True),
    "maps": World(WITHOUT_SCHEMA, (*MAPS, None), has_schema=False),
}


class NoRegistry(SchemaRegistry):
    """Nothing here is Avro."""

    def __init__(self) -> None:
        pass


@pytest.fixture(scope="module")
def worker(stack: Stack, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    folder = tmp_path_factory.mktemp("plugins") / "recording"
    folder.mkdir()
    jars = stack.connect.runtime.artifacts.folder("kafka")
    javac = f"{find_java().home}/bin/javac"
    subprocess.run(
        [javac, "-nowarn", "-cp", f"{jars}/*", "-d", folder / "classes", SOURCE], check=True
    )  # our own source
    services = folder / "classes" / "META-INF" / "services" / "org.apache.kafka.connect.sink.SinkConnector"
    services.parent.mkdir(parents=True)
    services.write_text("RecordingSink\n")
    jar = f"{find_java().home}/bin/jar"
    subprocess.run([jar, "cf", str(folder / "recording.jar"), "-C", str(folder / "classes"), "."], check=True)
    stack.connect.plugin_folders = (folder,)
    stack.up(["connect"])
    yield stack.connect
    stack.connect.stop()
    stack.connect.plugin_folders = ()


def configuration(case: Case) -> dict[str, str]:
    names = [f"s{index}" for index in range(len(case.chain))]
    given = {"transforms": ",".join(names)}
    for name, (kind, options) in zip(names, case.chain, strict=True):
        given[f"transforms.{name}.type"] = f"{PACKAGE}{kind}"
        given |= {f"transforms.{name}.{key}": value for key, value in options.items()}
    return given


def joined(cases: Sequence[Case], prefix: str) -> dict[str, str]:
    """One configuration with the chains of all cases, each for records of its topic only."""
    given: dict[str, str] = {}
    names: list[str] = []
    for index, case in enumerate(cases):
        given[f"predicates.p{index}.type"] = f"{PACKAGE}predicates.TopicNameMatches"
        given[f"predicates.p{index}.pattern"] = f"{prefix}{case.name}"
        for step, (kind, options) in enumerate(case.chain):
            name = f"t{index}s{step}"
            names.append(name)
            given[f"transforms.{name}.type"] = f"{PACKAGE}{kind}"
            given[f"transforms.{name}.predicate"] = f"p{index}"
            given |= {f"transforms.{name}.{key}": value for key, value in options.items()}
    return {
        **given,
        "transforms": ",".join(names),
        "predicates": ",".join(f"p{index}" for index in range(len(cases))),
    }


@pytest.mark.parametrize("name", WORLDS)
def test_every_transform_does_what_a_real_worker_does(name: str, worker: Connect, kafka: Kafka, tmp_path: Path) -> None:
    world = WORLDS[name]
    run = uuid.uuid4().hex[:8]
    prefix = f"t-{run}-"
    theirs = of_the_worker(world, prefix, worker, kafka, tmp_path / "records")
    differences = []
    for case in world.cases:
        ours = ours_of(world, case, prefix)
        for offset, found in enumerate(ours):
            wanted = theirs.get((f"{prefix}{case.name}", offset), FILTERED)
            if isinstance(wanted, dict) and isinstance(found, dict):
                unwritable = [part for part in ("key", "value") if wanted[part]["data"] == "unwritable"]
                found |= {part: wanted[part] for part in unwritable}
            if found != wanted:
                differences.append(f"{case.name} {offset}:\n  ours   {found}\n  theirs {wanted}")
    assert not differences, "\n".join(differences)


def of_the_worker(world: World, prefix: str, worker: Connect, kafka: Kafka, file: Path) -> dict[tuple[str, int], Any]:
    """What the worker makes of each record, by topic and offset; a filtered record is missing."""
    topics = [f"{prefix}{case.name}" for case in world.cases]
    dead = f"{prefix}dead"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    created = admin.create_topics([NewTopic(topic, 1, 1) for topic in (*topics, dead)])
    for future in created.values():
        future.result()
    produce(world, topics, kafka)
    config = {
        "connector.class": "RecordingSink",
        "tasks.max": "1",
        "topics": ",".join(topics),
        "file": str(file),
        "key.converter": JSON,
        "value.converter": JSON,
        "key.converter.schemas.enable": str(world.has_schema).lower(),
        "value.converter.schemas.enable": str(world.has_schema).lower(),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        **joined(world.cases, prefix),
    }
    with httpx.Client(base_url=worker.url, timeout=60) as http:
        answer = http.put(f"/connectors/{prefix}c/config", json=config)
        assert answer.is_success, answer.text
        wait_until_read(http, worker, f"{prefix}c", {topic: len(world.values) for topic in topics})
        http.delete(f"/connectors/{prefix}c")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found: dict[tuple[str, int], Any] = {(line["source"], line["offset"]): normal_line(line) for line in lines}
    found.update(dict.fromkeys(dead_letters(dead, kafka), BAD))
    return found


def produce(world: World, topics: Sequence[str], kafka: Kafka) -> None:
    # Their offsets are their numbers: without idempotence a batch that is sent again may change the order.
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for topic in topics:
        for value in world.values:
            producer.produce(
                topic,
                key=world.written(KEY_SCHEMA, KEY),
                value=world.written(SCHEMA, value),
                headers=list(HEADERS),
                timestamp=TIMESTAMP_MS,
            )
    assert producer.flush(30) == 0


def wait_until_read(http: httpx.Client, worker: Connect, connector: str, wanted: dict[str, int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = http.get(f"/connectors/{connector}/offsets")
        entries = answer.json().get("offsets", []) if answer.is_success else []
        found = {one["partition"]["kafka_topic"]: one["offset"]["kafka_offset"] for one in entries}
        if found == wanted:
            return
        status = http.get(f"/connectors/{connector}/status")
        assert "FAILED" not in status.text, status.text
        if time.monotonic() > deadline:
            raise AssertionError(f"read {found} of {wanted}; {status.text}; its log: {worker.log_tail()}")
        time.sleep(0.5)  # the worker commits once a second, and nothing tells when


def dead_letters(topic: str, kafka: Kafka) -> Iterator[tuple[str, int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                return
            headers: dict[str, Any] = dict(message.headers() or [])
            source, offset = headers["__connect.errors.topic"], headers["__connect.errors.offset"]
            yield source.decode(), int(offset)
    finally:
        consumer.close()


def ours_of(world: World, case: Case, prefix: str) -> Iterator[Any]:
    """What our chain makes of each record of a case."""
    chain, problems = read_chain(configuration(case))
    assert not problems, problems
    assert chain is not None
    decode = value_decoder("json", NoRegistry(), envelope=world.has_schema)
    for offset, value in enumerate(world.values):
        key_schema, key = decoded(decode, world.written(KEY_SCHEMA, KEY))
        value_schema, data = decoded(decode, world.written(SCHEMA, value))
        topic = f"{prefix}{case.name}"
        message = Message(topic, 0, offset, TIMESTAMP_MS, key_schema, key, value_schema, data, tuple(HEADERS))
        try:
            made = chain.apply(message)
        except TransformError:
            yield BAD
            continue
        yield (
            FILTERED
            if made is None
            else {
                "topic": made.topic,
                "key": normal(made.key_schema, made.key),
                "value": normal(made.value_schema, made.value),
                "headers": [[name, text_of_header(value)] for name, value in made.headers],
            }
        )


def decoded(decode: Decode, data: bytes | None) -> tuple[Any, Any]:
    if data is None:
        return None, None
    found = decode(data)
    return None if found.writer is None else found.writer.json, found.value


def text_of_header(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return text_of_double(value, is_single=single(value) == value)
    return "null" if value is None else str(value)


def normal_line(line: dict[str, Any]) -> dict[str, Any]:
    key, value = (normal_connect(line[part]) for part in ("key", "value"))
    return {"topic": line["topic"], "key": key, "value": value, "headers": line["headers"]}


def normal_connect(written: Any) -> Any:
    """A value of the recorded line: with a schema it is an envelope."""
    if isinstance(written, dict) and written.keys() == {"schema", "payload"} and written["schema"] is not None:
        return {"schema": normal_schema(avro_of_connect(written["schema"])), "data": rounded(written["payload"])}
    return {"schema": None, "data": rounded(written)}


def normal(schema: Any, data: Any) -> Any:
    return {"schema": None if schema is None else normal_schema(schema), "data": rounded(as_json(schema, data))}


def normal_schema(schema: Any) -> Any:
    """A schema as types, names and which fields may be null."""
    found = shape(schema)
    kind: Any = [found.type, found.logical, found.optional]
    if found.type == "struct":
        space = found.core.get("namespace")
        name = f"{space}.{found.core['name']}" if space else found.core["name"]
        kind += [name, [[one["name"], normal_schema(one["type"])] for one in found.core["fields"]]]
    elif found.type == "array":
        kind.append(normal_schema(found.core["items"]))
    return kind


def as_json(schema: Any, data: Any) -> Any:
    """Our value as JsonConverter writes it."""
    found = None if schema is None else shape(schema)
    if isinstance(data, dict):
        fields = {one["name"]: one["type"] for one in found.core["fields"]} if found is not None else {}
        return {name: as_json(fields.get(name), value) for name, value in data.items()}
    if isinstance(data, list):
        return [as_json(None, value) for value in data]
    if isinstance(data, Decimal):
        unscaled = int(data.scaleb(2))
        return base64.b64encode(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)).decode()
    if isinstance(data, datetime | time_of_day):
        return ms_of(data)
    if isinstance(data, date):
        return ms_of(data) // MS_PER_DAY
    return data


def rounded(data: Any) -> Any:
    """Numbers without the digits beyond a float's, and NaN as a text; JSON does not tell 5 from 5.0."""
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    if isinstance(data, float):
        return float(f"{data:.6g}") if math.isfinite(data) else str(data)
    return data


def test_the_fields_of_the_cases_exist() -> None:
    for case in WITH_SCHEMA:
        for kind, options in case.chain:
            named = options.get("fields", "").split(",") if kind.startswith("MaskField$Value") else []
            assert set(named) - {""} <= set(FIELDS), case.name

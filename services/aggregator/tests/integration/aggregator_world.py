"""Shared by the tests of the aggregator: its topics, its process, and readings whose category is known."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message, Producer

from isotherm.cli import records as topic_records
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.schemas import schema, topic
from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.simulators import checker
from isotherm.stack import measurement
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.class_archives import spark_classes
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

READING = schema("SensorReading", 1)
RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=5_000, max_skew_ms=2_000)
MAX_PUBLISH_DELAY_MS = 3_000
ATTRIBUTES = ("region", "home", "attributes.floor")
CONTROL_TOPICS = {
    "isotherm.connectors": schema("ConnectorConfig", 1),
    "isotherm.status": schema("TaskStatus", 1),
}
UNKNOWN_SCHEMA_ID = 987_654
DEADLINE_S = 600.0
_POLL_S = 0.5
SPAN_MS = 120_000
READINGS = 20_000
DEVICES = 40
TEN_YEARS_MS = 315_360_000_000

Header = tuple[str, bytes]


def reading_v2() -> dict[str, Any]:
    """Version 2 of the reading, with a field in the middle."""
    changed = schema("SensorReading", 1)
    changed["fields"].insert(2, {"name": "quality", "type": "string", "default": "unknown"})
    return changed


@dataclass(frozen=True)
class Record:
    """What was produced to the input topic, and the expected result."""

    identity: str
    key: bytes
    value: bytes | None
    category: str
    reading: Mapping[str, Any] | None = None
    ingest_ms: int | None = None
    """The record's timestamp, in a topic that takes the producer's; None: the time of producing it."""


class Topics:
    """The topics of one test module: its own, because others use the declared ones."""

    def __init__(self, bootstrap_servers: str, registry_url: str, prefix: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.registry_url = registry_url
        self.name = prefix
        self.input = f"{prefix}.in"
        self.later = f"{prefix}.in.later"
        self.pattern = ""
        self.partitions = 4
        """Of every topic but the control topics."""
        self.log_append_time = False
        """Whether records have the broker's time, or the ingest time that `produce` sets, as in a replay."""
        self.output = f"{prefix}.out"
        self.grouped = f"{prefix}.grouped"
        self.late = f"{prefix}.late"
        self.dead = f"{prefix}.dead-letters"
        self.devices = f"{prefix}.devices"
        self.rollups = f"{prefix}.rollups"
        self.rollups_grouped = f"{prefix}.rollups.grouped"

    @classmethod
    def declared(cls, kafka: Kafka, registry: Registry, prefix: str) -> Self:
        """Create the topics with this prefix, for the first version of the reading."""
        topics = cls(kafka.bootstrap_servers, registry.url, prefix)
        topics.declare([READING])
        return topics

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers=self.bootstrap_servers)

    @property
    def registry(self) -> RegistrySettings:
        return RegistrySettings(url=self.registry_url)

    def declare(self, readings: list[dict[str, Any]], *, with_later: bool = False) -> None:
        """Create topics and subjects as `isotherm apply` does, with these versions of the reading.

        `with_later` makes a second topic with readings.
        """
        aggregates = [schema("TemperatureAggregate", version) for version in (1, 2)]
        names = {
            self.input: ("SensorReading", readings),
            self.late: ("SensorReading", [READING]),
            self.output: ("TemperatureAggregate", aggregates),
            self.grouped: ("TemperatureGroup", [schema("TemperatureGroup", 1)]),
            self.rollups: ("TemperatureAggregate", aggregates),
            self.rollups_grouped: ("TemperatureGroup", [schema("TemperatureGroup", 1)]),
            self.devices: ("Device", [schema("Device", 1), schema("Device", 2)]),
            **({self.later: ("SensorReading", readings)} if with_later else {}),
        }
        timed = {"message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime"}
        config = {
            self.input: timed,
            self.later: timed,
            self.devices: {"cleanup.policy": "compact"},
            self.output: topic("temperatures.aggregated").config,
        }
        shared = [(topic(name), record) for name, record in CONTROL_TOPICS.items()]
        apply(
            self.kafka,
            self.registry,
            topics=[
                *(DeclaredTopic(name, self.partitions, config.get(name, {})) for name in names),
                *(DeclaredTopic(declared.name, declared.partitions, declared.config) for declared, _ in shared),
            ],
            subjects=[
                *(DeclaredSubject(f"{name}-value", versions) for name, (_, versions) in names.items()),
                *(DeclaredSubject(f"{declared.name}-value", [record]) for declared, record in shared),
            ],
        )

    def statuses(self, decode: avro.Decoder, pid: int) -> list[dict[str, Any]]:
        """The states that a process published on the status topic, in order."""
        # The topic is everybody's: a task that was removed leaves a tombstone.
        said = [dict(decode(value).record) for message in self.read("isotherm.status") if (value := message.value())]
        return [one for one in said if one["connector"] == self.name and one["worker"].endswith(f":{pid}")]

    def read(self, topic: str) -> list[Message]:
        """Everything committed in a topic."""
        return list(topic_records.read(self.kafka, topic))


def settings_of(topics: Topics, folder: Path, **settings: object) -> list[str]:
    """The arguments that configure an aggregator for these topics."""
    by_pattern = topics.pattern and "input_topics" not in settings
    values: dict[str, object] = {
        "name": topics.name,
        "kafka.bootstrap_servers": topics.bootstrap_servers,
        "registry.url": topics.registry_url,
        **({"input_pattern": topics.pattern} if by_pattern else {"input_topics": topics.input}),
        "output_topic": topics.output,
        "grouped_topic": topics.grouped,
        "late_topic": topics.late,
        "dead_letter_topic": topics.dead,
        "devices_topic": topics.devices,
        "group_attributes": ",".join(ATTRIBUTES),
        "window_ms": RULES.window_ms,
        "allowed_lateness_ms": RULES.allowed_lateness_ms,
        "max_skew_ms": RULES.max_skew_ms,
        "max_publish_delay_ms": MAX_PUBLISH_DELAY_MS,
        "read_margin_ms": 0,
        "require_log_append_time": topics.log_append_time,
        "trigger_ms": 500,
        "rejects_trigger_ms": 500,
        "max_offsets_per_trigger": 4_000,
        "checkpoint_dir": folder,
        "jars_dir": Artifacts().folder("spark"),
        "spark.master": "local[2]",
        # Quick to start, for a process that lives half a minute.
        "spark.java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **({"spark.class_archive": archive} if (archive := spark_classes()) else {}),
        **settings,
    }
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def write_devices(topics: Topics, registry: SchemaRegistry) -> dict[str, dict[str, Any]]:
    """Half of the devices are known; one has no home, one was moved, one was removed again.

    Every third one was written before devices had free attributes, and so has no floor.
    """
    encode = [registry.encoder(topics.devices, schema("Device", version)) for version in (1, 2)]
    producer = clients.producer(topics.kafka, "aggregator-test")
    known: dict[str, dict[str, Any]] = {}

    def put(number: int, home: str | None) -> None:
        device = {
            "device_id": f"device|{number}%",
            "home": home,
            "room": None,
            "region": f"r|{number % 3}",
            "model": None,
        }
        attributes = {"floor": f"{number % 2}|", "tenant": "t"} if number % 3 else {}
        known[str(device["device_id"])] = {**device, "attributes.floor": attributes.get("floor")}
        value = encode[bool(attributes)]({**device, "thresholds": {}, "attributes": attributes})
        producer.produce(topics.devices, key=str(device["device_id"]), value=value)

    for number in range(DEVICES // 2):
        put(number, None if number == 1 else f"home-{number % 5}")
    put(2, "home-moved")
    producer.produce(topics.devices, key="device|3%", value=None)
    del known["device|3%"]
    producer.produce(topics.devices, key="device|4%", value=b"\x01 no device")
    del known["device|4%"]
    assert producer.flush(30) == 0
    return known


class Process:
    """One `isotherm-aggregator run`; as a context it is killed at the end, if it still runs."""

    def __init__(self, topics: Topics, folder: Path, port: int, **settings: object) -> None:
        self.port = port
        self.folder = folder
        self.log = folder.with_suffix(f".{port}.log")
        arguments = settings_of(topics, folder, **{"http.port": port, **settings})
        command = [sys.executable, "-m", "isotherm.aggregator", "run", *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        if self.is_running():
            self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def wait(self) -> int:
        return self._process.wait(120)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def ready(self) -> dict[str, Any]:
        """The answer of `/ready`; empty while the process does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error))
        except OSError:
            return {}

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics`, by name and labels; empty while the process does not answer."""
        return measurement.metrics(self.port)

    def jvm_pids(self) -> list[int]:
        """Every JVM that ever logged that it was started here."""
        lines = [json.loads(line) for line in self.log_text().splitlines() if '"jvm_pid"' in line]
        return [line["jvm_pid"] for line in lines]


def wait_for(
    condition: Callable[[], bool],
    what: str | Callable[[], object],
    process: Process | None = None,
    timeout_s: float = DEADLINE_S,
) -> None:
    """Poll a condition of another process until it holds. `what` it is may be asked for when it does not."""
    deadline = time.monotonic() + timeout_s

    def awaited() -> str:
        return f"{what() if callable(what) else what}:\n{process.log_text()[-3_000:] if process else ''}"

    while not condition():
        assert process is None or process.is_running(), f"the aggregator ended while waiting for {awaited()}"
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {awaited()}"
        # Between two questions to another process, which has no way to call us. Most of them read whole topics: asked
        # more often, they would take from the aggregator the processor that it needs to get there.
        time.sleep(_POLL_S)


def make_records(
    encode: Callable[[Mapping[str, Any]], bytes],
    begin_ms: int,
    *,
    readings: int = READINGS,
    span_ms: int = SPAN_MS,
    late_share: float = 0.05,
    years_ahead: str = "",
) -> list[Record]:
    """Readings in their order of arrival, from a seed: out of order, late, in the future, and invalid records.

    The clock of the device `years_ahead` is ten years ahead.
    """
    chance = random.Random(7)
    records = []
    for number in range(readings):
        ingest_ms = begin_ms + number * span_ms // readings
        device_id = f"device|{chance.randrange(DEVICES)}%"
        kind = chance.random()
        delay_ms = chance.randrange(2_000) if kind < 0.9 else -chance.randrange(1, 2_000)
        if kind < late_share:
            delay_ms = chance.randrange(5_001, 60_000)
        elif kind < late_share + 0.01:
            delay_ms = -chance.choice([2_001, 60_000, TEN_YEARS_MS])
        elif kind < late_share + 0.03:
            delay_ms = chance.choice([5_000, -2_000])  # the very edge, which is on time
        if device_id == years_ahead:
            delay_ms -= TEN_YEARS_MS
        reading = {
            "device_id": device_id,
            "metric": chance.choice(["temperature", "brightness"]),
            "value": chance.gauss(20, 5),
            "unit": "Cel",
            "event_time": ingest_ms - delay_ms,
            "ingest_time": ingest_ms,
            "sequence": number,
            "attributes": {},
        }
        category: str = checker.classify(reading, RULES)
        value: bytes | None = encode(reading)
        broken = chance.random()
        if broken < 0.002:
            category, value = "not-framed", b"\x07" + bytes(value or b"")[1:]
        elif broken < 0.004:
            category, value = "unknown-schema", avro_header(UNKNOWN_SCHEMA_ID) + bytes(value or b"")[5:]
        elif broken < 0.006:
            category, value = "corrupt", bytes(value or b"")[:-20]
        elif broken < 0.007:
            category, value = "no-value", None
        elif broken < 0.008:
            category, value = "not-finite", encode({**reading, "value": float("nan")})
        is_read = category in ("on-time", "late")
        records.append(
            Record(str(number), device_id.encode(), value, category, reading if is_read else None, ingest_ms)
        )
    return records


def make_v2(encode: Callable[[Mapping[str, Any]], bytes], name: str, count: int, at_ms: int) -> list[Record]:
    """Readings of version 2, all measured and received at one time."""
    records = []
    for number in range(count):
        reading = {
            "device_id": f"device|{number % DEVICES}%",
            "metric": "temperature",
            "value": float(number),
            "unit": "Cel",
            "event_time": at_ms,
            "ingest_time": at_ms,
            "sequence": READINGS + number,
            "attributes": {},
        }
        value = encode({**reading, "quality": "good"})
        records.append(Record(f"{name}-{number}", str(reading["device_id"]).encode(), value, "on-time", reading, at_ms))
    return records


def avro_header(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def produce(producer: Producer, topic: str, records: list[Record]) -> None:
    for record in records:
        headers: list[tuple[str, str | bytes | None]] = [("identity", record.identity.encode())]
        producer.produce(topic, key=record.key, value=record.value, headers=headers, timestamp=record.ingest_ms or 0)
        producer.poll(0)


def headers(message: Message) -> dict[str, bytes]:
    given = message.headers() or []
    assert isinstance(given, list)
    return {name: value if isinstance(value, bytes) else str(value).encode() for name, value in given}


def identity(message: Message) -> str:
    return headers(message)["identity"].decode()

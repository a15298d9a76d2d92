"""The aggregator as a process, against a real Kafka and a real registry.

One run serves most tests: some 20,000 readings, every kind of bad record, a transaction left open for most of the
time, `kill -9` in the middle, a restart of the broker, a new schema version afterwards. A recount that shares no code
with the aggregator is the judge.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer, TopicPartition

from isotherm_cli.apply import apply
from isotherm_cli.plan import DeclaredSubject, DeclaredTopic
from isotherm_schemas import schema
from servicekit import avro
from servicekit import kafka as clients
from servicekit.avro import SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings
from simulators import checker
from stack.artifacts import Artifacts
from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

READING = schema("SensorReading", 1)
RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=5_000, max_skew_ms=2_000)
READ_SLACK_MS = 3_000
ATTRIBUTES = ("region", "home")
UNKNOWN_SCHEMA_ID = 987_654
DEADLINE_S = 240.0
SPAN_MS = 120_000
READINGS = 20_000
DEVICES = 40

Header = tuple[str, bytes]


def reading_v2() -> dict[str, Any]:
    """Version 2 of the reading, with a field in the middle."""
    changed = schema("SensorReading", 1)
    changed["fields"].insert(2, {"name": "quality", "type": "string", "default": "unknown"})
    return changed


@dataclass(frozen=True)
class Record:
    """What was produced to the input topic, and what has to become of it."""

    identity: str
    key: bytes
    value: bytes | None
    fate: str
    reading: Mapping[str, Any] | None = None


@dataclass
class Topics:
    """The topics of this module: its own, because others use the declared ones."""

    bootstrap_servers: str
    registry_url: str
    input: str = "aggregator-test.in"
    output: str = "aggregator-test.out"
    grouped: str = "aggregator-test.grouped"
    late: str = "aggregator-test.late"
    dead: str = "aggregator-test.dead-letters"
    devices: str = "aggregator-test.devices"

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers=self.bootstrap_servers)

    @property
    def registry(self) -> RegistrySettings:
        return RegistrySettings(url=self.registry_url)

    def declare(self, readings: list[dict[str, Any]]) -> None:
        """Create topics and subjects as `isotherm apply` does, with these versions of the reading."""
        names = {
            self.input: ("SensorReading", readings),
            self.late: ("SensorReading", [READING]),
            self.output: ("TemperatureAggregate", [schema("TemperatureAggregate", 1)]),
            self.grouped: ("TemperatureGroup", [schema("TemperatureGroup", 1)]),
            self.devices: ("Device", [schema("Device", 1)]),
        }
        config = {self.devices: {"cleanup.policy": "compact"}}
        apply(
            self.kafka,
            self.registry,
            topics=[DeclaredTopic(name, 4, config.get(name, {})) for name in names],
            subjects=[DeclaredSubject(f"{name}-value", versions) for name, (_, versions) in names.items()],
        )

    def read(self, topic: str) -> list[Message]:
        """Everything committed in a topic."""
        consumer = clients.consumer(self.kafka, "aggregator-test", "aggregator-test", enable_partition_eof=True)
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        messages: list[Message] = []
        at_end: set[int | None] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(10)
            assert message is not None, f"{topic} does not answer"
            if message.error() is None:
                messages.append(message)
            else:
                at_end.add(message.partition())
        consumer.close()
        return messages


def settings_of(topics: Topics, folder: Path, **settings: object) -> list[str]:
    """The arguments that configure an aggregator for these topics."""
    values: dict[str, object] = {
        "kafka.bootstrap_servers": topics.bootstrap_servers,
        "registry.url": topics.registry_url,
        "input_topics": topics.input,
        "output_topic": topics.output,
        "grouped_topic": topics.grouped,
        "late_topic": topics.late,
        "dead_letter_topic": topics.dead,
        "devices_topic": topics.devices,
        "group_attributes": ",".join(ATTRIBUTES),
        "window_ms": RULES.window_ms,
        "allowed_lateness_ms": RULES.allowed_lateness_ms,
        "max_skew_ms": RULES.max_skew_ms,
        "read_slack_ms": READ_SLACK_MS,
        "trigger_ms": 500,
        "max_offsets_per_trigger": 4_000,
        "checkpoint_dir": folder,
        "jars_dir": Artifacts().folder("spark"),
        "spark.master": "local[2]",
        # Quick to start, for a process that lives half a minute.
        "spark.java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **settings,
    }
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


class Process:
    """One `aggregator run`."""

    def __init__(self, topics: Topics, folder: Path, port: int, **settings: object) -> None:
        self.port = port
        self.folder = folder
        self.log = folder.with_suffix(f".{port}.log")
        arguments = settings_of(topics, folder, **{"http.port": port, **settings})
        command = [sys.executable, "-m", "aggregator", "run", *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(40)

    def wait(self) -> int:
        return self._process.wait(60)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def ready(self) -> dict[str, Any]:
        """The answer of `/ready`; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error))
        except OSError:
            return {}

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics`, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    def jvm_pids(self) -> list[int]:
        """Every JVM that ever logged that it was started here."""
        lines = [json.loads(line) for line in self.log_text().splitlines() if '"jvm_pid"' in line]
        return [line["jvm_pid"] for line in lines]


def wait_for(condition: Callable[[], bool], what: str, process: Process | None = None) -> None:
    """Poll a condition of another process until it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        tail = process.log_text()[-3_000:] if process else ""
        assert process is None or process.is_running(), f"the aggregator ended while waiting for {what}:\n{tail}"
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}:\n{tail}"
        time.sleep(0.2)  # between two questions to another process, which has no way to call us


def make_records(encode: Callable[[Mapping[str, Any]], bytes], begin_ms: int) -> list[Record]:
    """Readings of two minutes, seeded: out of order, late, in the future, and bytes that are no readings."""
    chance = random.Random(7)
    records = []
    for number in range(READINGS):
        ingest_ms = begin_ms + number * SPAN_MS // READINGS
        device_id = f"device|{chance.randrange(DEVICES)}%"
        kind = chance.random()
        delay_ms = chance.randrange(2_000) if kind < 0.9 else -chance.randrange(1, 2_000)
        if kind < 0.05:
            delay_ms = chance.randrange(5_001, 60_000)
        elif kind < 0.06:
            delay_ms = -chance.choice([2_001, 60_000, 315_360_000_000])
        elif kind < 0.08:
            delay_ms = chance.choice([5_000, -2_000])  # the very edge, which is on time
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
        fate: str = checker.verdict(reading, RULES)
        value: bytes | None = encode(reading)
        broken = chance.random()
        if broken < 0.002:
            fate, value = "not-framed", b"\x07" + bytes(value or b"")[1:]
        elif broken < 0.004:
            fate, value = "unknown-schema", avro_header(UNKNOWN_SCHEMA_ID) + bytes(value or b"")[5:]
        elif broken < 0.006:
            fate, value = "corrupt", bytes(value or b"")[:-20]
        elif broken < 0.007:
            fate, value = "no-value", None
        elif broken < 0.008:
            fate, value = "not-finite", encode({**reading, "value": float("nan")})
        is_read = fate in ("on-time", "late")
        records.append(Record(str(number), device_id.encode(), value, fate, reading if is_read else None))
    return records


def avro_header(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def produce(producer: Producer, topic: str, records: list[Record]) -> None:
    for record in records:
        headers: list[tuple[str, str | bytes | None]] = [("identity", record.identity.encode())]
        producer.produce(topic, key=record.key, value=record.value, headers=headers)
        producer.poll(0)


@dataclass
class Run:
    """What the run left behind."""

    topics: Topics
    folder: Path
    records: list[Record] = field(default_factory=list)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    decode: Callable[[bytes], Mapping[str, Any]] = field(default=lambda _data: {})
    out: list[Message] = field(default_factory=list)
    grouped: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    exit_code: int = -1
    log: str = ""
    windows_before_kill: int = 0
    killed_jvm: int = 0
    second_instance_said: str = ""
    held_back_while_open: bool = False

    def expected_windows(self, rules: checker.Rules = RULES) -> dict[checker.WindowKey, dict[str, float]]:
        return checker.expected_windows((r.reading for r in self.records if r.reading is not None), rules)

    def decoded(self, messages: list[Message]) -> list[Mapping[str, Any]]:
        return [self.decode(message.value() or b"") for message in messages]


def write_devices(topics: Topics, registry: SchemaRegistry) -> dict[str, dict[str, Any]]:
    """Half of the devices are known; one has no home, one was moved, one was removed again."""
    encode = registry.encoder(topics.devices, schema("Device", 1))
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
        known[str(device["device_id"])] = device
        producer.produce(topics.devices, key=str(device["device_id"]), value=encode({**device, "thresholds": {}}))

    for number in range(DEVICES // 2):
        put(number, None if number == 1 else f"home-{number % 5}")
    put(2, "home-moved")
    producer.produce(topics.devices, key="device|3%", value=None)
    del known["device|3%"]
    producer.produce(topics.devices, key="device|4%", value=b"\x01 no device")
    del known["device|4%"]
    assert producer.flush(30) == 0
    return known


@pytest.fixture(scope="module")
def topics(kafka: Kafka, registry: Registry) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url)
    declared.declare([READING])
    return declared


@pytest.fixture(scope="module")
def run(
    kafka: Kafka, topics: Topics, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Run]:
    """The whole story; see the module's text."""
    registry = SchemaRegistry(topics.registry)
    decoder = avro.Decoder(registry)
    run = Run(topics, tmp_path_factory.mktemp("aggregator") / "checkpoint")
    run.decode = lambda data: dict(decoder(data).record)
    run.devices = write_devices(topics, registry)
    records = make_records(registry.encoder(topics.input, READING), time.time_ns() // 1_000_000 - SPAN_MS)

    plain = clients.producer(topics.kafka, "aggregator-test")
    aborted, open_one = (
        clients.producer(
            topics.kafka,
            f"aggregator-test-{name}",
            transactional_id=f"aggregator-test-{name}",
            transaction_timeout_ms=300_000,
        )
        for name in ("aborted", "open")
    )
    for producer in (aborted, open_one):
        producer.init_transactions()
        producer.begin_transaction()
    half = READINGS // 2
    produce(plain, topics.input, records[:half])
    assert plain.flush(30) == 0
    produce(aborted, topics.input, records[:500])
    aborted.flush(30)
    aborted.abort_transaction()
    produce(open_one, topics.input, records[half : half + 50])
    assert open_one.flush(30) == 0
    produce(plain, topics.input, records[half + 50 :])
    assert plain.flush(30) == 0

    first = Process(topics, run.folder, free_port())
    processes = [first]
    try:
        wait_for(lambda: len(topics.read(topics.output)) > 0, "the first windows", first)
        run.killed_jvm = first.jvm_pids()[0]
        first.kill()
        run.windows_before_kill = len({message.key() for message in topics.read(topics.output)})

        second = Process(topics, run.folder, free_port())
        processes.append(second)
        third = Process(topics, run.folder, free_port())
        processes.append(third)
        wait_for(lambda: second.ready().get("ready", False) or third.ready().get("ready", False), "readiness")
        # The first to take the lock after the killed JVM runs; the other waits for it.
        second, third = (second, third) if second.ready().get("ready") else (third, second)
        run.second_instance_said = str(third.ready())
        third.terminate()

        kafka.kill()
        kafka.start()
        kafka.wait_ready()
        topics.declare([READING, reading_v2()])
        now_ms = time.time_ns() // 1_000_000
        encode_v2 = registry.encoder(topics.input, reading_v2())
        fresh = []
        for number in range(200):
            reading = {
                "device_id": f"device|{number % DEVICES}%",
                "metric": "temperature",
                "value": float(number),
                "unit": "Cel",
                "event_time": now_ms,
                "ingest_time": now_ms,
                "sequence": READINGS + number,
                "attributes": {},
            }
            value = encode_v2({**reading, "quality": "good"})
            fresh.append(Record(f"v2-{number}", str(reading["device_id"]).encode(), value, "on-time", reading))
        produce(plain, topics.input, fresh)
        assert plain.flush(30) == 0
        run.records = records + fresh

        held = [r.reading for r in records[half : half + 50] if r.reading and r.fate == "on-time"]
        newest_open_ms = min(checker.epoch_ms(reading["event_time"]) for reading in held)
        ends = [window["window_end"] for window in run.decoded(topics.read(topics.output))]
        run.held_back_while_open = max(map(checker.epoch_ms, ends)) <= newest_open_ms
        open_one.commit_transaction()

        expected = run.expected_windows()
        wait_for(lambda: len({m.key() for m in topics.read(topics.output)}) >= len(expected), "every window", second)
        groups = checker.expected_groups(expected, run.devices, ATTRIBUTES)
        wait_for(lambda: len({m.key() for m in topics.read(topics.grouped)}) >= len(groups), "every group", second)
        wait_for(
            lambda: (
                second.metrics()[
                    f'isotherm_aggregator_lag_records{{partition="0",query="rejects",topic="{topics.input}"}}'
                ]
                == 0
            ),
            "the stateless query",
            second,
        )
        run.metrics = second.metrics()
        run.exit_code = second.terminate()
        run.log = second.log_text()
        run.out, run.grouped = topics.read(topics.output), topics.read(topics.grouped)
        run.late, run.dead = topics.read(topics.late), topics.read(topics.dead)
        yield run
    finally:
        for process in processes:
            if process.is_running():
                process.kill()
        registry.close()


def test_every_window_equals_the_recount(run: Run) -> None:
    found, problems = checker.latest((checker.window_key(row), row) for row in run.decoded(run.out))
    assert problems == []
    assert checker.mismatches(run.expected_windows(), found) == []


def test_the_kill_came_in_the_middle(run: Run) -> None:
    assert 0 < run.windows_before_kill < len(run.expected_windows())


def test_a_window_is_repeated_only_byte_by_byte(run: Run) -> None:
    values: dict[bytes | str | None, set[bytes | None]] = {}
    for message in [*run.out, *run.grouped]:
        values.setdefault(message.key(), set()).add(message.value())
    assert [key for key, different in values.items() if len(different) > 1] == []


def test_window_keys_escape_bars_and_percents(run: Run) -> None:
    for message, row in zip(run.out, run.decoded(run.out), strict=True):
        device = row["device_id"].replace("%", "%25").replace("|", "%7C")
        start, end = checker.epoch_ms(row["window_start"]), checker.epoch_ms(row["window_end"])
        assert message.key() == f"{device}|{row['metric']}|{start}|{end}".encode()


def test_every_group_equals_the_recount(run: Run) -> None:
    found, problems = checker.latest((checker.group_key(row), row) for row in run.decoded(run.grouped))
    assert problems == []
    expected = checker.expected_groups(run.expected_windows(), run.devices, ATTRIBUTES)
    assert {key[1] for key in expected} > {"unknown", "home-moved", "r|0"}
    assert checker.mismatches(expected, found) == []


def test_late_readings_come_out_as_they_went_in(run: Run) -> None:
    expected = {r.identity: (r.key, r.value) for r in run.records if r.fate == "late"}
    assert len(expected) > 500
    assert {identity(m): (m.key(), m.value()) for m in run.late} == expected


def test_dead_letters_come_out_as_they_went_in_and_say_why(run: Run) -> None:
    expected = {r.identity: (r.key, r.value, r.fate) for r in run.records if r.fate not in ("on-time", "late")}
    reason = "__connect.errors.exception.class.name"
    found = {identity(m): (m.key(), m.value(), headers(m)[reason].decode().rpartition(".")[2]) for m in run.dead}
    assert found == expected
    fates = {fate for _, _, fate in expected.values()}
    assert fates == {"future", "not-framed", "unknown-schema", "corrupt", "no-value", "not-finite"}


def test_dead_letters_name_their_origin(run: Run) -> None:
    origin = {identity(m): (m.topic(), str(m.partition()), str(m.offset())) for m in run.topics.read(run.topics.input)}
    names = [f"__connect.errors.{name}" for name in ("topic", "partition", "offset")]
    for message in run.dead:
        assert tuple(headers(message)[name].decode() for name in names) == origin[identity(message)]
        assert headers(message)["__connect.errors.exception.message"]


def test_an_open_transaction_holds_the_windows_back(run: Run) -> None:
    assert run.held_back_while_open


def test_nothing_is_dropped_by_the_watermark(run: Run) -> None:
    assert run.metrics["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
    assert "rows dropped by the watermark" not in run.log


def test_metrics_show_the_work(run: Run) -> None:
    assert run.metrics["isotherm_aggregator_windows_emitted_total"] > 0
    assert run.metrics["isotherm_aggregator_groups_emitted_total"] > 0
    assert run.metrics["isotherm_aggregator_windows_without_device_total"] > 0
    assert run.metrics["isotherm_aggregator_watermark_seconds"] > 1.7e9
    assert run.metrics['isotherm_aggregator_query_restarts_total{cause="new schema id",query="windows"}'] >= 1


def test_a_second_instance_waits_for_the_checkpoint(run: Run) -> None:
    assert "still holds" in run.second_instance_said


def test_the_jvm_dies_with_its_driver(run: Run) -> None:
    assert not Path(f"/proc/{run.killed_jvm}").exists()


def test_sigterm_ends_it_in_time(run: Run) -> None:
    assert run.exit_code == 0


def recomputed(run: Run, *arguments: object) -> dict[str, Any]:
    """What `aggregator recompute` says."""
    command = [sys.executable, "-m", "aggregator", "recompute", *map(str, arguments), "--settled-ms", "0"]
    done = subprocess.run([*command, *settings_of(run.topics, run.folder)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3_000:]
    return dict(json.loads(done.stdout))


def test_recompute_puts_the_late_readings_into_their_windows(run: Run) -> None:
    whole = checker.Rules(RULES.window_ms, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
    expected, before = run.expected_windows(whole), run.expected_windows()
    begin_ms, end_ms = min(start for _, _, start, _ in expected), max(end for *_, end in expected)
    # Within the first and the last window: whole windows are meant.
    moments = "--from", begin_ms + 4_000, "--to", end_ms - 4_000

    done = recomputed(run, *moments)
    assert (done["from_ms"], done["to_ms"]) == (begin_ms, end_ms)
    different = sum(expected[key] != before.get(key) for key in expected)
    assert done["corrected_windows"] == different > 0
    assert done["late_readings"] == len({identity(message) for message in run.late})

    rows = run.decoded(run.topics.read(run.topics.output))
    found, problems = checker.latest((checker.window_key(row), row) for row in rows)
    assert problems == []
    assert checker.mismatches(expected, found) == []
    assert len(rows) == len(run.out) + done["corrected_windows"]
    groups, problems = checker.latest(
        (checker.group_key(g), g) for g in run.decoded(run.topics.read(run.topics.grouped))
    )
    assert problems == []
    assert checker.mismatches(checker.expected_groups(expected, run.devices, ATTRIBUTES), groups) == []

    again = recomputed(run, *moments, "--dry-run")
    assert (again["corrected_windows"], again["corrected_groups"], again["written"]) == (0, 0, False)
    assert again["revision"] > done["revision"]


def test_a_checkpoint_of_another_configuration_is_refused(run: Run, free_port: Callable[[], int]) -> None:
    other = Process(run.topics, run.folder, free_port(), window_ms=20_000)
    assert other.wait() == 2
    assert "window_ms: the checkpoint has 10000, the configuration 20000" in other.log_text()


@pytest.mark.parametrize(
    ("settings", "part", "reason"),
    [
        ({"kafka.bootstrap_servers": "127.0.0.1:1"}, "kafka", "Kafka does not answer"),
        ({"registry.url": "http://127.0.0.1:1"}, "registry", "schema registry"),
        ({"input_topics": "nowhere"}, "kafka", "topic nowhere does not exist"),
    ],
)
def test_it_waits_for_what_is_missing_at_start(
    topics: Topics,
    tmp_path: Path,
    free_port: Callable[[], int],
    settings: dict[str, str],
    part: str,
    reason: str,
) -> None:
    process = Process(topics, tmp_path / "checkpoint", free_port(), **settings)
    try:
        wait_for(lambda: reason in process.ready().get("problems", {}).get(part, ""), reason, process)
        assert process.terminate() == 0
    finally:
        if process.is_running():
            process.kill()


def headers(message: Message) -> dict[str, bytes]:
    given = message.headers() or []
    assert isinstance(given, list)
    return {name: value if isinstance(value, bytes) else str(value).encode() for name, value in given}


def identity(message: Message) -> str:
    return headers(message)["identity"].decode()

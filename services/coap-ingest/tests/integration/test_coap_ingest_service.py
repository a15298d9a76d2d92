"""The service against real peers: our simulator and libcoap's coap-server here, Kafka and registry there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from connector.dead_letters import ensure_topic
from isotherm_cli.apply import apply
from servicekit import kafka as clients
from servicekit.avro import Decoder, SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings
from simulators.ledger import events
from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = pytest.mark.integration

LIBCOAP_SERVER = shutil.which("coap-server-notls") or "coap-server-notls"
LIBCOAP_CLIENT = shutil.which("coap-client-notls") or "coap-client-notls"
BOTH = (
    "INSERT INTO coap_sensor_topic SELECT * FROM {0}; INSERT INTO thermostat.data "
    "SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time FROM {0}"
)
QUICK = (
    "observation.silence_grace_min_ms=200",
    "observation.silence_grace_max_ms=400",
    "observation.answer_timeout_ms=1000",
    "observation.retry_cap_ms=500",
)
TIMEOUT_S = 40.0


@dataclass
class Record:
    """One Kafka record; `value` is decoded Avro, or the bytes of a dead letter."""

    topic: str
    key: str
    value: Any
    headers: dict[str, str]


@dataclass
class Reader:
    """Everything that came into some topics since the reader was made, from one server of this test."""

    consumer: Any
    decode: Decoder
    authority: str
    next_offsets: dict[tuple[str, int], int]
    seen: list[Record] = field(default_factory=list)

    def until(self, enough: Callable[[list[Record]], bool]) -> list[Record]:
        """Read until `enough` says so of all records seen so far; they are returned, in order."""
        deadline = time.monotonic() + TIMEOUT_S
        while not enough(self.seen):
            assert time.monotonic() < deadline, f"{len(self.seen)} records, the last ones: {self.seen[-3:]}"
            self._poll(0.5)
        return self.seen

    def rest(self) -> list[Record]:
        """Read what there is now to its end."""
        for partition in list(self.next_offsets):
            _, end = self.consumer.get_watermark_offsets(TopicPartition(*partition), timeout=30)
            deadline = time.monotonic() + TIMEOUT_S
            while self.next_offsets[partition] < end:
                assert time.monotonic() < deadline, f"{partition} ends at {end}, read {self.next_offsets[partition]}"
                self._poll(0.5)
        return self.seen

    def _poll(self, timeout_s: float) -> None:
        for message in self.consumer.consume(500, timeout_s):
            assert message.error() is None
            self.next_offsets[message.topic(), message.partition()] = message.offset() + 1
            headers = {name: value.decode() for name, value in message.headers() or []}
            if f"//{self.authority}/" not in headers["coap.uri"]:
                continue
            is_letter = message.topic().endswith("dead-letters")
            value = message.value() if is_letter else self.decode(message.value()).record
            self.seen.append(Record(message.topic(), message.key().decode(), value, headers))


@dataclass
class World:
    """What a test needs: servers' addresses, a folder, processes that end with the test."""

    kafka: Kafka
    registry: Registry
    folder: Path
    port: int
    monitoring_port: int
    cleanup: ExitStack

    @property
    def authority(self) -> str:
        return f"localhost:{self.port}"

    def start(self, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self.cleanup.callback(_end, process)
        return process

    def simulator(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "simulators", "coap", "--host", "127.0.0.1", "--port", str(self.port)]
        return self.start([*command, "--max-age", "1", "--ledger", str(self.ledger), *more], "simulator.log")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def libcoap(self) -> subprocess.Popen[bytes]:
        return self.start([LIBCOAP_SERVER, "-A", "127.0.0.1", "-p", str(self.port), "-d", "10"], "libcoap.log")

    def put(self, resource: str, payload: bytes, content_format: int) -> None:
        file = self.folder / "payload"
        file.write_bytes(payload)
        uri = f"coap://127.0.0.1:{self.port}/{resource}"
        command = [LIBCOAP_CLIENT, "-m", "put", "-t", str(content_format), "-f", str(file), "-B", "5", uri]
        subprocess.run(command, check=True, timeout=30, capture_output=True)

    def ingest(self, kcql: str, *settings: str) -> subprocess.Popen[bytes]:
        file = self.folder / "coap-source.properties"
        file.write_text(
            "name = coap-source\n"
            "connector.class = com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector\n"
            "max.tasks = 1\n"
            f"connect.coap.source.uri = coap://{self.authority}\n"
            f"connect.coap.kcql = {kcql}\n"
        )
        overrides = [
            f"kafka.bootstrap_servers={self.kafka.bootstrap_servers}",
            f"registry.url={self.registry.url}",
            f"http.port={self.monitoring_port}",
            *QUICK,
            *settings,
        ]
        command = [sys.executable, "-m", "coap_ingest", "run", str(file)]
        return self.start([*command, *(part for each in overrides for part in ("--set", each))], "ingest.log")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitoring_port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples)
        found = [s for s in samples if s.name == f"isotherm_coap_ingest_{name}" and labels.items() <= s.labels.items()]
        return sum(sample.value for sample in found)

    def ready(self) -> Mapping[str, str]:
        """What `/ready` names as problems."""
        request = f"http://127.0.0.1:{self.monitoring_port}/ready"
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            body = error.read()
        problems: Mapping[str, str] = json.loads(body)["problems"]
        return problems

    def reader(self, *topics: str) -> Reader:
        settings = KafkaSettings(bootstrap_servers=self.kafka.bootstrap_servers)
        consumer = clients.consumer(settings, "test", "test-coap-ingest")
        self.cleanup.callback(consumer.close)
        partitions = []
        for topic in topics:
            # A topic that was created just now may take a moment to be known everywhere.
            while not (known := consumer.list_topics(topic, timeout=30).topics[topic].partitions):
                continue
            partitions += [TopicPartition(topic, number, OFFSET_END) for number in known]
        # Resolved now, not at the first poll: what the test causes next has to be seen.
        for partition in partitions:
            partition.offset = consumer.get_watermark_offsets(partition, timeout=30)[1]
        consumer.assign(partitions)
        registry = SchemaRegistry(RegistrySettings(url=self.registry.url))
        next_offsets = {(partition.topic, partition.partition): partition.offset for partition in partitions}
        return Reader(consumer, Decoder(registry), self.authority, next_offsets)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    apply(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), RegistrySettings(url=registry.url))
    with ExitStack() as cleanup:
        yield World(kafka, registry, tmp_path, free_port(), free_port(), cleanup)


def dead_letter_topic(world: World, name: str) -> str:
    """A dead-letter topic that exists already, so that it can be read from its end."""
    admin: AdminClient = clients.admin(KafkaSettings(bootstrap_servers=world.kafka.bootstrap_servers), "test")
    ensure_topic(admin, name)
    return name


def sent(ledger: Path) -> list[tuple[str, int, float]]:
    return [(e["device_id"], e["event_time_ms"], e["value"]) for e in events(ledger) if e["event"] == "notified"]


def messages_in(records: Sequence[Record]) -> list[tuple[str, int, float]]:
    said = [json.loads(r.value["payload"]) for r in records if r.topic == "coap_sensor_topic"]
    return [(row["sensorId"], row["timestamp"], row["temperature"]) for row in said]


def readings_in(records: Sequence[Record]) -> list[tuple[str, int, float]]:
    values = [r.value for r in records if r.topic == "thermostat.data"]
    return [(v["device_id"], round(v["event_time"].timestamp() * 1000), v["value"]) for v in values]


def test_every_notification_that_was_sent_is_a_message_and_a_reading_field_by_field(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    simulator = world.simulator("--rate", "50", "--max-age", "2")
    ingest = world.ingest(BOTH.format("sensors"))
    reader.until(lambda seen: len(seen) >= 200)
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0
    written = len(sent(world.ledger))
    assert stop(simulator) == 0
    records = reader.rest()

    # The observation was cancelled before the service went: nothing more was sent to nobody.
    assert len(sent(world.ledger)) == written
    assert messages_in(records) == sent(world.ledger)
    assert Counter(readings_in(records)) == Counter(sent(world.ledger))

    first, later = [record for record in records if record.topic == "coap_sensor_topic"][:2]
    assert first.key == later.key == f"coap://{world.authority}/sensors"
    now = datetime.now(UTC)
    assert abs((now - first.value.pop("ingest_time")).total_seconds()) < 60
    assert abs(now.timestamp() - first.value.pop("timestamp") / 1000) < 60
    assert first.value.pop("message_id") in range(65536)
    assert bytes.fromhex(first.value.pop("token"))
    assert 0 <= first.value.pop("rtt") < 10_000
    assert first.value.pop("destination").startswith("127.0.0.1:")
    assert set(json.loads(first.value.pop("payload"))) == {"sensorId", "timestamp", "temperature", "message"}
    number = first.value.pop("observe")
    assert later.value["observe"] == number + 1
    assert later.value["type"] == "NON"
    assert first.value == {
        "type": "ACK",
        "code": "2.05",
        "raw_code": 69,
        "is_last": True,
        "is_notification": True,
        "source": world.authority,
        "is_duplicate": False,
        "is_confirmable": False,
        "is_rejected": False,
        "is_acknowledged": False,
        "is_canceled": False,
        "accept": -1,
        "block1": "",
        "block2": "",
        "content_format": 0,
        "etags": [],
        "location_path": "",
        "location_query": "",
        "max_age": 2,
        "proxy_uri": None,
        "size_1": None,
        "size_2": None,
        "uri_host": "localhost",
        "uri_port": world.port,
        "uri_path": "sensors",
        "uri_query": "",
        "payload_base64": None,
    }
    reading = next(r for r in records if r.topic == "thermostat.data")
    assert reading.key == reading.value["device_id"]
    assert (reading.value["metric"], reading.value["unit"]) == ("temperature", "Cel")
    assert reading.headers["coap.content_format"] == "0"


def test_a_killed_and_restarted_server_is_observed_again_the_gap_counted_and_nothing_doubled(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    world.ingest(BOTH.format("sensors"))
    simulator = world.simulator("--rate", "40", "--confirmable")
    reader.until(lambda seen: len(seen) >= 60)
    simulator.kill()
    simulator.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    assert world.ready()
    restarted_ms = time.time_ns() // 1_000_000
    again = world.simulator("--rate", "40", "--confirmable")
    records = reader.until(lambda seen: [ms > restarted_ms for _, ms, _ in readings_in(seen)].count(True) >= 60)

    reader.until(lambda _: not world.ready())
    assert world.metric("missed_notifications_total") == 0
    assert stop(again) == 0
    assert max(Counter(readings_in(records)).values()) == 1
    assert max(Counter(messages_in(records)).values()) == 1
    times = [time_ms for _, time_ms, _ in messages_in(records)]
    assert times == sorted(times)


def test_a_killed_service_takes_up_the_observation_when_it_is_started_again(world: World) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "40")
    kcql = BOTH.format("sensors").partition("; ")[2]
    killed = world.ingest(kcql)
    before = len(reader.until(lambda seen: len(seen) >= 40))
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    ingest = world.ingest(kcql)
    reader.until(lambda seen: len(seen) >= before + 40)

    assert stop(ingest) == 0
    assert stop(simulator) == 0
    stored, written = readings_in(reader.rest()), sent(world.ledger)
    assert max(Counter(stored).values()) == 1
    assert set(stored) <= set(written)
    # Only what was sent around the death is missing: of the last second nothing.
    assert set(written[-40:]) <= set(stored)


def test_while_kafka_is_away_notifications_wait_and_then_all_are_there(world: World) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "50")
    ingest = world.ingest(BOTH.format("sensors").partition("; ")[2], "kafka_stalled_after_ms=1000")
    reader.until(lambda seen: len(seen) >= 20)
    world.kafka.pause()
    try:
        reader.until(lambda _: "kafka" in world.ready())
        in_outage = len(sent(world.ledger))
    finally:
        world.kafka.resume()
    reader.until(lambda seen: len(seen) > in_outage)
    assert stop(simulator) == 0
    reader.until(lambda seen: set(readings_in(seen)) == set(sent(world.ledger)))

    assert world.metric("notifications_total", outcome="dropped") == 0
    assert stop(ingest) == 0
    assert Counter(readings_in(reader.rest())) == Counter(sent(world.ledger))


def test_libcoap_is_observed_and_payloads_that_are_no_readings_are_dead_letters(world: World) -> None:
    letters = dead_letter_topic(world, "coap-ingest.dead-letters")
    reader = world.reader("coap_sensor_topic", "thermostat.data", letters)
    world.libcoap()
    ingest = world.ingest(BOTH.format("example_data"))
    reader.until(lambda seen: len(seen) >= 2)  # what the server holds to begin with
    items = [{"sensorId": f"S{n}", "temperature": n / 10, "timestamp": 1486997194029 + n} for n in range(60)]
    large = json.dumps(items).encode()
    poison = b"\x00\xffnot a reading"
    world.put("example_data", large, 50)
    reader.until(lambda seen: len(readings_in(seen)) >= 60)
    world.put("example_data", poison, 42)
    records = reader.until(lambda seen: any(r.value == poison for r in seen))
    assert world.metric("dead_letters_total", reason="payload") >= 1
    assert stop(ingest) == 0
    records = reader.rest()

    wanted = Counter((item["sensorId"], item["timestamp"], item["temperature"]) for item in items)
    assert Counter(readings_in(records)) == wanted
    messages = [r.value for r in records if r.topic == "coap_sensor_topic"]
    assert len(large) > 1024
    assert [m for m in messages if m["payload"] == large.decode() and m["block2"]]
    assert messages[-1]["payload"] is None
    assert messages[-1]["payload_base64"] == "AP9ub3QgYSByZWFkaW5n"
    letter = next(r for r in records if r.value == poison)
    assert letter.key == f"coap://{world.authority}/example_data"
    assert letter.headers["coap.content_format"] == "42"
    assert letter.headers["__connect.errors.connector.name"] == "coap-source"
    assert "JSON" in letter.headers["__connect.errors.exception.message"]


def test_libcoap_killed_and_restarted_is_observed_again(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    server = world.libcoap()
    world.ingest("INSERT INTO coap_sensor_topic SELECT * FROM time")
    before = len(reader.until(lambda seen: len(seen) >= 3))
    server.kill()
    server.wait()
    world.libcoap()
    records = reader.until(lambda seen: len(seen) >= before + 3)

    assert world.metric("interruptions_total") >= 1
    assert {r.value["max_age"] for r in records} == {1}
    assert records[-1].value["is_notification"]


def test_what_cannot_be_observed_is_polled(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    world.libcoap()
    ingest = world.ingest("INSERT INTO coap_sensor_topic SELECT * FROM `.well-known/core`")
    (record,) = reader.until(lambda seen: len(seen) >= 1)

    assert record.value["observe"] is None
    assert record.value["is_notification"] is False
    assert "</time>" in record.value["payload"]
    assert world.metric("polls_total") == 1
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0

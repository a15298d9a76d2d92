"""The harness of the integration tests: real CoAP peers, the service as a process, and a reader of its topics."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from isotherm.cli.apply import apply
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.simulators.ledger import events
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

LIBCOAP_SERVER = shutil.which("coap-server-notls") or "coap-server-notls"
LIBCOAP_DTLS_SERVER = shutil.which("coap-server-openssl") or "coap-server-openssl"
PRE_SHARED_KEY = "secretPSK"
LIBCOAP_DTLS_CLIENT = shutil.which("coap-client-openssl") or "coap-client-openssl"
LIBCOAP_CLIENT = shutil.which("coap-client-notls") or "coap-client-notls"
READINGS = (
    "INSERT INTO thermostat.data SELECT sensorId AS device_id, temperature AS value, timestamp AS event_time FROM {0}"
)
BOTH = f"INSERT INTO coap_sensor_topic SELECT * FROM {{0}}; {READINGS}"
QUICK = (
    "observation.silence_grace_min_ms=200",
    "observation.silence_grace_max_ms=400",
    "observation.answer_timeout_ms=5000",
    "observation.retry_cap_ms=500",
)
TIMEOUT_S = 120.0
"""Timeout of steps that usually take a second, because machines differ and are shared."""
_POLL_S = 0.1
"""How long a consumer waits for more records."""


@dataclass
class Record:
    """One Kafka record; `value` is decoded Avro, or the bytes of a dead letter."""

    topic: str
    key: str
    value: Any
    headers: dict[str, str]


@dataclass
class Reader:
    """Reads every record of one server that came into some topics since the reader was made."""

    consumer: Any
    decode: Decoder
    authorities: tuple[str, ...]
    next_offsets: dict[tuple[str, int], int]
    log: Path
    seen: list[Record] = field(default_factory=list)

    def until(self, enough: Callable[[list[Record]], bool]) -> list[Record]:
        """Read until `enough` is true for the records so far; return them in order."""
        deadline = time.monotonic() + TIMEOUT_S
        while not enough(self.seen):
            said = f"{len(self.seen)} records, the last ones: {self.seen[-3:]}"
            assert time.monotonic() < deadline, f"{said}\n{tail(self.log)}"
            self._poll(_POLL_S)
        return self.seen

    def rest(self) -> list[Record]:
        """Read everything that is in the topics now; return all records so far."""
        for partition in list(self.next_offsets):
            end = _end_of(self.consumer, TopicPartition(*partition), lambda: self._poll(_POLL_S))
            deadline = time.monotonic() + TIMEOUT_S
            while self.next_offsets[partition] < end:
                assert time.monotonic() < deadline, f"{partition} ends at {end}, read {self.next_offsets[partition]}"
                self._poll(_POLL_S)
        return self.seen

    def _poll(self, timeout_s: float) -> None:
        for message in consume_available(self.consumer, 500, timeout_s):
            assert message.error() is None
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self.next_offsets[topic, partition] = offset + 1
            pairs = cast(list[tuple[str, bytes]], message.headers() or [])
            headers = {name: text.decode() for name, text in pairs}
            if not any(f"//{authority}/" in headers["coap.uri"] for authority in self.authorities):
                continue
            key, payload = message.key(), message.value()
            assert key is not None
            value: Any = payload
            if not topic.endswith("dead-letters"):
                assert payload is not None
                value = self.decode(payload).record if payload[:1] == b"\x00" else payload
            self.seen.append(Record(topic, key.decode(), value, headers))


@dataclass
class World:
    """The environment of a test: servers, a folder, and processes that end with the test."""

    kafka: Kafka
    registry: Registry
    folder: Path
    port: int
    monitoring_port: int
    cleanup: ExitStack
    free_port: Callable[[], int]
    way_to_kafka: str | None = None
    """Kafka's address for the service, when a relay stands between them."""

    @property
    def authority(self) -> str:
        return f"localhost:{self.port}"

    def start(self, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self.cleanup.callback(_end, process)
        return process

    def simulator(self, *more: str, port: int | None = None) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "isotherm.simulators",
            "coap",
            "--host",
            "127.0.0.1",
            "--port",
            str(port or self.port),
        ]
        return self.start([*command, "--max-age", "1", "--ledger", str(self.ledger), *more], "simulator.log")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def libcoap(self) -> subprocess.Popen[bytes]:
        return self.start([LIBCOAP_SERVER, "-A", "127.0.0.1", "-p", str(self.port), "-d", "10"], "libcoap.log")

    def libcoap_dtls(self) -> subprocess.Popen[bytes]:
        """Start libcoap's server: `coaps://` on the world's port, `coap://` on the port below."""
        key = ["-k", PRE_SHARED_KEY, "-h", "hint"]
        return self.start(
            [LIBCOAP_DTLS_SERVER, "-A", "127.0.0.1", "-p", str(self.port - 1), *key, "-d", "10"], "libcoap.log"
        )

    def put(self, resource: str, payload: bytes, content_format: int) -> None:
        file = self.folder / "payload"
        file.write_bytes(payload)
        uri = f"coap://127.0.0.1:{self.port}/{resource}"
        command = [LIBCOAP_CLIENT, "-m", "put", "-t", str(content_format), "-f", str(file), "-B", "5", uri]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)

    def relay(self, server_port: int, *more: str) -> subprocess.Popen[bytes]:
        """Start a faulty path to a server on `server_port`; the relay listens on the world's port."""
        command = [sys.executable, "-m", "isotherm.simulators", "relay", "--listen", f"127.0.0.1:{self.port}"]
        ends = ["--to", f"127.0.0.1:{server_port}", "--ledger", str(self.folder / "relay.jsonl")]
        return self.start([*command, *ends, *more], "relay.log")

    def ingest(
        self, kcql: str, *settings: str, uri: str | None = None, keys: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the service with a connector file as the documents print it; `keys` adds keys to the file."""
        file = self.folder / "coap-source.properties"
        lines = {
            "name": "coap-source",
            "connector.class": "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector",
            "max.tasks": "1",
            "connect.coap.source.uri": f"coap://{self.authority}" if uri is None else uri,
            "connect.coap.kcql": kcql,
            **(keys or {}),
        }
        file.write_text("".join(f"{key} = {value}\n" for key, value in lines.items() if value))
        overrides = [
            f"kafka.bootstrap_servers={self.way_to_kafka or self.kafka.bootstrap_servers}",
            f"registry.url={self.registry.url}",
            f"http.port={self.monitoring_port}",
            *QUICK,
            *settings,
        ]
        command = [sys.executable, "-m", "isotherm.coap_ingest", "run", str(file)]
        process = self.start([*command, *(part for each in overrides for part in ("--set", each))], "ingest.log")
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_monitored():
            assert time.monotonic() < deadline, tail(self.folder / "ingest.log")
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"ended with {process.wait(0.1)}\n{tail(self.folder / 'ingest.log')}")
        return process

    def _is_monitored(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.monitoring_port)) == 0

    def listening(self, kcql: str, scheme: str = "coap", **keys: str) -> subprocess.Popen[bytes]:
        """Start the service as a listener on the world's port; `keys` are below `connect.coap.listen`."""
        below = {f"connect.coap.listen.{name.replace('_', '.')}": value for name, value in keys.items()}
        listen = {"connect.coap.listen": f"{scheme}://127.0.0.1:{self.port}", **below}
        process = self.ingest(kcql, uri="", keys=listen)
        deadline = time.monotonic() + TIMEOUT_S
        while "listening" not in (self.folder / "ingest.log").read_text():
            assert time.monotonic() < deadline, tail(self.folder / "ingest.log")
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"ended with {process.wait(0.1)}\n{tail(self.folder / 'ingest.log')}")
        return process

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitoring_port}/metrics", timeout=TIMEOUT_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples)
        found = [s for s in samples if s.name == f"isotherm_coap_ingest_{name}" and labels.items() <= s.labels.items()]
        return sum(sample.value for sample in found)

    def ready(self) -> Mapping[str, str]:
        """Return the problems that `/ready` reports."""
        request = f"http://127.0.0.1:{self.monitoring_port}/ready"
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            body = error.read()
        problems: Mapping[str, str] = json.loads(body)["problems"]
        return problems

    def reader(self, *topics: str, ports: Sequence[int] = ()) -> Reader:
        """Return a reader of the records from the world's port, or from `ports`."""
        settings = KafkaSettings(bootstrap_servers=self.kafka.bootstrap_servers)
        # Kafka answers the question for an end only after the fetch before it.
        consumer = clients.consumer(settings, "test", "test-coap-ingest", fetch_wait_max_ms=50)
        self.cleanup.callback(consumer.close)
        partitions = []
        for topic in topics:
            # A new topic takes a moment to be known everywhere.
            while not (known := consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions):
                continue
            partitions += [TopicPartition(topic, number, OFFSET_END) for number in known]
        # Resolve the end now, not at the first poll, so that the reader sees everything that follows.
        for partition in partitions:
            partition.offset = _end_of(consumer, partition, partial(consumer.poll, _POLL_S))
        consumer.assign(partitions)
        registry = SchemaRegistry(RegistrySettings(url=self.registry.url))
        authorities = tuple(f"{host}:{port}" for port in ports or (self.port,) for host in ("localhost", "127.0.0.1"))
        next_offsets = {(partition.topic, partition.partition): partition.offset for partition in partitions}
        return Reader(consumer, Decoder(registry), authorities, next_offsets, self.folder / "ingest.log")


def _end_of(consumer: Any, partition: TopicPartition, wait: Callable[[], object]) -> int:
    """Return the end offset of a partition; retry while the partition is new or the client reconnects."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            wait()
        else:
            return end


def tail(log: Path) -> str:
    """Return the end of the service's log."""
    return log.read_text()[-4000:] if log.exists() else "no log"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(TIMEOUT_S)


@contextmanager
def opened(kafka: Kafka, registry: Registry, folder: Path, free_port: Callable[[], int]) -> Iterator[World]:
    """Open a world on these servers, with topics and schemas; its processes end with it."""
    apply(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), RegistrySettings(url=registry.url))
    with ExitStack() as cleanup:
        yield World(kafka, registry, folder, free_port(), free_port(), cleanup, free_port)


def dead_letter_topic(world: World, name: str) -> str:
    """Create a dead-letter topic, so that it can be read from its end; return its name."""
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

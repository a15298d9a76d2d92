"""One suite for every sink, on the real servers: what arrives, what stays, and what a crash must not change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from confluent_kafka import TopicPartition
from confluent_kafka._model import ConsumerGroupTopicPartitions
from elasticsearch import Elasticsearch
from hazelcast.client import HazelcastClient

import isotherm_schemas
from isotherm_cli.apply import apply
from isotherm_cli.plan import DeclaredSubject, DeclaredTopic
from servicekit import kafka as clients
from servicekit.avro import SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SCHEMA = isotherm_schemas.schema("TemperatureAggregate", 1)
BASE_MS = 1_767_225_600_000
KEYSPACE = "conformance"
PATIENCE_S = 150.0
RECORDS = re.compile(r'isotherm_persisters_records_total\{.*outcome="(?P<outcome>\w+)".*\} (?P<count>\S+)')

Identity = tuple[str, int]
"""Device and window."""


def until(what: str, condition: Callable[[], bool], *, told: Callable[[], str] = str) -> None:
    """Wait until `condition` holds."""
    pause, waited_s = threading.Event(), 0.0
    while not condition():
        pause.wait(0.1)
        waited_s += 0.1
        if waited_s > PATIENCE_S:
            pytest.fail(f"{what}: not within {PATIENCE_S} s\n{told()}")


@dataclass
class Broker:
    """Kafka and the registry, for one topic of its own."""

    kafka: KafkaSettings
    registry: RegistrySettings
    topic: str = field(default_factory=lambda: f"conformance-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        apply(
            self.kafka,
            self.registry,
            topics=[DeclaredTopic(self.topic, 2, {})],
            subjects=[DeclaredSubject(f"{self.topic}-value", [SCHEMA])],
        )
        self._schemas = SchemaRegistry(self.registry)
        self._encode = self._schemas.encoder(self.topic, SCHEMA)
        self._producer = clients.producer(self.kafka, "test")

    def aggregate(self, device: str, window: int, revision: int) -> bytes:
        """One record in the wire format."""
        start = BASE_MS + window * 10_000
        return self._encode(
            {
                "device_id": device,
                "metric": "temperature",
                "window_start": start,
                "window_end": start + 10_000,
                "count": 1,
                "sum": 20.0,
                "mean": 20.0,
                "min": 20.0,
                "max": 20.0,
                "stddev": 0.0,
                "revision": revision,
            }
        )

    def produce(self, *values: tuple[str, bytes | None]) -> None:
        """Write values by key, all acknowledged on return."""
        for key, value in values:
            self._producer.produce(self.topic, key=key, value=value, headers=[("h", b"kept")])
        assert self._producer.flush(30) == 0

    def rewind(self, group: str) -> None:
        """Set the group back to the beginning."""
        admin = clients.admin(self.kafka, "test")
        begin = [TopicPartition(self.topic, partition, 0) for partition in range(2)]
        for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, begin)]).values():
            future.result()

    def dead_letters(self, topic: str, count: int) -> list[tuple[bytes | None, dict[str, bytes]]]:
        """The values and headers of the first `count` dead letters."""
        consumer = clients.consumer(self.kafka, "test", f"test-{uuid.uuid4().hex}")
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[bytes | None, dict[str, bytes]]] = []

        def collected() -> bool:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None
                headers: Any = message.headers()
                found.append((message.value(), dict(headers)))
            return len(found) >= count

        until(f"{count} dead letters", collected)
        consumer.close()
        return found


class Store:
    """One sink and one target in it, seen from outside."""

    sink: str
    holds_each_record = False
    """Append-only: every record is there once, not the last of its identity."""

    def __init__(self) -> None:
        self.target = f"t_{uuid.uuid4().hex[:8]}"

    def lines(self, topic: str) -> list[str]:
        """The sink's part of the connector's file."""
        raise AssertionError

    def revisions(self) -> list[tuple[Identity, int]]:
        """What it holds."""
        raise AssertionError

    def close(self) -> None:
        """Release the test's own connection."""


class ElasticsearchStore(Store):
    sink = "elasticsearch"

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server, self.url = server, server.url
        self.client = Elasticsearch(self.url)

    def lines(self, topic: str) -> list[str]:
        return [
            f"connect.elastic.url={self.url.replace('http', 'elasticsearch')}",
            f"connect.elastic.kcql=INSERT INTO {self.target} SELECT * FROM {topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}",
        ]

    def revisions(self) -> list[tuple[Identity, int]]:
        index = f"{self.target}-2026.01.01"
        self.client.indices.refresh(index=index, ignore_unavailable=True)
        found = self.client.search(index=index, size=10_000, ignore_unavailable=True)
        return [_seen(hit["_source"]) for hit in found["hits"]["hits"]]

    def close(self) -> None:
        self.client.close()


class ScyllaStore(Store):
    sink = "scylla"

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server

    def lines(self, topic: str) -> list[str]:
        return [
            "connect.cassandra.contact.points=127.0.0.1",
            f"connect.cassandra.port={self.server.port}",
            f"connect.cassandra.key.space={KEYSPACE}",
            "connect.cassandra.key.space.replication.factor=1",
            f"connect.cassandra.kcql=INSERT INTO {self.target} SELECT * FROM {topic} AUTOCREATE "
            "PK device_id, window_start, window_end, metric",
        ]

    def revisions(self) -> list[tuple[Identity, int]]:
        # A session of its own: one that saw the server die would take its time to come back.
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy())
        profiles = {EXEC_PROFILE_DEFAULT: profile}
        with Cluster(["127.0.0.1"], port=self.server.port, protocol_version=5, execution_profiles=profiles) as cluster:
            query = f"SELECT device_id, window_start, revision FROM {KEYSPACE}.{self.target}"
            return [
                ((row.device_id, (int(row.window_start.timestamp() * 1000) - BASE_MS) // 10_000), row.revision)
                for row in cluster.connect().execute(query)
            ]


class HazelcastStore(Store):
    sink = "hazelcast"
    structure = "IMAP"

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server
        self.client = HazelcastClient(cluster_name=server.cluster_name, cluster_members=[server.address])

    def lines(self, topic: str) -> list[str]:
        return [
            f"connect.hazelcast.sink.cluster.members={self.server.address}",
            f"connect.hazelcast.sink.group.name={self.server.cluster_name}",
            f"connect.hazelcast.sink.kcql=INSERT INTO {self.target} SELECT * FROM {topic} STOREAS {self.structure}",
        ]

    def revisions(self) -> list[tuple[Identity, int]]:
        return [_seen(json.loads(item.to_string())) for item in self.items()]

    def items(self) -> list[Any]:
        return list(self.client.get_map(self.target).values().result())

    def close(self) -> None:
        self.client.shutdown()


class QueueStore(HazelcastStore):
    structure, holds_each_record = "QUEUE", True

    def items(self) -> list[Any]:
        return list(self.client.get_queue(self.target).iterator().result())


class RingStore(HazelcastStore):
    structure, holds_each_record = "RING_BUFFER", True

    def items(self) -> list[Any]:
        ring: Any = self.client.get_ringbuffer(self.target)
        size = ring.size().result()
        return list(ring.read_many(0, size, 900).result()) if size else []


def _seen(document: dict[str, Any]) -> tuple[Identity, int]:
    return (document["device_id"], (document["window_start"] - BASE_MS) // 10_000), document["revision"]


STORES: dict[str, tuple[type[Store], str]] = {
    "elasticsearch": (ElasticsearchStore, "elasticsearch"),
    "scylla": (ScyllaStore, "cassandra"),
    "map": (HazelcastStore, "hazelcast"),
    "queue": (QueueStore, "hazelcast"),
    "ring": (RingStore, "hazelcast"),
}


class Persister:
    """`persisters run` as a process."""

    def __init__(self, broker: Broker, store: Store, folder: Path, port: int, *lines: str) -> None:
        self.name = f"c-{uuid.uuid4().hex[:8]}"
        self._broker, self._store, self._port = broker, store, port
        self._file = folder / f"{self.name}.properties"
        self._log = folder / f"{self.name}.log"
        text = [
            f"name={self.name}",
            f"connector.class={store.sink}",
            f"topics={broker.topic}",
            *store.lines(broker.topic),
        ]
        self._file.write_text("\n".join([*text, *lines]) + "\n", encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def group(self) -> str:
        return f"connect-{self.name}"

    def start(self, **settings: int) -> None:
        chosen = {
            "kafka.bootstrap_servers": self._broker.kafka.bootstrap_servers,
            "registry.url": self._broker.registry.url,
            "http.port": self._port,
            "session_timeout_ms": 6_000,
            "commit_interval_ms": 200,
            **settings,
        }
        sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "persisters", "run", "--sink", self._store.sink, str(self._file), *sets]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    def counts(self) -> Counter[str]:
        """Records by outcome, as /metrics tells; empty while the process does not answer."""
        counts: Counter[str] = Counter()
        for line in self._ask("metrics").splitlines():
            sample = RECORDS.fullmatch(line)
            if sample is not None:
                counts[sample["outcome"]] += int(float(sample["count"]))
        return counts

    def problems(self) -> dict[str, str]:
        """Why it is not ready."""
        answer = self._ask("ready")
        return dict(json.loads(answer)["problems"]) if answer else {"process": "does not answer"}

    def _ask(self, page: str) -> str:
        """The page, also when it is answered with 503; empty while the process does not answer."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/{page}")
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()

    def until_read(self, count: int) -> None:
        """Wait until `count` records have their outcome."""
        until(f"{count} records read", lambda: self.counts()["read"] >= count, told=self.log)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")[-6_000:] + f"\n{self.counts()} {self.problems()}"

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def exit_code(self) -> int:
        """Wait until it ends by itself."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def broker(kafka: Any, registry: Any) -> Broker:
    return Broker(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), RegistrySettings(url=registry.url))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    kind, server = STORES[request.param]
    made: Store = kind(request.getfixturevalue(server))  # type: ignore[call-arg]  # every kind takes its server
    yield made
    made.close()


@pytest.fixture
def map_store(hazelcast: Any) -> Iterator[Store]:
    made = HazelcastStore(hazelcast)
    yield made
    made.close()


@pytest.fixture
def persister(broker: Broker, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Persister]]:
    made: list[Persister] = []

    def make(store: Store, *lines: str) -> Persister:
        made.append(Persister(broker, store, tmp_path, free_port(), *lines))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def expected(store: Store, written: list[tuple[Identity, int]]) -> Counter[tuple[Identity, int]]:
    """What the store holds after these records: each of them, or the highest revision of each identity."""
    if store.holds_each_record:
        return Counter(written)
    highest: dict[Identity, int] = {}
    for identity, revision in written:
        highest[identity] = max(revision, highest.get(identity, 0))
    return Counter(list(highest.items()))


def records(broker: Broker, devices: int, windows: range, revision: int) -> list[tuple[Identity, int]]:
    """Produce one aggregate for each device and window."""
    written = [((f"dev-{device}", window), revision) for window in windows for device in range(devices)]
    broker.produce(*((one[0], broker.aggregate(*one, revision)) for one, revision in written))
    return written


def test_arrives_once_and_a_replay_changes_nothing(
    broker: Broker, store: Store, persister: Callable[..., Persister]
) -> None:
    """Also: a lower revision behind a higher one changes nothing, and SIGTERM ends the task well."""
    written = records(broker, 10, range(8), revision=BASE_MS + 2)
    written += records(broker, 10, range(4), revision=BASE_MS + 1)
    written += records(broker, 10, range(2), revision=BASE_MS + 3)
    task = persister(store)
    task.start()
    task.until_read(len(written))
    assert Counter(store.revisions()) == expected(store, written)
    assert task.stop() == 0

    broker.rewind(task.group)
    task.start()
    task.until_read(len(written))
    assert Counter(store.revisions()) == expected(store, written)
    assert task.stop() == 0


def test_good_records_of_a_batch_with_bad_ones_arrive(
    broker: Broker, store: Store, persister: Callable[..., Persister]
) -> None:
    whole = broker.aggregate("dev-0", 0, BASE_MS)
    poison = [b"\x07bad magic", b"\x00\x7f\xff\xff\xffunknown id", whole[:-4], b"", b"x" * 900_000]
    written = records(broker, 3, range(5), revision=BASE_MS)
    broker.produce(*(("dev-0", value) for value in poison))
    written += records(broker, 3, range(5, 10), revision=BASE_MS)
    task = persister(store, "error.policy=NOOP", "errors.deadletterqueue.enable=true")
    task.start()
    task.until_read(len(written) + len(poison))
    assert Counter(store.revisions()) == expected(store, written)
    counts = task.counts()
    assert (counts["written"], counts["dead_lettered"]) == (len(written), len(poison))
    letters = broker.dead_letters(f"{task.name}.dead-letters", len(poison))
    assert Counter(value for value, _ in letters) == Counter(poison)
    for _, headers in letters:
        assert headers["h"] == b"kept"
        assert headers["__connect.errors.topic"] == broker.topic.encode()
        assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
        assert headers["__connect.errors.exception.message"]
    assert task.stop() == 0


def test_a_kill_between_write_and_commit_loses_and_doubles_nothing(
    broker: Broker, store: Store, persister: Callable[..., Persister]
) -> None:
    written = records(broker, 10, range(10), revision=BASE_MS + 1)
    task = persister(store)
    task.start(commit_interval_ms=600_000)
    task.until_read(len(written))
    task.kill()

    written += records(broker, 10, range(10, 12), revision=BASE_MS + 1)
    task.start()
    task.until_read(len(written))
    assert Counter(store.revisions()) == expected(store, written)
    assert task.counts()["written"] == len(written), "the uncommitted counts went with the uncommitted offsets"
    assert task.stop() == 0


def test_a_server_that_is_away_is_waited_for(
    broker: Broker, store: Store, persister: Callable[..., Persister], request: pytest.FixtureRequest
) -> None:
    if isinstance(store, HazelcastStore):
        # All is in memory: what must survive needs a second member, with the first one's backups.
        request.getfixturevalue("hazelcast_second")
    task = persister(store, "error.policy=RETRY", "max.retries=-1", "retry.interval=500")
    written = records(broker, 10, range(5), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    server: Any = store.server  # type: ignore[attr-defined]  # every kind keeps its server
    server.kill()
    written += records(broker, 10, range(5, 10), revision=BASE_MS)
    if not isinstance(store, HazelcastStore):
        until("not ready", lambda: "sink" in task.problems(), told=task.log)
    server.start()
    server.wait_ready()
    written += records(broker, 10, range(10, 12), revision=BASE_MS)
    task.until_read(len(written))
    until("ready", lambda: not task.problems(), told=task.log)
    until("all there", lambda: Counter(store.revisions()) == expected(store, written), told=task.log)
    assert task.stop() == 0


def test_throw_stops_at_the_bad_record_and_a_restart_stops_there_again(
    broker: Broker, map_store: Store, persister: Callable[..., Persister]
) -> None:
    written = [(("dev-0", window), BASE_MS) for window in range(20)]
    broker.produce(*(("dev-0", broker.aggregate(*one, revision)) for one, revision in written))
    broker.produce(("dev-0", b"poison"), ("dev-0", broker.aggregate("dev-0", 99, BASE_MS)))
    task = persister(map_store, "errors.deadletterqueue.enable=true")
    for _ in range(2):
        task.start()
        assert task.exit_code() == 1
        assert Counter(map_store.revisions()) == expected(map_store, written)
    told = task.log()
    assert "stopped by the error policy" in told
    assert f"{broker.topic}-" in told
    assert "at offset 20: VALUE_CONVERTER" in told


def test_tasks_share_the_partitions_and_a_failed_one_ends_the_connector(
    broker: Broker, map_store: Store, persister: Callable[..., Persister]
) -> None:
    written = records(broker, 20, range(5), revision=BASE_MS)
    task = persister(map_store, "tasks.max=2")
    task.start()
    until("all there", lambda: Counter(map_store.revisions()) == expected(map_store, written), told=task.log)
    written += records(broker, 20, range(5, 10), revision=BASE_MS)
    until("all there", lambda: Counter(map_store.revisions()) == expected(map_store, written), told=task.log)
    assert task.process is not None
    first, second = psutil.Process(task.process.pid).children()
    first.kill()
    assert task.exit_code() == 128 + signal.SIGKILL
    assert not second.is_running()
    task.start()
    written += records(broker, 20, range(10, 12), revision=BASE_MS)
    until("all there", lambda: Counter(map_store.revisions()) == expected(map_store, written), told=task.log)
    assert task.stop() == 0

"""Late readings are added to their windows afterwards, by a command or by themselves: every store equals a recount."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import SETTINGS, Given
from aggregator_world import READING, RULES, Process, Record, Topics, settings_of, wait_for
from cassandra.cluster import Cluster
from cassandra.query import dict_factory
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
from elasticsearch import Elasticsearch as Client
from elasticsearch.helpers import scan
from hazelcast.client import HazelcastClient

from isotherm.demo.evidence import plain
from isotherm.demo.workers import (
    CassandraPersister,
    Configured,
    ElasticsearchPersister,
    HazelcastPersister,
    Worker,
)
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.offsets import list_offsets
from isotherm.simulators import checker
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import Runtime

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.long]

WITHIN_S = 600.0
SINKS: Mapping[type[Worker], tuple[str, str]] = {
    ElasticsearchPersister: (
        "elasticsearch",
        "connector.class = com.datamountaineer.streamreactor.connect.elastic.ElasticSinkConnector\n"
        "connect.elastic.url = {elasticsearch}\n"
        "connect.elastic.kcql = INSERT INTO {name} SELECT * FROM {topic} AUTOCREATE WITHINDEXSUFFIX=-{{YYYY.MM.DD}}\n",
    ),
    CassandraPersister: (
        "scylla",
        "connector.class = com.datamountaineer.streamreactor.connect.cassandra.sink.CassandraSinkConnector\n"
        "connect.cassandra.contact.points = 127.0.0.1\nconnect.cassandra.port = {cassandra}\n"
        "connect.cassandra.key.space = isotherm\nconnect.cassandra.key.space.replication.factor = 1\n"
        "connect.cassandra.kcql = INSERT INTO {name} SELECT * FROM {topic} AUTOCREATE "
        "PK device_id,metric,window_start,window_end\n",
    ),
    HazelcastPersister: (
        "hazelcast",
        "connector.class = com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector\n"
        "connect.hazelcast.cluster.members = {hazelcast}\nconnect.hazelcast.group.name = dev\n"
        "connect.hazelcast.kcql = INSERT INTO {name} SELECT * FROM {topic} WITHFORMAT JSON STOREAS IMAP\n",
    ),
}

Rows = dict[Any, Mapping[str, Any]]


class Stores:
    """The three stores, each with one persister that writes an aggregator's output topic into it."""

    def __init__(self, elasticsearch: Elasticsearch, cassandra: Cassandra, hazelcast: Hazelcast, name: str) -> None:
        self._addresses = {
            "elasticsearch": elasticsearch.url,
            "cassandra": str(cassandra.port),
            "hazelcast": hazelcast.address,
        }
        self._name = name
        at_end = self._at_end = ExitStack()
        self._elasticsearch = at_end.enter_context(Client(elasticsearch.url))
        self._cluster = at_end.enter_context(Cluster(["127.0.0.1"], port=cassandra.port, protocol_version=4))
        self._cassandra = self._cluster.connect()
        self._cassandra.row_factory = dict_factory
        self._hazelcast = HazelcastClient(cluster_name="dev", cluster_members=[hazelcast.address])
        at_end.callback(self._hazelcast.shutdown)

    @contextmanager
    def filled_from(self, topics: Topics, folder: Path, free_port: Callable[[], int]) -> Iterator[None]:
        """Run one persister for each store until the end of the block."""
        kafka = ["--set", f"kafka.bootstrap_servers={topics.bootstrap_servers}"]
        registry = ["--set", f"registry.url={topics.registry_url}"]
        with self._at_end as at_end:
            for kind, (sink, text) in SINKS.items():
                conf = folder / f"{sink}.properties"
                first = f"name = {self._name}-{sink}\ntasks.max = 1\ntopics = {topics.output}\n"
                conf.write_text(first + text.format(name=self._name, topic=topics.output, **self._addresses))
                started = Configured(["run", "--sink", sink, str(conf), *kafka, *registry], {})
                worker = kind(folder / sink, Runtime(Artifacts()), started, free_port())
                worker.start()
                at_end.callback(worker.stop)
                worker.wait_ready()
            yield

    def rows(self) -> dict[str, Rows]:
        """What each store holds, by window."""
        self._elasticsearch.indices.refresh(index=f"{self._name}-*")
        documents = [hit["_source"] for hit in scan(self._elasticsearch, index=f"{self._name}-*", size=2_000)]
        self._cluster.refresh_schema_metadata()
        keyspace = self._cluster.metadata.keyspaces.get("isotherm")
        has_table = keyspace is not None and self._name in keyspace.tables
        table = self._cassandra.execute(f"SELECT * FROM isotherm.{self._name}") if has_table else ()
        entries: list[Any] = self._hazelcast.get_map(self._name).blocking().values()
        found: dict[str, list[Mapping[str, Any]]] = {
            "Elasticsearch": documents,
            "Cassandra": [{name: plain(value) for name, value in row.items()} for row in table],
            "Hazelcast": [json.loads(entry.to_string()) for entry in entries],
        }
        return {store: {checker.window_key(row): row for row in rows} for store, rows in found.items()}

    def wait_for(self, windows: Mapping[Any, Mapping[str, float]], revisions: Mapping[Any, int]) -> None:
        """Wait until each store has exactly these revisions of these windows, and compare all numbers."""
        deadline, pause = time.monotonic() + WITHIN_S, threading.Event()
        found = self.rows()
        while any(revisions_in(rows) != revisions for rows in found.values()):
            held = {store: len(rows) for store, rows in found.items()}
            assert time.monotonic() < deadline, f"{len(revisions)} windows, the stores hold {held}, or other revisions"
            pause.wait(0.5)
            found = self.rows()
        for store, rows in found.items():
            assert checker.mismatches(windows, rows) == [], store


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    """The topics of one test."""
    declared = Topics(kafka.bootstrap_servers, registry.url, f"recompute_{uuid.uuid4().hex[:8]}")
    declared.declare([READING])
    return declared


@pytest.fixture
def stores(elasticsearch: Elasticsearch, cassandra: Cassandra, hazelcast: Hazelcast, topics: Topics) -> Stores:
    """The three stores, whose tables have the name of the topics."""
    return Stores(elasticsearch, cassandra, hazelcast, topics.name)


def revisions_in(rows: Rows) -> dict[Any, int]:
    """The revision of each window."""
    return {key: row["revision"] for key, row in rows.items()}


def published(given: Given) -> Rows:
    """The highest revision of each window in the topic."""
    found, problems = checker.latest(given.published())
    assert problems == []
    return found


def test_a_hundred_thousand_late_readings_are_put_into_their_windows_in_every_store(
    stores: Stores, topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=220_000, span_ms=900_000, late_share=0.5)
    whole = checker.Rules(RULES.window_ms, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
    late = sum(record.category == "late" for record in given.records)
    before, after = given.windows(), given.windows(whole)
    assert late >= 100_000
    assert len({(start, end) for _, _, start, end in after}) >= 50
    given.put(given.records)
    given.complete()

    folder = tmp_path / "checkpoint"
    with Process(topics, folder, free_port(), max_offsets_per_trigger=50_000, **SETTINGS) as process:
        wait_for(lambda: {key for key, _ in given.published()} >= before.keys(), "every window", process)
        assert process.terminate() == 0
    first = published(given)
    assert checker.mismatches(before, first) == []

    with stores.filled_from(topics, tmp_path, free_port):
        stores.wait_for(before, revisions_in(first))
        moments = min(start for _, _, start, _ in after), max(end for *_, end in after)
        command = [
            sys.executable,
            "-m",
            "isotherm.aggregator",
            "recompute",
            "--from",
            str(moments[0]),
            "--to",
            str(moments[1]),
        ]
        command += ["--settled-ms", "0", *settings_of(topics, folder, **SETTINGS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        corrected = published(given)
        assert checker.mismatches(after, corrected) == []
        stores.wait_for(after, revisions_in(corrected))

    outcome = json.loads(done.stdout)
    changed = {key for key in after if after[key] != before.get(key)}
    assert outcome["late_readings"] == late
    assert outcome["corrected_windows"] == len(changed)
    assert {key for key, revision in revisions_in(corrected).items() if revision == outcome["revision"]} == changed


DAY_MS, MINUTE_MS, DAY_DEVICES = 86_400_000, 60_000, 100
OF_A_DAY = {
    "advance_when_idle": False,
    "window_ms": MINUTE_MS,
    "max_offsets_per_trigger": 50_000,
    "corrections.interval_ms": 5_000,
    "corrections.max_age_ms": 3 * DAY_MS,
}


def day_of(given: Given, ingested_after_ms: int) -> list[Record]:
    """A reading a minute and device over a day, each taken in so long after it was measured."""
    begin_ms = (given.end_ms - DAY_MS) // MINUTE_MS * MINUTE_MS
    records = []
    for number in range(DAY_DEVICES * DAY_MS // MINUTE_MS):
        minute, device = divmod(number, DAY_DEVICES)
        event_ms = begin_ms + minute * MINUTE_MS + device * 100
        reading = {
            "device_id": f"device|{device}%",
            "metric": "temperature",
            "value": 20.0 + (number % 97) / 7 + ingested_after_ms / 1e6,
            "unit": "Cel",
            "event_time": event_ms,
            "ingest_time": event_ms + ingested_after_ms,
            "sequence": number,
            "attributes": {},
        }
        ingest_ms = event_ms + ingested_after_ms
        records.append(Record(str(number), str(device).encode(), given.encode(reading), "", reading, ingest_ms))
    return records


def test_a_day_of_late_readings_of_a_hundred_devices_comes_to_every_store_by_itself(
    stores: Stores, topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    """It prints how long that took, which `docs/results/late-day.txt` keeps."""
    given = Given(topics, readings=1, span_ms=60_000, late_share=0.0)
    rules = checker.Rules(MINUTE_MS, allowed_lateness_ms=10**15, max_skew_ms=RULES.max_skew_ms)
    on_time, late = day_of(given, 0), day_of(given, 60_000)
    readings = [record.reading for record in [*on_time, *late] if record.reading is not None]
    before = checker.expected_windows(readings[: len(on_time)], rules)
    after = checker.expected_windows(readings, rules)
    given.put(on_time)
    given.complete()

    process = Process(topics, tmp_path / "checkpoint", free_port(), **OF_A_DAY)
    with process, stores.filled_from(topics, tmp_path, free_port):
        wait_for(lambda: len({key for key, _ in given.published()}) >= len(before), "every window", process)
        wait_for(lambda: uncommitted(topics) == 0, "the windows in the stores", process)
        began_s = time.monotonic()
        given.put(late)
        put_s = time.monotonic() - began_s
        wait_for(
            lambda: process.metrics()["isotherm_aggregator_windows_corrected_total"] >= len(after),
            "the corrections",
            process,
        )
        corrected_s = time.monotonic() - began_s
        # A persister commits what its store has. The comparison afterwards takes longer than the writing.
        wait_for(lambda: uncommitted(topics) == 0, "the stores", process)
        took_s = time.monotonic() - began_s
        stores.wait_for(after, revisions_in(published(given)))
        assert process.terminate() == 0
    sys.stdout.write(
        f"{len(late):,} late readings of {DAY_DEVICES} devices and a day: in Kafka after {put_s:.1f} s, {len(after):,} "
        f"windows corrected after {corrected_s:.1f} s, in three stores after {took_s:.1f} s\n"
    )


def uncommitted(topics: Topics) -> int:
    """How many records of the output topic the three persisters have not written and committed."""
    admin = clients.group_admin(topics.kafka, "late-day")
    partitions = [(topics.output, number) for number in range(topics.partitions)]
    ends = list_offsets(admin, partitions, OffsetSpec.latest(), committed=True, timeout_s=10.0)  # type: ignore[no-untyped-call]  # it has no annotations
    asked = [TopicPartition(*partition) for partition in partitions]
    written = 0
    for sink, _ in SINKS.values():
        found = admin.committed_offsets(f"connect-{topics.name}-{sink}", asked, timeout_s=10.0)
        written += sum(max(0, one.offset) for one in found)
    return sum(end.offset for end in ends.values()) * len(SINKS) - written

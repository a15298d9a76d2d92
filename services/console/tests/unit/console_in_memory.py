"""The console's application over a cluster, configurations and topics in memory, for tests without servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryError
from confluent_kafka.schema_registry._sync.mock_schema_registry_client import MockSchemaRegistryClient
from fastapi.testclient import TestClient

import isotherm.schemas
from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.offsets import replay
from isotherm.connector.offsets.topic_sizes import TopicSize
from isotherm.connector.state.readback import REQUESTS, ReadbackAnswer, ReadbackRequest
from isotherm.console.app import Components, application
from isotherm.console.browser.record_masking import RecordMasker
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import CommittedOffset, TargetOffset, translate_kafka_errors
from isotherm.console.dead_letters.queue import HandledRecords, QueueOverview, RecordPosition
from isotherm.console.dead_letters.record import OpenRecords, QueuedRecord, take_first
from isotherm.console.devices.alerts import Alerts
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.device_states import DeviceRecordCache
from isotherm.console.devices.rules import OUTCOME, OUTCOME_PREFIX, TRIAL, AlertRule, RuleControl, Rules
from isotherm.console.devices.silences import SilenceControl, Silences
from isotherm.console.errors import ConflictError, NotFoundError, UnavailableError
from isotherm.console.records.decoding import value_decoder
from isotherm.console.records.paging import (
    Bounds,
    FetchedRecords,
    Span,
    TooLargeError,
    TopicReader,
)
from isotherm.console.records.record import Record
from isotherm.console.settings import AuthSettings, ConsoleSettings
from isotherm.console.trace.readback import Readbacks
from isotherm.console.trace.tracer import Tracer
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.settings import RegistrySettings

NOW = 1_800_000_000_000
KLASS = "isotherm.PrintSinkConnector"


def key(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STRING",
        "default": None,
        "required": False,
        "importance": "HIGH",
        "documentation": f"What {name} is.",
        "aliases": [],
        "allowed": [],
        "minimum": None,
        "maximum": None,
        **more,
    }


PLUGIN = {
    "connector_class": KLASS,
    "type": "sink",
    "version": "1.2",
    "aliases": ["org.old.PrintSink"],
    "keys": [
        key("name", required=True),
        key("connector.class", default=KLASS),
        key("tasks.max", type="INT", default="1", aliases=["max.tasks"], minimum=1.0),
        key("topics", type="LIST", default=""),
        key("topics.regex", default=""),
        key("print.kcql", required=True),
        key("print.password", type="PASSWORD"),
        key("print.mode", default="all", allowed=["all", "some"]),
        key("print.percent", type="DOUBLE", default="100", minimum=0.0, maximum=100.0),
    ],
    "kcql_clauses": [],
}
CONFIG = {
    "connector.class": KLASS,
    "topics": "t",
    "print.kcql": "INSERT INTO a SELECT * FROM t",
    "print.password": "hunter22",
}


def said(
    connector: str = "a", task: int = 0, worker: str = "w:1", state: str = "RUNNING", **more: Any
) -> dict[str, Any]:
    """A TaskStatus record, decoded."""
    return {
        "connector": connector,
        "task": task,
        "worker": worker,
        "worker_group": "g",
        "state": state,
        "trace": None,
        "counts": {},
        "lag": {},
        "classes": [],
        "updated_at": NOW,
        **more,
    }


class Memory:
    """A configuration store and offsets in memory; what is written is read back at once."""

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster, self.records = cluster, []
        self.is_away = False
        self.committed = [CommittedOffset("t", 0, 7)]

    records: list[tuple[str, Mapping[str, Any] | None]]

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        if self.is_away:
            raise UnavailableError("Kafka did not take the change")
        self.records.append((name, record))
        self.cluster.update_connector(name, record, NOW)

    def read(self, group: str) -> list[CommittedOffset]:
        assert group.startswith("connect-a")
        return self.committed

    def alter(self, group: str, targets: Sequence[TargetOffset]) -> list[replay.Move]:
        there = [replay.PartitionState("t", number, 7, "", 2, 10) for number in (0, 1)]
        with translate_kafka_errors():
            moves = replay.plan_offsets(there, {(topic, partition): offset for topic, partition, offset in targets})
        self.committed = [CommittedOffset(one.topic, one.partition, one.after) for one in moves]
        return moves

    def delete(self, group: str) -> None:
        self.committed = []

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        if topics == ["busy"]:
            raise ConflictError("tasks run")
        return [replay.Move(topics[0], partition or 0, 7, position.value, 10, "")]


class MemoryQueues:
    """One dead-letter queue with two records."""

    def __init__(self) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            ("__connect.errors.topic", b"t"),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.exception.class.name", b"x.BadError"),
            ("own", b"1"),
        ]
        self.records = [QueuedRecord("a.dead-letters", 0, n, NOW, b"k", b'{"n":1}', headers) for n in (3, 4)]
        self.asked: list[Any] = []

    def queues(self, configured: Collection[str]) -> list[QueueOverview]:
        return [QueueOverview("a.dead-letters", 2), *(QueueOverview(name, 0) for name in sorted(configured))]

    def open_records(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        return take_first((one for one in self.records if after is None or one.offset > after.offset), limit)

    def record(self, topic: str, position: RecordPosition) -> QueuedRecord:
        for one in self.records:
            if (one.topic, one.offset) == (topic, position.offset):
                return one
        raise NotFoundError(f"{topic} has no record {position.partition}/{position.offset}")

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        self.asked.append(("replay", topic, chosen))
        return HandledRecords(2, 0)

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        self.asked.append(("discard", topic, chosen))
        return HandledRecords(1, 0)


class _MemoryClient(MockSchemaRegistryClient):
    """The library's own registry in memory, with the code that registries give an id which they do not have."""

    def get_schema(self, *asked: Any, **named: Any) -> Schema:
        try:
            return super().get_schema(*asked, **named)
        except SchemaRegistryError as error:
            raise SchemaRegistryError(404, 40403, error.error_message) from None


class MemoryRegistry(SchemaRegistry):
    """The registry client, its server replaced by the client library's own one in memory."""

    def __init__(self) -> None:
        super().__init__(RegistrySettings())
        self.close()
        self.client = _MemoryClient({"url": "mock://"})

    def encoded(self, topic: str, record: str, version: int, value: Mapping[str, Any]) -> bytes:
        """A value of a topic in the wire format."""
        schema = isotherm.schemas.schema(record, version)
        self.client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
        return self.encoder(topic, schema)(value)


class MemoryReader:
    """A topic in memory: records of each partition by offset, with gaps as compaction leaves them."""

    def __init__(self, records: Iterable[Record], ends: Mapping[int, int] | None = None) -> None:
        self.partitions: dict[int, list[Record]] = {number: [] for number in ends or {0: 0}}
        for record in sorted(records, key=lambda one: one.offset):
            self.partitions.setdefault(record.partition, []).append(record)
        self.bounds = {
            number: Bounds(of[0].offset if of else 0, max((ends or {}).get(number, 0), of[-1].offset + 1 if of else 0))
            for number, of in self.partitions.items()
        }
        self.reads = 0

    def read(self, spans: Mapping[int, Span], key_prefix: bytes, max_bytes: int | None) -> FetchedRecords:
        self.reads += 1
        found = {
            number: [one for one in self.partitions[number] if span.start <= one.offset < span.end]
            for number, span in spans.items()
        }
        found = {number: of for number, of in found.items() if of}
        size = sum(len(one.value or b"") for of in found.values() for one in of)
        if max_bytes is not None and size > max_bytes:
            raise TooLargeError(size)
        return FetchedRecords(
            {number: [one for one in of if (one.key or b"").startswith(key_prefix)] for number, of in found.items()},
            {number: of[0].timestamp_ms for number, of in found.items()},
            {number: of[-1].timestamp_ms for number, of in found.items()},
            sum(map(len, found.values())),
            size,
        )

    def offsets_at(self, time_ms: int) -> dict[int, int]:
        return {
            number: next((one.offset for one in of if one.timestamp_ms >= time_ms), self.bounds[number].high)
            for number, of in self.partitions.items()
        }


class MemoryTopics:
    """Topics in memory."""

    def __init__(self) -> None:
        self.topics: dict[str, MemoryReader] = {}

    def put(self, topic: str, *values: bytes | None, key: bytes = b"k") -> None:
        """A topic with these values in its only partition, a second between them."""
        self.topics[topic] = MemoryReader(
            Record(topic, 0, n, NOW - 1_000 * (len(values) - n), key, value, [("h", b"1")])
            for n, value in enumerate(values)
        )

    def listed(self) -> list[TopicSize]:
        return [
            TopicSize(name, len(of.bounds), sum(high - low for low, high in of.bounds.values()))
            for name, of in sorted(self.topics.items())
        ]

    @contextmanager
    def reader(self, topic: str) -> Iterator[TopicReader]:
        if topic not in self.topics:
            raise NotFoundError(f"There is no topic {topic}")
        yield self.topics[topic]


class World:
    def __init__(self, auth: AuthSettings | None = None) -> None:
        self.cluster, self.queues, self.health = ClusterState(), MemoryQueues(), Health()
        self.memory, self.topics = Memory(self.cluster), MemoryTopics()
        self.control = ConnectorControl(self.cluster, self.memory, lambda: NOW)
        self.schemas = MemoryRegistry()
        self.latest, self.provisioned = DeviceRecordCache(1_000), DeviceRecordCache(1_000)
        self.alerts, self.condition = Alerts(1_000), Health()
        self.condition.ready()
        self.records: list[tuple[str, str, Any]] = []
        self.silences = SilenceControl(Silences(), self, lambda: NOW)
        self.rules = RuleControl(Rules(), self, lambda: NOW, lambda: "1")
        log = CommandLog(max_commands=1_000, max_device_commands=100, max_bytes=1_000_000)
        self.commands = CommandControl(log, OutcomeWaits(log), self, self.condition, lambda: NOW, lambda: "id-1")
        self.rule_answer: dict[str, Any] | None = {}
        """What the alerts service answers to a request to try a rule; None: nothing."""
        settings, decode = ConsoleSettings(auth=auth or AuthSettings()), value_decoder(Decoder(self.schemas))
        self.health.ready("start")
        self.cluster.update_plugin(KLASS, PLUGIN)
        self.say(EVERY_CONNECTOR, -1, classes=[KLASS])
        # Nobody answers unless a test says so.
        self.readbacks = Readbacks(self, lambda: NOW, timeout_ms=0)
        self.store: Callable[[ReadbackRequest], ReadbackAnswer | None] = lambda _request: None
        devices = DeviceBrowser(
            self.latest,
            self.provisioned,
            self.alerts,
            self.topics,
            self.schemas,
            self.condition,
            lambda: NOW,
            settings.search,
        )
        app = application(
            Components(
                settings=settings,
                cluster=self.cluster,
                control=self.control,
                offsets=self.memory,
                queues=self.queues,
                browser=TopicBrowser(
                    self.topics,
                    RecordMasker(self.control, decode),
                    self.control,
                    self.cluster,
                    lambda: NOW,
                    settings.search,
                ),
                devices=devices,
                tracer=Tracer(
                    self.topics,
                    devices,
                    self.control,
                    self.cluster,
                    self.memory,
                    self.schemas,
                    lambda: NOW,
                    settings.search,
                    self.readbacks,
                ),
                silences=self.silences,
                rules=self.rules,
                commands=self.commands,
                decode=decode,
                cluster_id=lambda: "cluster-1",
                now_ms=lambda: NOW,
                health=self.health,
            )
        )
        self.http = TestClient(
            app, base_url="http://127.0.0.1:8083", raise_server_exceptions=True, follow_redirects=False
        )

    def put(self, topic: str, _schema: Any, key: str, record: Any) -> None:
        """Keep a record that the console writes."""
        self.records.append((topic, key, record))
        if topic == REQUESTS and (answer := self.store(ReadbackRequest.of(record))) is not None:
            self.readbacks.take(answer.record(NOW))
        if record.get("role") == TRIAL and self.rule_answer is not None:
            about, times = OUTCOME_PREFIX + key, ("alerts", NOW, "alerts", NOW)
            self.rules.rules.update(about, AlertRule(about, OUTCOME, "", *times, **self.rule_answer))

    def remove(self, topic: str, key: str) -> None:
        """Keep a tombstone that the console writes."""
        self.records.append((topic, key, None))

    def say(self, connector: str, task: int, state: str = "RUNNING", **more: Any) -> None:
        record = said(connector, task, state=state, **more)
        self.cluster.update_status(f"{connector}/{task}/w:1", record)

    def create(self, **more: Any) -> None:
        assert self.http.post("/connectors", json={"name": "a", "config": CONFIG, **more}).status_code == 201


@contextmanager
def world_of(auth: AuthSettings | None = None) -> Iterator[World]:
    world = World(auth)
    with world.http:
        yield world

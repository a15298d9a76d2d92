"""Each sink with targets of its own for every test, and a reader of their contents."""

from __future__ import annotations

import json
import struct
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from elasticsearch import Elasticsearch
from hazelcast.client import HazelcastClient
from hazelcast.core import HazelcastJsonValue
from hazelcast.protocol.codec import map_put_if_absent_codec, ringbuffer_add_all_codec, transaction_commit_codec
from persisters_world import Seen, seen
from psycopg.errors import UndefinedTable
from psycopg.rows import dict_row

KEYSPACE = "conformance"
UNORDERED = ("SET", "MULTI_MAP")
IN_ORDER = ("QUEUE", "LIST", "RING_BUFFER", "RELIABLE_TOPIC")
_BULK = b"_bulk"
_DEVICE = b"dev-"
"""Part of every row that is written."""


class Held(NamedTuple):
    """What one target holds, in its order where it has one."""

    kind: str
    items: Sequence[Seen]

    def problem(self, written: Sequence[Seen]) -> str | None:
        """The difference from what `written`, produced in that order, must give; None without a difference."""
        if self.kind in (*UNORDERED, *IN_ORDER):
            expected = Counter(written)
        else:
            highest: dict[tuple[str, int], int] = {}
            for one in written:
                place = (one.device, one.window)
                highest[place] = max(one.revision, highest.get(place, 0))
            expected = Counter(Seen(*place, revision) for place, revision in highest.items())
        found = Counter(self.items)
        if found != expected:
            lost, surplus = expected - found, found - expected
            return f"{self.kind}: lost {lost.total()}: {list(lost)[:5]}, surplus {surplus.total()}: {list(surplus)[:5]}"
        if self.kind in IN_ORDER and _by_device(self.items) != _by_device(written):
            return f"{self.kind}: the items of a device are not in the order of the topic"
        return None


def _by_device(items: Sequence[Seen]) -> dict[str, list[Seen]]:
    found = defaultdict(list)
    for item in items:
        found[item.device].append(item)
    return found


class Store:
    """One sink and the targets of one test in it."""

    sink: str
    server: Any
    impatient: Sequence[str]
    """Lines that make a write to a frozen server fail soon."""
    lost_answers: dict[str, bytes]
    """Kinds of writes, and what is in the bytes of such a write and of no other request."""

    def __init__(self) -> None:
        self.target = f"t_{uuid.uuid4().hex[:8]}"

    def lines(self, topic: str, port: int | None = None) -> list[str]:
        """The sink's part of the connector's file, with the server's port or that of a relay."""
        raise AssertionError

    def hurt(self, changed: str, deleted: str) -> None:
        """Change the rows of one device as somebody does by hand, and delete those of another."""
        raise AssertionError

    def lines_by_device(self, topic: str, port: int | None = None) -> list[str]:
        """As `lines`, for readings, of which each device's last one stays."""
        raise AssertionError

    def held(self) -> list[Held]:
        """What the targets hold."""
        raise AssertionError

    def latest(self) -> dict[str, int]:
        """The sequence that each device's row has, with `lines_by_device`."""
        raise AssertionError

    def problems(self, written: Sequence[Seen]) -> list[str]:
        """The differences of the targets from what `written`, produced in that order, must give."""
        return [problem for held in self.held() if (problem := held.problem(written)) is not None]

    def write_of(self, sequence: int) -> bytes:
        """What is in the bytes of a write of the reading with this sequence."""
        return b'"sequence":%d' % sequence

    def refuse_counts_above_32767(self) -> None:
        """Create the target first, with a narrower type than the schema's for `count`."""
        raise AssertionError

    def close(self) -> None:
        """Release the test's own connection."""


class ElasticsearchStore(Store):
    sink = "elasticsearch"
    impatient = ("connect.elastic.write.timeout=1500",)
    lost_answers = {"bulk": _BULK}  # noqa: RUF012 - a constant

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server
        self.client = Elasticsearch(server.url)

    def lines(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"INSERT INTO {self.target} SELECT * FROM {topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}", port)

    def lines_by_device(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"INSERT INTO {self.target} SELECT * FROM {topic} PK device_id", port)

    def _lines(self, kcql: str, port: int | None) -> list[str]:
        url = f"elasticsearch://127.0.0.1:{port or self.server.port}"
        return [f"connect.elastic.url={url}", f"connect.elastic.kcql={kcql}"]

    def held(self) -> list[Held]:
        return [Held("index", [seen(one) for one in self._documents(f"{self.target}-2026.01.01")])]

    def latest(self) -> dict[str, int]:
        return {one["device_id"]: one["sequence"] for one in self._documents(self.target)}

    def _documents(self, index: str) -> list[dict[str, Any]]:
        self.client.indices.refresh(index=index, ignore_unavailable=True)
        found = self.client.search(index=index, size=10_000, ignore_unavailable=True)
        return [hit["_source"] for hit in found["hits"]["hits"]]

    def hurt(self, changed: str, deleted: str) -> None:
        index = f"{self.target}-2026.01.01"
        self.client.indices.refresh(index=index)
        for hit in self.client.search(index=index, size=10_000)["hits"]["hits"]:
            if hit["_source"]["device_id"] == changed:
                self.client.update(index=index, id=hit["_id"], doc={"mean": 99.0})
            elif hit["_source"]["device_id"] == deleted:
                self.client.delete(index=index, id=hit["_id"])

    def refuse_counts_above_32767(self) -> None:
        self.client.indices.create(
            index=f"{self.target}-2026.01.01", mappings={"properties": {"count": {"type": "short"}}}
        )

    def close(self) -> None:
        self.client.close()


class ScyllaStore(Store):
    sink = "scylla"
    impatient = ("connect.cassandra.query.timeout.ms=1500",)
    lost_answers = {"execute": _DEVICE}  # noqa: RUF012 - a constant

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server

    def lines(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"SELECT * FROM {topic} AUTOCREATE PK device_id, window_start, window_end, metric", port)

    def lines_by_device(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"SELECT * FROM {topic} AUTOCREATE PK device_id", port)

    def _lines(self, kcql: str, port: int | None) -> list[str]:
        return [
            "connect.cassandra.contact.points=127.0.0.1",
            f"connect.cassandra.port={port or self.server.port}",
            f"connect.cassandra.key.space={KEYSPACE}",
            "connect.cassandra.key.space.replication.factor=1",
            f"connect.cassandra.kcql=INSERT INTO {self.target} {kcql}",
        ]

    def held(self) -> list[Held]:
        rows = self._execute(f"SELECT device_id, window_start, revision FROM {KEYSPACE}.{self.target}")
        return [
            Held("table", [seen({**row, "window_start": int(row["window_start"].timestamp() * 1000)}) for row in rows])
        ]

    def hurt(self, changed: str, deleted: str) -> None:
        table = f"{KEYSPACE}.{self.target}"
        for row in self._execute(f"SELECT * FROM {table}"):
            start_ms, end_ms = (int(row[name].timestamp() * 1000) for name in ("window_start", "window_end"))
            key = f"device_id = '{row['device_id']}' AND window_start = {start_ms} AND window_end = {end_ms}"
            key += f" AND metric = '{row['metric']}'"
            if row["device_id"] == changed:
                self._execute(f"UPDATE {table} SET mean = 99.0 WHERE {key}")
            elif row["device_id"] == deleted:
                # Not later than the next revision's write, which would stay deleted.
                time_us = row["revision"] * 1_000 + 1
                self._execute(f"DELETE FROM {table} USING TIMESTAMP {time_us} WHERE {key}")

    def latest(self) -> dict[str, int]:
        rows = self._execute(f"SELECT device_id, sequence FROM {KEYSPACE}.{self.target}")
        return {row["device_id"]: row["sequence"] for row in rows}

    def refuse_counts_above_32767(self) -> None:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self._execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}")
        self._execute(
            f"CREATE TABLE {KEYSPACE}.{self.target} (device_id text, metric text, window_start timestamp, "
            "window_end timestamp, count smallint, sum double, mean double, min double, max double, stddev double, "
            "revision bigint, PRIMARY KEY (device_id, window_start, window_end, metric))"
        )

    def _execute(self, query: str) -> list[dict[str, Any]]:
        # A session of its own: one that saw the server die would take its time to come back.
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(load_balancing_policy=RoundRobinPolicy())}
        with Cluster(["127.0.0.1"], port=self.server.port, protocol_version=5, execution_profiles=profiles) as cluster:
            return [row._asdict() for row in cluster.connect().execute(query)]


class PostgresqlStore(Store):
    sink = "postgresql"
    impatient = ("connect.postgresql.write.timeout.ms=1500",)
    lost_answers = {"commit": b"COMMIT"}  # noqa: RUF012 - a constant

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server

    def lines(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"SELECT * FROM {topic} AUTOCREATE", port)

    def lines_by_device(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"SELECT * FROM {topic} AUTOCREATE PK device_id", port)

    def _lines(self, kcql: str, port: int | None) -> list[str]:
        return [
            "connect.postgresql.host=127.0.0.1",
            f"connect.postgresql.port={port or self.server.port}",
            f"connect.postgresql.database={self.server.database}",
            f"connect.postgresql.username={self.server.user}",
            f"connect.postgresql.password={self.server.password}",
            f"connect.postgresql.kcql=INSERT INTO {self.target} {kcql}",
        ]

    def held(self) -> list[Held]:
        rows = self._execute("SELECT device_id, window_start, revision FROM {t}")
        return [
            Held("table", [seen({**row, "window_start": int(row["window_start"].timestamp() * 1000)}) for row in rows])
        ]

    def hurt(self, changed: str, deleted: str) -> None:
        self._execute(f"UPDATE {{t}} SET mean = 99.0 WHERE device_id = '{changed}'")
        self._execute(f"DELETE FROM {{t}} WHERE device_id = '{deleted}'")

    def latest(self) -> dict[str, int]:
        return {row["device_id"]: row["sequence"] for row in self._execute("SELECT device_id, sequence FROM {t}")}

    def write_of(self, sequence: int) -> bytes:
        # The data of COPY alone for a key that is new; one that is there is merged, after a refused COPY or without it.
        return b"ON CONFLICT" if sequence else b"dev-0\t"

    def refuse_counts_above_32767(self) -> None:
        self._execute(
            "CREATE TABLE {t} (device_id text, metric text, window_start timestamptz, window_end timestamptz, "
            "count smallint, sum float, mean float, min float, max float, stddev float, revision bigint, "
            "PRIMARY KEY (device_id, metric, window_start, window_end))"
        )

    def _execute(self, query: str) -> list[dict[str, Any]]:
        # A session of its own: one that saw the server die would be of no use.
        with psycopg.connect(self.server.url, autocommit=True, row_factory=dict_row) as connection:
            try:
                cursor = connection.execute(query.replace("{t}", self.target).encode())
            except UndefinedTable:
                return []
            return cursor.fetchall() if cursor.description else []


def _request(codec: Any, flags: int = 0xC100) -> bytes:
    """The flags (unfragmented, backup-aware) and the type in the first frame of a request in Hazelcast's protocol."""
    return struct.pack("<Hi", flags, codec._REQUEST_MESSAGE_TYPE)


class HazelcastStore(Store):
    """All structures at once: one connector with a statement for each."""

    sink = "hazelcast"
    kinds: Sequence[str] = ("IMAP", "MULTI_MAP", "SET", *IN_ORDER)
    impatient = ("connect.hazelcast.write.timeout=2000",)
    # A commit is one frame, which is therefore flagged as the last one too.
    lost_answers = {  # noqa: RUF012 - a constant
        "put": _request(map_put_if_absent_codec),
        "commit": _request(transaction_commit_codec, 0xE100),
        "add_all": _request(ringbuffer_add_all_codec),
    }

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server
        self.client = HazelcastClient(cluster_name=server.cluster_name, cluster_members=[server.address])

    def lines(self, topic: str, port: int | None = None) -> list[str]:
        statements = [f"INSERT INTO {self.name(kind)} SELECT * FROM {topic} STOREAS {kind}" for kind in self.kinds]
        return self._lines(";".join(statements), port)

    def lines_by_device(self, topic: str, port: int | None = None) -> list[str]:
        return self._lines(f"INSERT INTO {self.name('IMAP')} SELECT * FROM {topic} PK device_id STOREAS IMAP", port)

    def _lines(self, kcql: str, port: int | None) -> list[str]:
        return [
            f"connect.hazelcast.sink.cluster.members=127.0.0.1:{port or self.server.port}",
            f"connect.hazelcast.sink.group.name={self.server.cluster_name}",
            f"connect.hazelcast.sink.kcql={kcql}",
        ]

    def name(self, kind: str) -> str:
        """The target of a kind."""
        return f"{self.target}_{kind.lower()}"

    def held(self) -> list[Held]:
        return [Held(kind, [seen(json.loads(text)) for text in self.texts(kind)]) for kind in self.kinds]

    def hurt(self, changed: str, deleted: str) -> None:
        entries: Any = self.client.get_map(self.name("IMAP"))
        for key, item in entries.entry_set().result():
            value = json.loads(item.to_string())
            if value["device_id"] == changed:
                entries.put(key, HazelcastJsonValue({**value, "mean": 99.0})).result()
            elif value["device_id"] == deleted:
                entries.remove(key).result()

    def latest(self) -> dict[str, int]:
        found = [json.loads(text) for text in self.texts("IMAP")]
        return {one["device_id"]: one["sequence"] for one in found}

    def texts(self, kind: str) -> list[str]:
        """The items of a structure, in its order where it has one."""
        return [item.to_string() for item in items(self.client, kind, self.name(kind))]

    def close(self) -> None:
        self.client.shutdown()


class MapStore(HazelcastStore):
    """One structure, for tests that are about the loop and not about the sink."""

    kinds = ("IMAP",)


def items(client: HazelcastClient, kind: str, name: str) -> list[Any]:
    """Everything in one structure of Hazelcast, in its order where it has one."""
    found: Any
    if kind == "IMAP":
        found = client.get_map(name).values()
    elif kind == "MULTI_MAP":
        found = client.get_multi_map(name).values()
    elif kind == "QUEUE":
        found = client.get_queue(name).iterator()
    elif kind == "LIST":
        found = client.get_list(name).get_all()
    elif kind == "SET":
        found = client.get_set(name).get_all()
    elif kind == "RING_BUFFER":
        return _in_ring(client, name)
    else:
        # Not by a listener, which could not tell the end of the topic.
        to_object: Any = client._serialization_service.to_object
        return [to_object(message.payload) for message in _in_ring(client, f"_hz_rb_{name}")]
    return list(found.result())


def _in_ring(client: HazelcastClient, name: str) -> list[Any]:
    ring: Any = client.get_ringbuffer(name)
    found: list[Any] = []
    end = ring.tail_sequence().result() + 1
    at = ring.head_sequence().result()
    while at < end:
        read = ring.read_many(at, 1, min(900, end - at)).result()
        found += list(read)
        at = read.next_sequence_to_read_from
    return found


STORES: dict[str, tuple[type[Store], str]] = {
    "elasticsearch": (ElasticsearchStore, "elasticsearch"),
    "scylla": (ScyllaStore, "cassandra"),
    "hazelcast": (HazelcastStore, "hazelcast"),
    "postgresql": (PostgresqlStore, "postgresql"),
}
"""By name, the kind and the fixture of its server."""

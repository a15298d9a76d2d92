"""The sinks of this package for the kit (`isotherm.sink_testkit`): each on its real server, behind a relay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import httpx
import psycopg
from cassandra import InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from hazelcast.client import HazelcastClient
from persisters_relay import Relay
from persisters_stores import items
from psycopg.errors import UndefinedTable
from psycopg.rows import dict_row

from isotherm.sink_testkit import SinkUnderTest

KEYSPACE = "sink_kit"


class RelayedSink(SinkUnderTest):
    """A sink that finds its server at a relay, which an outage closes."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.relay = Relay(server.port)

    @contextmanager
    def outage(self) -> Iterator[None]:
        port = self.relay.port
        self.relay.close()
        try:
            yield
        finally:
            self.relay = Relay(self.server.port, port=port)

    def close(self) -> None:
        """Release what the test holds."""
        self.relay.close()


class ElasticsearchUnderTest(RelayedSink):
    """Elasticsearch or OpenSearch, read by plain HTTP, so that no client prefers one of them."""

    sink = "isotherm.persisters.sinks.elasticsearch.plugin:SINK"
    more: ClassVar[Mapping[str, str]] = {}

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._client = httpx.Client(base_url=server.url, timeout=60.0)

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.elastic.url": f"elasticsearch://127.0.0.1:{self.relay.port}",
            "connect.elastic.kcql": f"INSERT INTO {target} SELECT * FROM {topic} PK {', '.join(pk)}",
            "connect.elastic.write.timeout": "3000",
            **self.more,
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        query = {"ignore_unavailable": "true"}
        self._client.post(f"/{target}/_refresh", params=query).raise_for_status()
        found = self._client.get(f"/{target}/_search", params={**query, "size": 10_000}).raise_for_status().json()
        return [hit["_source"] for hit in found["hits"]["hits"]]

    def refuse_high_levels(self, target: str) -> bool:
        body = {"mappings": {"properties": {"level": {"type": "short"}}}}
        self._client.put(f"/{target}", json=body).raise_for_status()
        return True

    def close(self) -> None:
        self._client.close()
        super().close()


class RoutedUnderTest(ElasticsearchUnderTest):
    """With gzip, and with a shard that a field chooses."""

    more: ClassVar[Mapping[str, str]] = {"connect.elastic.compression": "gzip"}

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        made = dict(super().connector(topic, target, pk))
        made["connect.elastic.kcql"] += " PROPERTIES('routing'='device')"
        return made


class CassandraUnderTest(RelayedSink):
    sink = "isotherm.persisters.sinks.cassandra.plugin:SINK"
    wins_by_event_time = True

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(load_balancing_policy=RoundRobinPolicy())}
        self._cluster = Cluster(["127.0.0.1"], port=server.port, protocol_version=5, execution_profiles=profiles)
        self._session = self._cluster.connect()

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.cassandra.contact.points": "127.0.0.1",
            "connect.cassandra.port": str(self.relay.port),
            "connect.cassandra.key.space": KEYSPACE,
            "connect.cassandra.key.space.replication.factor": "1",
            "connect.cassandra.kcql": f"INSERT INTO {target} SELECT * FROM {topic} AUTOCREATE PK {', '.join(pk)}",
            "connect.cassandra.query.timeout.ms": "3000",
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        try:
            found = self._session.execute(f"SELECT device, sequence, level FROM {KEYSPACE}.{target}")
        except InvalidRequest:
            return []
        return [row._asdict() for row in found]

    def refuse_high_levels(self, target: str) -> bool:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self._session.execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}")
        self._session.execute(
            f"CREATE TABLE {KEYSPACE}.{target} (device text, sequence bigint, level smallint, time timestamp, "
            "revision bigint, PRIMARY KEY (device, sequence, time))"
        )
        return True

    def close(self) -> None:
        self._cluster.shutdown()
        super().close()


class MapUnderTest(RelayedSink):
    sink = "isotherm.persisters.sinks.hazelcast.plugin:SINK"
    structure: ClassVar[str] = "IMAP"

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._client = HazelcastClient(cluster_name=server.cluster_name, cluster_members=[server.address])

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        key = "" if self.is_append else f"PK {', '.join(pk)} "
        statement = f"INSERT INTO {target} SELECT * FROM {topic} {key}STOREAS {self.structure}"
        return {
            "connect.hazelcast.sink.cluster.members": f"127.0.0.1:{self.relay.port}",
            "connect.hazelcast.sink.group.name": self.server.cluster_name,
            "connect.hazelcast.sink.kcql": statement,
            "connect.hazelcast.write.timeout": "3000",
        }

    @contextmanager
    def outage(self) -> Iterator[None]:
        # A client that is connected knows the member's own address, and would find it beside the relay. One that begins
        # would wait for a frozen member for minutes, and finds nobody.
        with super().outage():
            self.server.pause()
            try:
                yield
            finally:
                self.server.resume()

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        return [json.loads(item.to_string()) for item in items(self._client, self.structure, target)]

    def close(self) -> None:
        self._client.shutdown()
        super().close()


class QueueUnderTest(MapUnderTest):
    is_append = True
    structure = "QUEUE"


class HttpRecordsUnderTest(RelayedSink):
    """A receiver that keeps every record, and knows by its key which it has already."""

    sink = "isotherm.persisters.sinks.http.plugin:SINK"
    is_append = True
    format = "RECORD"

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.http.url": f"http://127.0.0.1:{self.relay.port}/{{target}}",
            "connect.http.request.format": self.format,
            "connect.http.kcql": f"INSERT INTO {target} SELECT * FROM {topic} PK {', '.join(pk)}",
            "connect.http.write.timeout.ms": "3000",
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = self.server.rows(f"/{target}")
        return rows

    def refuse_high_levels(self, target: str) -> bool:
        self.server.limited.add(f"/{target}")
        return True


class HttpBatchesUnderTest(HttpRecordsUnderTest):
    """A receiver of whole batches that keeps one row for each id."""

    is_append = False
    format = "JSON_ARRAY"

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        self.server.ids[f"/{target}"] = pk
        return super().connector(topic, target, pk)


class PostgresqlUnderTest(RelayedSink):
    sink = "isotherm.persisters.sinks.postgresql.plugin:SINK"
    more: ClassVar[Mapping[str, str]] = {}

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._connection = psycopg.connect(server.url, autocommit=True, row_factory=dict_row)

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.postgresql.host": "127.0.0.1",
            "connect.postgresql.port": str(self.relay.port),
            "connect.postgresql.database": self.server.database,
            "connect.postgresql.username": self.server.user,
            "connect.postgresql.password": self.server.password,
            "connect.postgresql.kcql": f"INSERT INTO {target} SELECT * FROM {topic} AUTOCREATE PK {', '.join(pk)}",
            "connect.postgresql.write.timeout.ms": "5000",
            **self.more,
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        try:
            return self._connection.execute(f"SELECT device, sequence, level FROM {target}".encode()).fetchall()
        except UndefinedTable:
            return []

    def refuse_high_levels(self, target: str) -> bool:
        self._connection.execute(
            f"CREATE TABLE {target} (device text, sequence bigint, level smallint, time timestamptz, revision bigint, "
            "PRIMARY KEY (device, sequence, time))".encode()
        )
        return True

    def close(self) -> None:
        self._connection.close()
        super().close()

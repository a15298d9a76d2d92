"""The servers as the bench needs them: a new target for every run, the number of rows in it, and its removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow.parquet as pq
from cassandra.cluster import Cluster
from elasticsearch import Elasticsearch
from hazelcast.client import HazelcastClient

import isotherm.schemas
import workload
from bare_clients import KEYSPACE
from isotherm.persisters.sinks.cassandra import cql
from isotherm.persisters.sinks.elasticsearch.indices.mapping import properties
from isotherm.persisters.sinks.postgresql import sql
from isotherm.stack.servers.postgresql import Postgresql

DAY = "2026.01.01"
"""All records of the bench are of this day."""
ARCHIVE = Path(tempfile.gettempdir()) / f"isotherm-bench-archive-{os.getpid()}"
"""The folder of Parquet files."""
SETTINGS = {"index.refresh_interval": "-1"}
"""As for an index that nobody searches. The default refresh every second would charge the slower program more for a
row.
"""


class Target(Protocol):
    """A kind of target."""

    def create(self, name: str, chosen: workload.Workload) -> str:
        """Create an empty target that both writers use; return the name that the bare client writes to."""

    def count(self, name: str) -> int:
        """Return the number of rows in it."""

    def drop(self, name: str) -> None:
        """Remove it."""

    def close(self) -> None:
        """Disconnect."""


def columns(chosen: workload.Workload) -> dict[str, Any]:
    """Return the Avro type of each field."""
    return {field["name"]: field["type"] for field in isotherm.schemas.schema(chosen.record, 1)["fields"]}


class Index:
    """An Elasticsearch index of one day, with the mapping that the persister would give it."""

    def __init__(self, address: str) -> None:
        self._client = Elasticsearch(address, request_timeout=60)

    def create(self, name: str, chosen: workload.Workload) -> str:
        """As for every target."""
        self._client.indices.create(
            index=f"{name}-{DAY}", mappings={"properties": properties(columns(chosen))}, settings=SETTINGS
        )
        return f"{name}-{DAY}"

    def count(self, name: str) -> int:
        """As for every target."""
        index = self._name(name)
        self._client.indices.refresh(index=index)
        return int(self._client.count(index=index)["count"])

    def drop(self, name: str) -> None:
        """As for every target."""
        self._client.indices.delete(index=self._name(name))

    def close(self) -> None:
        """As for every target."""
        self._client.close()

    def _name(self, name: str) -> str:
        return name if self._client.indices.exists(index=name) else f"{name}-{DAY}"


class Table:
    """A Cassandra table with the schema's identity as its key, the device as partition."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._cluster = Cluster([host], port=int(port), connect_timeout=60)
        self._session = self._cluster.connect()
        self._session.execute(cql.create_keyspace(KEYSPACE, 1), timeout=60)

    def create(self, name: str, chosen: workload.Workload) -> str:
        """As for every target."""
        identity = isotherm.schemas.schema(chosen.record, 1)["isotherm.identity"]
        self._session.execute(cql.create_table(KEYSPACE, name, columns(chosen), identity), timeout=60)
        return name

    def count(self, name: str) -> int:
        """As for every target."""
        row = self._session.execute(f"SELECT COUNT(*) FROM {KEYSPACE}.{name}", timeout=120).one()
        return int(row[0])

    def drop(self, name: str) -> None:
        """As for every target."""
        self._session.execute(f"DROP TABLE {KEYSPACE}.{name}", timeout=60)

    def close(self) -> None:
        """As for every target."""
        self._cluster.shutdown()


class HazelcastMap:
    """A map; its first entry creates it."""

    def __init__(self, address: str) -> None:
        self._client = HazelcastClient(cluster_name="dev", cluster_members=[address])

    def create(self, name: str, _chosen: workload.Workload) -> str:
        """As for every target."""
        return name

    def count(self, name: str) -> int:
        """As for every target."""
        return int(self._client.get_map(name).size().result())

    def drop(self, name: str) -> None:
        """As for every target."""
        self._client.get_map(name).destroy()

    def close(self) -> None:
        """As for every target."""
        self._client.shutdown()


class RingBuffer(HazelcastMap):
    """A ring buffer of Hazelcast's default capacity, the oldest items overwritten."""

    def count(self, name: str) -> int:
        """As for every target."""
        return int(self._client.get_ringbuffer(name).tail_sequence().result()) + 1

    def drop(self, name: str) -> None:
        """As for every target."""
        self._client.get_ringbuffer(name).destroy()


class PostgresqlTable:
    """A table with the columns and the primary key that AUTOCREATE gives it."""

    def __init__(self, address: str) -> None:
        url = f"postgresql://{Postgresql.user}:{Postgresql.password}@{address}/{Postgresql.database}"
        self._connection = psycopg.connect(url, autocommit=True)

    def create(self, name: str, chosen: workload.Workload) -> str:
        """As for every target."""
        identity = isotherm.schemas.schema(chosen.record, 1)["isotherm.identity"]
        self._connection.execute(sql.create_table("public", name, columns(chosen), identity, None).encode())
        return name

    def count(self, name: str) -> int:
        """As for every target."""
        found = self._connection.execute(f"SELECT count(*) FROM {sql.quoted(name)}".encode()).fetchone()
        assert found is not None
        return int(found[0])

    def drop(self, name: str) -> None:
        """As for every target."""
        self._connection.execute(f"DROP TABLE {sql.quoted(name)}".encode())

    def close(self) -> None:
        """As for every target."""
        self._connection.close()


class ParquetFiles:
    """Parquet files in a folder of their own."""

    def __init__(self, _address: str) -> None:
        ARCHIVE.mkdir()

    def create(self, name: str, _chosen: workload.Workload) -> str:
        """As for every target."""
        (ARCHIVE / name).mkdir()
        return str(ARCHIVE / name)

    def count(self, name: str) -> int:
        """As for every target."""
        return sum(pq.read_metadata(path).num_rows for path in (ARCHIVE / name).rglob("*.parquet"))

    def drop(self, name: str) -> None:
        """As for every target."""
        shutil.rmtree(ARCHIVE / name)

    def close(self) -> None:
        """As for every target."""
        shutil.rmtree(ARCHIVE)

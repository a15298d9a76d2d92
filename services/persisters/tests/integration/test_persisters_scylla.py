"""What only Cassandra and Scylla do: TLS."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory
from sink_world import TIMESTAMP_MS, Writing, behind_tls

from persisters.sink import Unavailable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

KEYSPACE = "features"
ROOM = {"type": "record", "name": "Room", "fields": [{"name": "floor", "type": "int"}]}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Thing",
    "isotherm.event_time": "at",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "limits", "type": {"type": "map", "values": "double"}},
        {"name": "rooms", "type": {"type": "array", "items": ROOM}},
        {"name": "room", "type": "Room"},
        {"name": "ttl", "type": ["null", "long"]},
        {"name": "version", "type": "long"},
    ],
}


def thing(**more: Any) -> dict[str, Any]:
    plain = {"id": "a", "at": TIMESTAMP_MS, "note": None, "tags": ["x", "y"], "limits": {"low": 1.5}, "version": 1}
    return plain | {"rooms": [{"floor": 1}], "room": {"floor": 2}, "ttl": None} | more


@pytest.fixture
def session(cassandra: Any) -> Iterator[Session]:
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), row_factory=dict_factory, request_timeout=60)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    with Cluster(["127.0.0.1"], port=cassandra.port, protocol_version=5, execution_profiles=profiles) as cluster:
        yield cluster.connect()


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


def writing(port: int, kcql: str, **more: str) -> Writing:
    base = {"kcql": kcql, "contact.points": "127.0.0.1", "port": str(port)}
    return Writing("scylla", SCHEMA, "t", base | {"key.space": KEYSPACE, "key.space.replication.factor": "1"} | more)


def test_tls_checks_the_server(
    cassandra: Any, session: Session, table: str, free_port: Callable[[], int], tmp_path: Path
) -> None:
    way, trust = behind_tls(free_port(), cassandra.port, tmp_path)
    kcql = f"INSERT INTO {table} SELECT id, note FROM t AUTOCREATE PK id"
    trusting = writing(way.port, kcql, **{"ssl.enabled": "true"}, **trust)
    assert trusting.write(trusting.prepare(thing(note="through TLS"))) == []
    (row,) = session.execute(f"SELECT note FROM {KEYSPACE}.{table}")
    assert row["note"] == "through TLS"
    trusting.sink.close()
    stranger = writing(way.port, kcql, **{"ssl.enabled": "true"})
    with pytest.raises(Unavailable, match="certificate verify failed"):
        stranger.sink.open()
    way.close()

"""What only Cassandra and Scylla do: TTL and write time of fields, collections, nested records, deletes, TLS."""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory
from sink_world import TIMESTAMP_MS, Writing, behind_tls

from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding
from isotherm.persisters.sinks.cassandra import renewal

pytestmark = pytest.mark.integration

KEYSPACE = "features"
ROOM = {"type": "record", "name": "Room", "fields": [{"name": "floor", "type": "int"}]}
SCHEMA: Any = {
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


def writing(port: int, kcql: str, schema: Any = SCHEMA, **more: str) -> Writing:
    base = {"kcql": kcql, "contact.points": "127.0.0.1", "port": str(port)}
    return Writing("scylla", schema, "t", base | {"key.space": KEYSPACE, "key.space.replication.factor": "1"} | more)


def test_collections_nested_records_ttl_write_time_and_deletes(cassandra: Any, session: Session, table: str) -> None:
    delete = "PROPERTIES('behavior.on.null.values'='DELETE')"
    kcql = f"INSERT INTO {table} SELECT *, ttl AS message_internal_ttl FROM t AUTOCREATE PK id {delete}"
    into = writing(cassandra.port, kcql)
    now_ms = int(time.time() * 1000)
    living = thing(id="mortal", at=now_ms, ttl=100_000)
    assert into.write(into.prepare(thing()), into.prepare(living)) == []
    everything = f"SELECT id, tags, limits, rooms, room, ttl(room) AS left FROM {KEYSPACE}.{table}"
    found = {row["id"]: row for row in session.execute(everything)}
    assert found["a"]["tags"] == ["x", "y"]
    assert dict(found["a"]["limits"]) == {"low": 1.5}
    assert [json.loads(text) for text in found["a"]["rooms"]] == [{"floor": 1}]
    assert json.loads(found["a"]["room"]) == {"floor": 2}
    assert found["a"]["left"] is None
    assert 90_000 < found["mortal"]["left"] <= 100_000
    (row,) = session.execute(f"SELECT * FROM {KEYSPACE}.{table} WHERE id = 'a'")
    assert set(row) == {field["name"] for field in SCHEMA["fields"]} - {"ttl"}, "the TTL's field is no column"

    into = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note, version FROM t PK _key {delete}")
    assert into.write(into.prepare(thing(note="kept"), "a"), into.prepare(thing(), "a")) == []
    (row,) = session.execute(f"SELECT note FROM {KEYSPACE}.{table} WHERE id = 'a'")
    assert row["note"] == "kept", "an absent value is unset, not a tombstone"
    assert into.write(into.prepare(None, "a")) == []
    assert [row["id"] for row in session.execute(f"SELECT id FROM {KEYSPACE}.{table}")] == ["mortal"]

    by_field = f"INSERT INTO {table} SELECT id, version, version AS message_internal_timestamp FROM t PK id"
    into = writing(cassandra.port, by_field)
    into.may_find = (Finding.UNREADABLE,)
    base_us = TIMESTAMP_MS * 2_000
    for version, expected in ((5, 5), (3, 5), (6, 6)):
        assert into.write(into.prepare(thing(id="v", version=base_us + version))) == []
        (row,) = session.execute(f"SELECT version FROM {KEYSPACE}.{table} WHERE id = 'v'")
        assert row["version"] == base_us + expected


def test_a_record_that_names_no_table_is_refused_alone(cassandra: Any, session: Session, table: str) -> None:
    """While a static target without its table ends the task."""
    static = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note FROM t")
    with pytest.raises(SinkConfigError, match=f"there is no table {KEYSPACE}.{table}"):
        static.sink.open()
    made = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note FROM t AUTOCREATE PK id")
    assert made.write(made.prepare(thing(id="first"))) == []

    derived = writing(cassandra.port, "INSERT INTO _key SELECT id, note FROM t")
    keys = (f"{table}_absent", table, "no_such_keyspace.t")
    rejected = derived.write(*(derived.prepare(thing(id=key), key) for key in keys))
    assert [(one.index, one.reason, one.transient) for one in rejected] == [(0, "target", False), (2, "target", False)]
    assert f"there is no table {KEYSPACE}.{table}_absent" in str(rejected[0].error)
    found = {row["id"] for row in session.execute(f"SELECT id FROM {KEYSPACE}.{table}")}
    assert found == {"first", table}

    creating = writing(cassandra.port, "INSERT INTO _key SELECT id, note FROM t AUTOCREATE PK id")
    (refused,) = creating.write(creating.prepare(thing(), "not a name"), creating.prepare(thing(), f"{table}_made"))
    assert (refused.index, refused.reason, refused.transient) == (0, "target", False)
    assert [row["id"] for row in session.execute(f"SELECT id FROM {KEYSPACE}.{table}_made")] == ["a"]


def test_a_first_record_without_a_schema_is_refused_and_the_next_one_makes_the_table(
    cassandra: Any, session: Session, table: str
) -> None:
    into = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note FROM t AUTOCREATE PK id")
    into.sink.open()
    (row,) = into.prepare(thing(id="a")).rows
    without_schema = row._replace(plan=compile_plan(row.plan.statement, None, "-"))
    later = row._replace(offset=1, id="b", values={"id": "b", "note": None})
    (refused,) = into.sink.write(Batch("t", 0, [without_schema, later]))
    assert (refused.index, refused.reason, refused.transient) == (0, "document", False)
    assert "needs a value with an Avro schema" in str(refused.error)
    assert [row["id"] for row in session.execute(f"SELECT id FROM {KEYSPACE}.{table}")] == ["b"]


def test_a_value_of_another_type_is_a_bad_record_and_times_of_day_are_kept(
    cassandra: Any, session: Session, table: str
) -> None:
    mixed = {"name": "mixed", "type": ["null", "int", "string", "boolean"]}
    daily = {"name": "daily", "type": {"type": "int", "logicalType": "time-millis"}}
    schema = SCHEMA | {"fields": [SCHEMA["fields"][0], mixed, daily]}
    kcql = f"INSERT INTO {table} SELECT * FROM t AUTOCREATE PK id"
    into = writing(cassandra.port, kcql, schema)
    values = {"number": 5, "text": "x", "truth": True, "nothing": None}
    prepared = [
        into.prepare({"id": name, "mixed": value, "daily": datetime.time(1, 2, 3)}) for name, value in values.items()
    ]
    assert into.write(*prepared) == []
    found = {row["id"]: row for row in session.execute(f"SELECT * FROM {KEYSPACE}.{table}")}
    assert {name: row["mixed"] for name, row in found.items()} == {
        "number": "5",
        "text": "x",
        "truth": "true",
        "nothing": None,
    }
    assert {row["daily"].time() for row in found.values()} == {datetime.time(1, 2, 3)}

    session.execute(f"CREATE TABLE {KEYSPACE}.{table}_lists (id text PRIMARY KEY, mixed list<text>)")
    into = writing(cassandra.port, f"INSERT INTO {table}_lists SELECT id, mixed FROM t", schema)
    rejected = into.write(*(into.prepare({"id": "a", "mixed": 5, "daily": datetime.time(1)}) for _ in range(2)))
    assert [(one.index, one.reason, one.transient) for one in rejected] == [(0, "type", False), (1, "type", False)]


def test_deletes_name_the_columns_of_the_key(cassandra: Any, session: Session, table: str) -> None:
    key = {"device": "dev-1", "city": "Oslo"}
    schema = SCHEMA | {"fields": [{"name": name, "type": "string"} for name in key]}
    delete = "PROPERTIES('behavior.on.null.values'='DELETE')"
    created = writing(cassandra.port, f"INSERT INTO {table} SELECT * FROM t AUTOCREATE PK device, city", schema)
    others = [{"device": "Oslo", "city": "dev-1"}, {"device": "dev-2", "city": "Oslo"}]
    assert created.write(*(created.prepare(one) for one in (key, *others))) == []
    into = writing(cassandra.port, f"INSERT INTO {table} SELECT * FROM t PK _key.city, _key.device {delete}", schema)
    assert into.write(into.prepare(None, json.dumps(key))) == []
    assert sorted(session.execute(f"SELECT * FROM {KEYSPACE}.{table}"), key=str) == sorted(others, key=str)

    in_part = writing(cassandra.port, f"INSERT INTO {table} SELECT * FROM t PK _key.town, _key.device {delete}", schema)
    with pytest.raises(SinkConfigError, match="no part is named city"):
        in_part.sink.open()


def test_rows_of_many_partitions_share_requests_to_the_only_server(
    cassandra: Any, session: Session, table: str
) -> None:
    into = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note FROM t AUTOCREATE PK id")
    assert into.write(into.prepare(thing(id="first"))) == []
    requests: list[object] = []
    sink: Any = into.sink
    into.reads_back = False
    sink._session.add_request_init_listener(requests.append)
    names = [f"partition {number}" for number in range(20)]
    assert into.write(*(into.prepare(thing(id=name, note=name)) for name in names)) == []
    assert len(requests) == 2
    found = {row["id"]: row["note"] for row in session.execute(f"SELECT id, note FROM {KEYSPACE}.{table}")}
    assert found == {"first": None} | {name: name for name in names}


def test_tls_checks_the_server(cassandra: Any, session: Session, table: str, tmp_path: Path) -> None:
    way, trust = behind_tls(cassandra.port, tmp_path)
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


def test_a_driver_that_does_not_find_back_to_its_server_is_replaced(
    cassandra: Any, session: Session, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen once: the driver's thread that handles a server's return never ended, so nobody used the server."""
    monkeypatch.setattr(renewal, "RENEW_AFTER_S", 0.5)
    into = writing(cassandra.port, f"INSERT INTO {table} SELECT id, note FROM t AUTOCREATE PK id")
    assert into.write(into.prepare(thing(id="first"))) == []
    sink: Any = into.sink
    stuck = sink._session
    for host in sink._cluster.metadata.all_hosts():
        sink._cluster.profile_manager.on_down(host)
        host.set_down()
        host._currently_handling_node_up = True
    refused, deadline = 0, time.monotonic() + 60
    failed = None
    while failed is None and time.monotonic() < deadline:
        try:
            failed = into.write(into.prepare(thing(id="second", note="n")))
        except Unavailable:
            refused += 1
    assert failed == []
    assert refused
    assert sink._session is not stuck
    found = {row["id"]: row["note"] for row in session.execute(f"SELECT id, note FROM {KEYSPACE}.{table}")}
    assert found == {"first": None, "second": "n"}
    sink.close()

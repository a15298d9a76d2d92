"""What only Hazelcast does: formats, TTL, tombstones, a full queue, TLS; on a real member."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hazelcast.client import HazelcastClient
from hazelcast.config import IndexType
from hazelcast.predicate import sql
from sink_world import TIMESTAMP_MS, Writing, behind_tls

import isotherm.schemas
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.stored_row import Finding
from isotherm.servicekit.avro import parse

pytestmark = pytest.mark.integration

READING = isotherm.schemas.schema("SensorReading", 1)
SENSOR = {
    "type": "record",
    "name": "Sensor",
    "fields": [
        {"name": "sensor_id", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temperature", "type": "double"},
        {"name": "message", "type": "string"},
    ],
}
MIXED = {
    "type": "record",
    "name": "Mixed",
    "fields": [{"name": "id", "type": "string"}, {"name": "v", "type": ["long", "string"]}],
}


def reading(device: str = "d1", at_ms: int = TIMESTAMP_MS) -> dict[str, Any]:
    fixed = {"metric": "temperature", "value": 20.5, "unit": "Cel", "sequence": 0, "attributes": {}}
    return {"device_id": device, "event_time": at_ms, "ingest_time": at_ms, **fixed}


@pytest.fixture
def client(hazelcast: Any) -> Iterator[HazelcastClient]:
    made = HazelcastClient(cluster_name=hazelcast.cluster_name, cluster_members=[hazelcast.address])
    yield made
    made.shutdown()


@pytest.fixture
def target() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


def named(client: HazelcastClient, name: str) -> Any:
    return client.get_map(name)


def writing(hazelcast: Any, kcql: str, *, address: str = "", schema: Any = READING, **more: str) -> Writing:
    base = {"kcql": kcql, "cluster.members": address or hazelcast.address, "group.name": hazelcast.cluster_name}
    return Writing("hazelcast", schema, "t", base | more)


def test_formats_ttl_and_tombstones_of_maps(hazelcast: Any, client: HazelcastClient, target: str) -> None:
    delete = "PROPERTIES('behavior.on.null.values'='DELETE')"
    statements = (
        f"INSERT INTO {target} SELECT * FROM t PK _key STOREAS IMAP {delete}",
        f"INSERT INTO {target}_avro SELECT * FROM t PK device_id WITHFORMAT AVRO STOREAS IMAP",
        f"INSERT INTO {target}_part SELECT value FROM t PK device_id WITHFORMAT AVRO STOREAS IMAP",
        f"INSERT INTO {target}_text SELECT value FROM t PK device_id WITHFORMAT TEXT STOREAS IMAP",
        f"INSERT INTO {target}_ttl SELECT value FROM t PK device_id STOREAS IMAP TTL=3600000",
    )
    into = writing(hazelcast, ";".join(statements))
    now_ms = int(time.time() * 1000)
    assert into.write(into.prepare(reading("d1", now_ms), "k1"), into.prepare(reading("d2", now_ms), "k2")) == []
    as_json = named(client, target)
    assert as_json.size().result() == 2
    assert list(as_json.key_set(sql("device_id = 'd2'")).result()) == ["k2"], "JSON can be queried"
    whole = bytes(named(client, f"{target}_avro").get("d1").result())
    assert whole[0] == 0
    decoded: Any = fastavro.schemaless_reader(io.BytesIO(whole[5:]), parse(READING), None)
    assert decoded["device_id"] == "d1"
    part = bytes(named(client, f"{target}_part").get("d1").result())
    rows: list[Any] = list(fastavro.reader(io.BytesIO(part)))
    assert rows == [{"value": 20.5}]
    assert json.loads(str(named(client, f"{target}_text").get("d1").result())) == {"value": 20.5}
    entry = named(client, f"{target}_ttl").get_entry_view("d1").result()
    assert 0 < entry.ttl <= 3_600_000
    assert into.prepare(None, "k1").rows, "of all statements only the first deletes"
    assert into.write(into.prepare(None, "k1")) == []
    assert set(as_json.key_set().result()) == {"k2"}


def test_a_life_that_was_not_set_any_more_is_set_by_the_next_write(
    hazelcast: Any, client: HazelcastClient, target: str
) -> None:
    """A writer that is killed between replacing an entry and setting its TTL leaves the TTL of the previous entry."""
    kcql = f"INSERT INTO {target} SELECT * FROM t STOREAS IMAP TTL=3600000"
    into = writing(hazelcast, kcql, schema=isotherm.schemas.schema("TemperatureAggregate", 1))
    start = int(time.time() * 1000)
    numbers = {"count": 1, "sum": 1.0, "mean": 1.0, "min": 1.0, "max": 1.0, "stddev": 0.0, "revision": 5}
    window = {"device_id": "d1", "metric": "temperature", "window_start": start, "window_end": start + 10_000}
    assert into.write(into.prepare({**window, **numbers})) == []
    entries = named(client, target)
    (key,) = entries.key_set().result()
    entries.set_ttl(key, 600).result()
    assert into.write(into.prepare({**window, **numbers, "revision": 4})) == []
    assert entries.get_entry_view(key).result().ttl <= 600_000, "an older revision changes nothing"
    assert into.write(into.prepare({**window, **numbers})) == []
    assert entries.get_entry_view(key).result().ttl > 3_000_000


def test_an_item_that_the_cluster_refuses_is_found_in_its_batch(
    hazelcast: Any, client: HazelcastClient, target: str
) -> None:
    """A sorted index orders values of one type: the type of its first value, which may be any of a batch."""
    named(client, target).add_index(attributes=["v"], index_type=IndexType.SORTED).result()
    into = writing(hazelcast, f"INSERT INTO {target} SELECT * FROM t PK id STOREAS IMAP", schema=MIXED)
    assert into.write(into.prepare({"id": "first", "v": 0})) == []
    values = [1, 2, "text", 4, 5, 6, "more text"]
    rejected = into.write(*[into.prepare({"id": f"i{number}", "v": value}) for number, value in enumerate(values)])
    assert [(one.index, one.reason, one.transient) for one in rejected] == [(2, "type", False), (6, "type", False)]
    assert "ClassCastException" in str(rejected[0].error)
    assert sorted(named(client, target).key_set(sql("v > 0")).result()) == ["i0", "i1", "i3", "i4", "i5"]
    into.sink.close()


def test_the_ring_buffer_of_document_a(hazelcast: Any, client: HazelcastClient) -> None:
    """The document's statement as printed: without STOREAS, from records that have these three fields and others."""
    kcql = (
        "INSERT INTO sensor_ringbuffer SELECT sensor_id, timestamp, temperature FROM coap_sensor_topic WITH FORMAT JSON"
    )
    base = {"cluster.members": hazelcast.address, "group.name": hazelcast.cluster_name}
    into = Writing("hazelcast", SENSOR, "coap_sensor_topic", base | {"kcql": kcql})
    into.may_find = (Finding.UNREADABLE,)
    ring: Any = client.get_ringbuffer("sensor_ringbuffer").blocking()
    first = ring.tail_sequence() + 1
    values = [{"sensor_id": "Sensor4", "timestamp": 1_486_997_194_029, "temperature": 23.6}]
    values.append(values[0] | {"temperature": 23.7})
    assert into.write(*(into.prepare(one | {"message": "Sensor message 98"}) for one in values)) == []
    assert [json.loads(ring.read_one(first + number).to_string()) for number in range(2)] == values
    assert ring.tail_sequence() == first + 1
    into.sink.close()
    ring.destroy()


def test_avro_of_a_record_without_a_schema_is_refused_alone(
    hazelcast: Any, client: HazelcastClient, target: str
) -> None:
    into = writing(hazelcast, f"INSERT INTO {target} SELECT * FROM t PK device_id WITHFORMAT AVRO STOREAS IMAP")
    into.sink.open()
    (row,) = into.prepare(reading("d1")).rows
    without_schema = row._replace(plan=compile_plan(row.plan.statement, None, "-"), raw=b"{}")
    (refused,) = into.sink.write(Batch("t", 0, [without_schema, row._replace(offset=1, id="d2")]))
    assert (refused.index, refused.reason, refused.transient) == (0, "document", False)
    assert set(named(client, target).key_set().result()) == {"d2"}
    into.sink.close()


def test_keys_and_names_that_are_not_unicode_are_bad_records(
    hazelcast: Any, client: HazelcastClient, target: str
) -> None:
    """A JSON key may hold half of a surrogate pair, which has no UTF-8."""
    half = r'{"id": "\ud800"}'
    kcql = f"INSERT INTO {target} SELECT * FROM t PK _key.id STOREAS IMAP; INSERT INTO _key.id SELECT * FROM t"
    into = writing(hazelcast, kcql)
    into.may_find = (Finding.UNREADABLE,)
    rejected = into.write(into.prepare(reading(), half), into.prepare(reading(), f'{{"id": "{target}_ring"}}'))
    assert sorted((one.index, one.reason, one.transient) for one in rejected) == [
        (0, "document", False),
        (1, "document", False),
    ]
    assert set(named(client, target).key_set().result()) == {f"{target}_ring"}
    ring: Any = client.get_ringbuffer(f"{target}_ring")
    assert ring.size().result() == 1


@pytest.mark.filterwarnings("ignore:ssl.:DeprecationWarning")  # how the client itself asks for TLS
def test_tls_checks_the_member(hazelcast: Any, client: HazelcastClient, target: str, tmp_path: Path) -> None:
    way, trust = behind_tls(hazelcast.port, tmp_path)
    kcql = f"INSERT INTO {target} SELECT * FROM t PK device_id STOREAS IMAP"
    trusting = writing(hazelcast, kcql, address=f"127.0.0.1:{way.port}", **{"ssl.enabled": "true"}, **trust)
    assert trusting.write(trusting.prepare(reading())) == []
    assert named(client, target).size().result() == 1
    trusting.sink.close()
    way.close()

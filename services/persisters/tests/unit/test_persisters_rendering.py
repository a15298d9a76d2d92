"""What the sinks send: mappings, CQL, documents and items."""

from __future__ import annotations

import io
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import orjson
import pytest
from hazelcast.config import Config
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.data import Data
from hazelcast.serialization.service import SerializationServiceV1
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm import kcql
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError
from isotherm.persisters.records.decoded_value import DecodedValue
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.sinks.cassandra import cql
from isotherm.persisters.sinks.cassandra.binding import ttl_s, write_time_us
from isotherm.persisters.sinks.cassandra.tables import primary_key_columns
from isotherm.persisters.sinks.elasticsearch.indices import mapping
from isotherm.persisters.sinks.elasticsearch.operations import quoted_id
from isotherm.persisters.sinks.hazelcast import items
from isotherm.servicekit.avro import WriterSchema, parse

AGGREGATE = isotherm.schemas.schema("TemperatureAggregate", 1)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def plan(text: str, schema: Any = AGGREGATE) -> Plan:
    (statement,) = kcql.parse(text)
    writer = None if schema is None else WriterSchema(1, schema, parse(schema))
    return compile_plan(statement, writer, "-")


def row(text: str, values: dict[str, Any] | None, *, revision: int | None = None, schema: Any = AGGREGATE) -> Row:
    return Row(33, "a", "id", values, 5_000, revision, plan(text, schema), b"\x00raw")


def test_a_mapping_from_the_schema() -> None:
    found = mapping.properties(plan("INSERT INTO a SELECT * FROM t").columns)
    assert found["device_id"] == {"type": "keyword", "ignore_above": 8191}
    assert found["window_start"] == {"type": "date", "format": "epoch_millis||strict_date_optional_time"}
    assert (found["count"], found["mean"]) == ({"type": "long"}, {"type": "double"})


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        (["null", "int"], {"type": "integer"}),
        ({"type": "array", "items": "float"}, {"type": "float"}),
        ({"type": "map", "values": "string"}, {"type": "flattened", "ignore_above": 8191}),
        ({"type": "map", "values": "bytes"}, {"type": "object", "enabled": False}),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "keyword", "ignore_above": 8191}),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "binary"}),
        ({"type": "int", "logicalType": "date"}, {"type": "date", "format": "strict_date"}),
        ({"type": "int", "logicalType": "time-millis"}, {"type": "keyword"}),
        ({"type": "boolean"}, {"type": "boolean"}),
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "bytes"}]},
            {"type": "object", "properties": {"x": {"type": "binary"}}},
        ),
    ],
)
def test_mapping_types(avro: Any, expected: Any) -> None:
    assert mapping.properties({"f": avro}) == {"f": expected}


def test_a_type_that_says_too_little_is_left_to_elasticsearch() -> None:
    assert mapping.properties({"f": ["string", "int"]}) == {}


def test_index_patterns_and_templates() -> None:
    assert mapping.index_pattern("temperatures", "-{YYYY.MM.DD}") == "temperatures-*"
    assert mapping.index_pattern("a", None) == "a"
    shorter, longer = (mapping.index_template(one, {}, {}, is_data_stream=False) for one in ("a-*", "a-b-*"))
    assert longer["priority"] > shorter["priority"], "Elasticsearch refuses overlapping templates of one priority"


def test_documents() -> None:
    found = to_json(
        {
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "day": date(2026, 1, 1),
            "daily": time(1, 2, 3, 4_000),
            "raw": b"\x00\xff",
            "price": Decimal("1.10"),
            "id": UUID(int=1),
            "nan": float("nan"),
        }
    )
    assert found == (
        b'{"at":1767225600000,"day":"2026-01-01","daily":"01:02:03.004000","raw":"AP8=","price":"1.10",'
        b'"id":"00000000-0000-0000-0000-000000000001","nan":null}'
    )


@pytest.mark.parametrize("value", [{"n": 2**70}, {"s": "\ud800"}, {"o": object()}])
def test_what_has_no_form_in_json(value: Any) -> None:
    with pytest.raises(NotADocumentError):
        to_json(value)


def test_create_table() -> None:
    columns = {
        "device_id": "string",
        "at": MILLIS,
        "value": ["null", "double"],
        "Tags": {"type": "map", "values": "int"},
    }
    assert cql.create_table("iso", "readings", columns, ["device_id", "at"]) == (
        "CREATE TABLE IF NOT EXISTS iso.readings (device_id text, at timestamp, value double, "
        '"Tags" map<text, int>, PRIMARY KEY (device_id, at))'
    )
    with pytest.raises(cql.NotAColumnError, match="PK other is not among the selected fields"):
        cql.create_table("iso", "readings", columns, ["other"])


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        ({"type": "array", "items": {"type": "array", "items": "int"}}, "list<frozen<list<int>>>"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "decimal"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "record", "name": "R", "fields": []}, "text"),
        (["null", "string", "int"], "text"),
        (["null", {"type": "int", "logicalType": "time-millis"}], "time"),
        ({"type": "array", "items": {"type": "long", "logicalType": "time-micros"}}, "list<time>"),
        ("bytes", "blob"),
    ],
)
def test_cql_types(avro: Any, expected: str) -> None:
    assert cql.cql_type(avro) == expected


TABLE = cql.Table("ks", "T", {"device_id": "text", "at": "timestamp", "order": "int"}, ["device_id"], ["at"])


def test_statements_quote_what_needs_it() -> None:
    assert cql.insert(TABLE, ttl=True) == (
        'INSERT INTO ks."T" (device_id, at, "order") VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?'
    )
    assert cql.delete(TABLE) == 'DELETE FROM ks."T" USING TIMESTAMP ? WHERE device_id = ? AND at = ?'
    assert cql.quoted('a"b') == '"a""b"'


def test_columns_of_fields() -> None:
    assert cql.column_of(TABLE, "Device_ID") == "device_id"
    with pytest.raises(cql.NotAColumnError, match="did you mean device_id"):
        cql.column_of(TABLE, "device_ids")
    with pytest.raises(cql.NotAColumnError, match="it has device_id, at, order"):
        cql.column_of(TABLE, "zzz")


def test_targets_and_values() -> None:
    assert cql.split_target("other.t", "ks") == ("other", "t")
    assert cql.split_target("t", "ks") == ("ks", "t")
    text, uuid = cql.converter("text"), cql.converter("uuid")
    assert text is not None
    assert uuid is not None
    assert text({"a": 1}) == '{"a":1}'
    assert uuid("00000000-0000-0000-0000-000000000001") == UUID(int=1)
    assert cql.converter("int") is None


def test_primary_keys_of_new_tables() -> None:
    assert primary_key_columns(row("INSERT INTO a SELECT device_id AS d, mean FROM t PK device_id, mean", {})) == [
        "d",
        "mean",
    ]
    assert primary_key_columns(row("INSERT INTO a SELECT * FROM t", {})) == AGGREGATE["isotherm.identity"]


def test_write_times() -> None:
    assert write_time_us(row("INSERT INTO a SELECT * FROM t", {}, revision=7)) == 7_000
    assert write_time_us(row("INSERT INTO a SELECT * FROM t", {})) == 5_000_033


def test_items() -> None:
    values = {"mean": 1.5, "revision": 9}
    whole = row("INSERT INTO a SELECT * FROM t", values)
    as_json, as_text = items.encoder("JSON")(whole), items.encoder("TEXT")(whole)
    assert items.content(as_json).decode() == as_text == '{"mean":1.5,"revision":9}'
    assert items.encoder("AVRO")(whole) == bytearray(b"\x00raw"), "the record's own bytes"


@given(st.dictionaries(st.text(), st.text() | st.integers(0, 2**53) | st.floats(allow_nan=False)))
def test_json_items_are_what_the_client_would_make_of_them(values: dict[str, Any]) -> None:
    as_json = items.encoder("JSON")(row("INSERT INTO a SELECT * FROM t", values))
    client: Any = SerializationServiceV1(Config())  # type: ignore[no-untyped-call]
    of_client = client.to_data(HazelcastJsonValue(to_json(values).decode()))
    assert isinstance(as_json, Data)
    assert bytes(as_json.buffer) == bytes(of_client.buffer)
    assert items.content(as_json) == items.content(client.to_object(as_json)) == to_json(values)
    assert items.checksum(as_json) == items.checksum(client.to_object(as_json)) == zlib.crc32(to_json(values))


def test_avro_of_a_part_carries_its_schema() -> None:
    part = row("INSERT INTO a SELECT mean, revision AS r, device_id FROM t", {"mean": 1.5, "r": 9, "device_id": None})
    item = items.encoder("AVRO")(part)
    assert list(fastavro.reader(io.BytesIO(bytes(items.content(item))))) == [{"mean": 1.5, "r": 9, "device_id": None}]
    with pytest.raises(RowError, match="WITHFORMAT AVRO needs values with an Avro schema"):
        items.encoder("AVRO")(row("INSERT INTO a SELECT * FROM t", {}, schema=None))


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
NAMED: Any = {
    "type": "record",
    "name": "Light",
    "namespace": "lamps",
    "fields": [
        {"name": "a", "type": COLOUR},
        {"name": "b", "type": "Colour"},
        {"name": "c", "type": ["null", "lamps.Colour"]},
        {"name": "many", "type": {"type": "map", "values": "Colour"}},
        {"name": "any", "type": ["null", "long", "Colour"]},
        {"name": "f", "type": {"type": "fixed", "name": "other.Mac", "size": 2}},
        {"name": "g", "type": {"type": "array", "items": "other.Mac"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "Colour"}]}},
        {"name": "again", "type": "In"},
    ],
}
LIGHT = {
    "a": "RED",
    "b": "BLUE",
    "c": "RED",
    "many": {"left": "BLUE"},
    "any": "RED",
    "f": b"xx",
    "g": [b"yy"],
    "at": time(1, 2, 3),
    "inner": {"x": "RED"},
    "again": {"x": "BLUE"},
}


@pytest.mark.parametrize("selected", ["a, b", "b", "c, many", "any", "f, g", "g", "at", ", ".join(LIGHT)])
def test_named_types_are_known_wherever_they_are_referred_to(selected: str) -> None:
    part = {name: LIGHT[name] for name in selected.split(", ")}
    text = f"INSERT INTO a SELECT {selected}, inner.x FROM t"
    item = items.encoder("AVRO")(row(text, part | {"x": "RED"}, schema=NAMED))
    assert list(fastavro.reader(io.BytesIO(bytes(items.content(item))))) == [part | {"x": "RED"}]


def test_columns_for_references_are_those_of_what_they_refer_to() -> None:
    columns = plan("INSERT INTO a SELECT * FROM t", NAMED).columns
    found = {name: cql.cql_type(avro) for name, avro in columns.items()}
    texts = dict.fromkeys(("a", "b", "c", "any", "inner", "again"), "text")
    assert found == texts | {"many": "map<text, text>", "f": "blob", "g": "list<blob>", "at": "time"}
    mapped = mapping.properties(columns)
    assert mapped["b"] == mapped["c"] == {"type": "keyword", "ignore_above": 8191}
    assert mapped["g"] == {"type": "binary"}
    assert mapped["again"] == mapped["inner"] == {"type": "object", "properties": {"x": mapped["a"]}}


@pytest.mark.parametrize("format_", ["JSON", "TEXT", "AVRO"])
def test_revisions_are_read_back_from_stored_items(format_: str) -> None:
    part = row("INSERT INTO a SELECT mean, revision AS r FROM t", {"mean": 1.5, "r": 9})
    assert items.revision_of(items.encoder(format_)(part), part.plan, lambda _data: DecodedValue({})) == 9


def test_revisions_of_whole_records_and_of_strangers() -> None:
    whole = plan("INSERT INTO a SELECT * FROM t")
    assert items.revision_of(bytearray(b"\x00..."), whole, lambda _data: DecodedValue({"revision": 4})) == 4
    assert items.revision_of("somebody's text", whole, lambda _data: DecodedValue({})) is None


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("text", {"a": 1}, '{"a":1}'),
        ("list<text>", [{"a": 1}, "b"], ['{"a":1}', "b"]),
        ("set<frozen<list<text>>>", [[{"a": 1}]], [['{"a":1}']]),
        ("map<text, frozen<map<text, text>>>", {"x": {"y": {"z": 1}}}, {"x": {"y": '{"z":1}'}}),
        ("frozen<map<text, uuid>>", {"x": str(UUID(int=1))}, {"x": UUID(int=1)}),
    ],
)
def test_collections_stay_collections_with_nested_records_as_text(type_: str, value: Any, expected: Any) -> None:
    convert = cql.converter(type_)
    assert convert is not None
    assert convert(value) == expected
    assert cql.converter("double") is None


@pytest.mark.parametrize("id_", ["a", "é" * 256, "a" * 512, '"' * 512])
def test_an_id_is_quoted(id_: str) -> None:
    assert orjson.loads(quoted_id(id_)) == id_


@pytest.mark.parametrize(
    ("id_", "words"),
    [("", "has 0"), ("a" * 513, "has 513"), ("é" * 257, "has 514"), ('"' * 513, "has 513"), ("\ud800", "Unicode")],
)
def test_an_id_that_elasticsearch_does_not_take(id_: str, words: str) -> None:
    with pytest.raises(NotADocumentError, match=words):
        quoted_id(id_)


def test_ttl_and_write_time_of_fields() -> None:
    text = "INSERT INTO k.a SELECT * FROM t TTL=60"
    assert (ttl_s(row(text, {})), write_time_us(row(text, {}))) == (60, 5_000_033)
    given = row(text, {"message_internal_ttl": 7, "message_internal_timestamp": 9})
    assert (ttl_s(given), write_time_us(given)) == (7, 9)
    for bad in ("7", 0, 1.5, True):
        with pytest.raises(ValueError, match="message_internal_ttl"):
            ttl_s(row(text, {"message_internal_ttl": bad}))

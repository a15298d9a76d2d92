"""Decoding and projection: from bytes to rows, or to the reason of a refusal."""

from __future__ import annotations

import decimal
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.records import row_projection
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import AvroDecoder, key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.servicekit.avro import (
    RegistryUnavailableError,
    SchemaRegistry,
    UnknownSchemaError,
    WriterSchema,
    encoder,
    parse,
)

AGGREGATE = isotherm.schemas.schema("TemperatureAggregate", 1)
COAP_MESSAGE = isotherm.schemas.schema("CoapMessage", 1)
BASE_MS = 1_767_225_600_000
VALUE = {
    "device_id": "d-1",
    "metric": "temperature",
    "window_start": BASE_MS,
    "window_end": BASE_MS + 10_000,
    "count": 3,
    "sum": 60.0,
    "mean": 20.0,
    "min": 19.0,
    "max": 21.0,
    "stddev": 0.5,
    "revision": BASE_MS + 20_000,
}


class Schemas(SchemaRegistry):
    """The registry's look-up by id, from memory."""

    def __init__(self, by_id: Mapping[int, Mapping[str, Any]]) -> None:
        self._known = by_id
        self.asked: list[int] = []

    def schema(self, schema_id: int) -> WriterSchema:
        self.asked.append(schema_id)
        if schema_id == 503:
            raise RegistryUnavailableError("away")
        if schema_id not in self._known:
            raise UnknownSchemaError(schema_id)
        found = self._known[schema_id]
        return WriterSchema(schema_id, found, parse(found))


SCHEMAS = Schemas({7: AGGREGATE, 8: COAP_MESSAGE})
AVRO = encoder(AGGREGATE, 7)(VALUE)


def projector(text: str, **conventions: Any) -> Projector:
    return Projector(
        kcql.parse(text),
        value_decoder("auto", SCHEMAS),
        key_decoder("auto", SCHEMAS),
        Conventions(**conventions),
        clock_ms=lambda: BASE_MS + 60_000.0,
    )


def record(value: bytes | None, key: bytes | None = b"k", topic: str = "t", headers: Any = ()) -> Record:
    return Record(topic, 2, 33, 1_111, key, value, headers)


def reason(prepared: ProjectedRecord) -> tuple[str, str]:
    assert prepared.failed is not None
    return prepared.failed.stage, prepared.failed.reason


def test_identity_event_time_and_revision_come_from_the_writer_schema() -> None:
    (row,) = projector("INSERT INTO temperatures SELECT * FROM t WITHINDEXSUFFIX -{YYYY.MM.DD}")(record(AVRO)).rows
    assert row.id == f"d-1-temperature-{BASE_MS}-{BASE_MS + 10_000}"
    assert row.target == "temperatures-2026.01.01"
    assert row.event_time_ms == BASE_MS
    assert row.revision == BASE_MS + 20_000
    assert row.values == VALUE, "times stay epoch milliseconds"
    assert row.raw == AVRO


DECLARED = {
    "type": "record",
    "name": "Declared",
    "fields": [
        {"name": "a", "type": ["null", "string"]},
        {"name": "at", "type": ["null", "long"]},
        {"name": "n", "type": ["null", "long"]},
    ],
    "isotherm.event_time": "at",
    "isotherm.revision": "n",
}
MOST_MS = 300_000_000_000_000
"""In the year 11476."""


@given(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.text(),
            "at": st.none() | st.integers(BASE_MS - 50_000, BASE_MS + 50_000) | st.integers(-MOST_MS, MOST_MS),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        }
    ),
    st.sampled_from(["a", "a,at", "a,b"]),
    st.sampled_from(["", "WITHINDEXSUFFIX -{YYYY.MM.DD}"]),
    st.sampled_from([None, 80_000]),
)
def test_whole_records_take_a_shorter_way_to_the_same_rows(
    value: dict[str, Any], identity: str, suffix: str, retention_ms: int | None
) -> None:
    schema = {**DECLARED, "isotherm.identity": identity}
    data = encoder(schema, 9)(value)

    def prepared() -> ProjectedRecord:
        schemas = Schemas({9: schema})
        conventions = Conventions(retention_ms=retention_ms)
        statements = kcql.parse(f"INSERT INTO t SELECT * FROM t {suffix}")
        decoders = value_decoder("auto", schemas), key_decoder("auto", schemas)
        return Projector(statements, *decoders, conventions, lambda: BASE_MS + 60_000.0)(record(data))

    def essence(found: ProjectedRecord) -> object:
        rows = [(one.target, one.id, one.values, one.event_time_ms, one.revision, one.raw) for one in found.rows]
        return rows, found.filtered, found.failed and (found.failed[1:3], str(found.failed.error))

    with mock.patch.object(row_projection, "project_whole_records", lambda plan, general, *_: general):
        longer = prepared()
    assert essence(prepared()) == essence(longer)


def test_an_absent_field_of_the_identity_is_a_part_of_it() -> None:
    """A response that was polled has no Observe: it is a record like any other."""
    response = dict.fromkeys(field["name"] for field in COAP_MESSAGE["fields"])
    response |= {"source": "localhost:5633", "uri_path": "slow", "code": "2.05", "etags": [], "ingest_time": BASE_MS}
    (row,) = projector("INSERT INTO a SELECT * FROM t")(record(encoder(COAP_MESSAGE, 8)(response))).rows
    assert row.id == f"localhost:5633-slow--{BASE_MS}"


def test_pk_is_made_of_values() -> None:
    (row,) = projector("INSERT INTO a SELECT mean AS m FROM t PK device_id, metric")(record(AVRO)).rows
    assert row.id == "d-1-temperature"
    assert row.values == {"m": 20.0}


def test_without_pk_and_identity_the_place_in_the_topic_is_the_id() -> None:
    (row,) = projector("INSERT INTO a SELECT * FROM t")(record(b'{"x": 1}')).rows
    assert row.id == "t-2-33"
    assert row.event_time_ms == 1_111
    assert row.revision is None


def test_every_matching_statement_makes_a_row() -> None:
    projection = projector(
        "INSERT INTO a SELECT x FROM t; INSERT INTO b SELECT y FROM t; INSERT INTO c SELECT * FROM u"
    )
    rows = projection(record(b'{"x": 1, "y": 2}')).rows
    assert [(row.target, row.values) for row in rows] == [("a", {"x": 1}), ("b", {"y": 2})]
    assert projection(record(b"{}", topic="other")).filtered == "no_statement"


def test_with_timestamp_beats_the_schema_and_kafka() -> None:
    suffix = "WITHINDEXSUFFIX -{YYYY}"
    (by_field,) = projector(f"INSERT INTO a SELECT * FROM t WITHTIMESTAMP at {suffix}")(record(b'{"at": 0}')).rows
    assert by_field.target == "a-1970"
    (by_kafka,) = projector(f"INSERT INTO a SELECT * FROM t WITHTIMESTAMP sys_time() {suffix}")(record(AVRO)).rows
    assert (by_kafka.target, by_kafka.event_time_ms) == ("a-1970", 1_111)


def test_keys_headers_and_parts() -> None:
    projection = projector("INSERT INTO a SELECT _key.id AS i, _header.h AS h, _.topic AS t FROM t PK _key.id")
    (row,) = projection(record(b"{}", key=b'{"id": 5}', headers=(("h", b"x"),))).rows
    assert (row.id, row.values) == ("5", {"i": 5, "h": "x", "t": "t"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x00\x00", ("VALUE_CONVERTER", "wire_format")),
        (b"\x00\x00\x00\x00\x09rest", ("VALUE_CONVERTER", "unknown_schema")),
        (AVRO[:-3], ("VALUE_CONVERTER", "wire_format")),
        (AVRO + b"more", ("VALUE_CONVERTER", "wire_format")),
        (b"\x01bad magic", ("VALUE_CONVERTER", "wire_format")),
        (b"not json", ("VALUE_CONVERTER", "decode")),
        (b"[1]", ("TRANSFORMATION", "projection")),
        (b'"text"', ("TRANSFORMATION", "projection")),
    ],
)
def test_poison_is_refused_with_its_stage(value: bytes, expected: tuple[str, str]) -> None:
    assert reason(projector("INSERT INTO a SELECT * FROM t")(record(value))) == expected


DEEP = b"[" * 900 + b"]" * 900


@pytest.mark.parametrize(
    ("clauses", "key", "value", "expected"),
    [
        ("PK _key.id", b'{"id":' + DEEP * 3 + b"}", b"{}", ("KEY_CONVERTER", "decode")),
        ("PK _key.id", b'{"id":' + b"[" * 100_000, b"{}", ("KEY_CONVERTER", "decode")),
        ("IGNORE a.b", b"k", b'{"a":' + DEEP + b"}", ("TRANSFORMATION", "projection")),
        ("WITHSTRUCTURE", b"k", b'{"a":' + DEEP + b"}", ("TRANSFORMATION", "projection")),
        ("", b"k", b'{"a":' + DEEP * 2 + b"}", ("VALUE_CONVERTER", "decode")),
        ("", b"k", b"\x00\x00\x00\x00\x0arest", ("VALUE_CONVERTER", "decode")),
        ("", b"k", b"\x00\x00\x00\x00\x0b\x02", ("TRANSFORMATION", "projection")),
        ("", b"k", b"\x00\x00\x00\x00\x0c" + b"\x02" * 50_000 + b"\x00", ("VALUE_CONVERTER", "wire_format")),
    ],
    ids=[
        "deep key",
        "key without end",
        "deep IGNORE",
        "deep structure",
        "deep value",
        "no Avro",
        "no record",
        "deep Avro",
    ],
)
def test_no_record_brings_the_projection_down(
    clauses: str, key: bytes, value: bytes, expected: tuple[str, str]
) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    schemas = Schemas({10: {"$ref": "a JSON Schema"}, 11: enum, 12: node})
    fields = "a.b" if clauses == "WITHSTRUCTURE" else "*"
    statements = kcql.parse(f"INSERT INTO x SELECT {fields} FROM t {clauses}")
    projected = Projector(statements, value_decoder("auto", schemas), key_decoder("auto", schemas))
    poison = Record("t", 2, 33, 1_111, key, value, ())
    assert reason(projected(poison)) == expected
    policy = ErrorPolicy(Policy.NOOP, dead_letters=True)
    work = InFlightBatch.prepare([poison, poison], policy, projected, projected.try_project_batch)
    assert (len(work.dead_letters), work.stopped_at) == (2, None)


@pytest.mark.parametrize(
    "error", [decimal.Overflow(), RecursionError("deep"), KeyError("type"), AttributeError("get"), struct.error("i")]
)
def test_whatever_a_converter_raises_about_a_record_refuses_it(error: Exception) -> None:
    def broken(_data: bytes) -> Any:
        raise error

    projected = Projector(kcql.parse("INSERT INTO x SELECT * FROM t"), broken, key_decoder("auto", SCHEMAS))
    assert reason(projected(record(b"v"))) == ("VALUE_CONVERTER", "decode")


def test_a_field_that_the_schema_lacks_is_refused_with_the_nearest() -> None:
    prepared = projector("INSERT INTO a SELECT meen FROM t")(record(AVRO))
    assert reason(prepared) == ("TRANSFORMATION", "projection")
    assert "did you mean mean?" in str(prepared.failed.error if prepared.failed else "")


def test_an_outage_of_the_registry_is_not_the_records_fault() -> None:
    with pytest.raises(RegistryUnavailableError):
        projector("INSERT INTO a SELECT * FROM t")(record(b"\x00" + (503).to_bytes(4, "big")))


def test_a_schema_is_looked_up_once() -> None:
    schemas = Schemas({7: AGGREGATE})
    decode = AvroDecoder(schemas)
    assert [decode(AVRO).value["mean"] for _ in range(3)] == [20.0] * 3
    assert schemas.asked == [7]


def test_tombstones() -> None:
    assert projector("INSERT INTO a SELECT * FROM t")(record(None)).filtered == "tombstone"
    fail = "INSERT INTO a SELECT * FROM t PROPERTIES('behavior.on.null.values'='FAIL')"
    assert reason(projector(fail)(record(None))) == ("TRANSFORMATION", "tombstone")
    delete = "INSERT INTO a SELECT * FROM t PK _key.id PROPERTIES('behavior.on.null.values'='DELETE')"
    (row,) = projector(delete)(record(None, key=b'{"id": 5}')).rows
    assert (row.id, row.values, row.pk) == ("5", None, (5,))
    unknown = "INSERT INTO a SELECT * FROM t PROPERTIES('behavior.on.null.values'='DELETE')"
    assert reason(projector(unknown)(record(None))) == ("TRANSFORMATION", "tombstone")


def test_records_older_than_their_ttl_are_filtered() -> None:
    text = "INSERT INTO a SELECT * FROM t TTL=60"
    assert projector(text, ttl_unit_ms=1_000)(record(AVRO)).filtered == "expired"
    assert projector(text.replace("60", "61"), ttl_unit_ms=1_000)(record(AVRO)).rows
    assert projector(text)(record(AVRO)).rows, "a sink without TTL lets nothing expire"


@pytest.mark.parametrize(
    ("converter", "envelope", "data", "value"),
    [
        ("json", False, b'{"a": 1}', {"a": 1}),
        ("org.apache.kafka.connect.json.JsonConverter", True, b'{"schema": null, "payload": {"a": 1}}', {"a": 1}),
        ("string", False, "wärme".encode(), "wärme"),
        ("bytes", False, b"\x00\xff", b"\x00\xff"),
        ("io.confluent.connect.avro.AvroConverter", False, AVRO, VALUE),
    ],
)
def test_converters(converter: str, envelope: bool, data: bytes, value: Any) -> None:
    assert value_decoder(converter, SCHEMAS, envelope=envelope)(data).value == value


def test_a_bad_magic_byte_is_not_called_bad_json() -> None:
    prepared = projector("INSERT INTO a SELECT * FROM t")(record(b"\x01" + AVRO[1:]))
    assert "magic byte is 1, expected 0" in str(prepared.failed.error if prepared.failed else "")


def test_text_keys_are_texts() -> None:
    decode = key_decoder("auto", SCHEMAS)
    assert decode(b"dev-1").value == "dev-1"
    assert decode(b"12").value == "12"
    assert decode(b'{"id": 1}').value == {"id": 1}


NESTED = {
    "type": "record",
    "name": "R",
    "namespace": "n",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}]},
        {"name": "again", "type": ["null", "I"]},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {"name": "list", "type": {"type": "array", "items": "string"}},
        {"name": "revision", "type": "long"},
    ],
    "isotherm.revision": "revision",
}


def plan(text: str) -> Any:
    (statement,) = kcql.parse(text)
    (writer,) = [value_writer(NESTED)]
    return compile_plan(statement, writer, "-")


def value_writer(schema: Mapping[str, Any]) -> Any:
    return AvroDecoder(Schemas({1: schema}))._reader(1).writer


def test_columns_carry_the_types_under_the_names_of_the_row() -> None:
    columns = plan("INSERT INTO a SELECT inner.x AS y, again.x, tags.room, list, at, _key, _.offset FROM t").columns
    assert columns["y"] == "int"
    assert columns["x"] == "int"
    assert columns["room"] == "double"
    assert columns["list"] == {"type": "array", "items": "string"}
    assert columns["at"]["logicalType"] == "timestamp-micros"
    assert columns["key"] == "string"
    assert columns["offset"] == "long"


def test_columns_of_everything() -> None:
    columns = plan("INSERT INTO a SELECT * FROM t").columns
    assert list(columns) == ["at", "inner", "again", "tags", "list", "revision"]
    assert columns["inner"]["fields"] == [{"name": "x", "type": "int"}]
    assert columns["tags"] == {"type": "map", "values": "double"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO a SELECT * FROM t", "revision"),
        ("INSERT INTO a SELECT at, revision AS r FROM t", "r"),
        ("INSERT INTO a SELECT at FROM t", None),
    ],
)
def test_the_revision_is_found_under_its_name_in_the_row(text: str, expected: str | None) -> None:
    assert plan(text).revision_column == expected


def test_microseconds_are_datetimes_and_milliseconds_numbers() -> None:
    data = encoder(NESTED, 1)(
        {"at": datetime(2026, 1, 1, tzinfo=UTC), "inner": None, "again": None, "tags": {}, "list": [], "revision": 1}
    )
    value = AvroDecoder(Schemas({1: NESTED}))(data).value
    assert value["at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert json.dumps(VALUE)


def test_rows_of_dated_indices_expire_with_them() -> None:
    dated = "INSERT INTO a SELECT * FROM t WITHINDEXSUFFIX -{YYYY.MM.DD}"
    assert projector(dated, retention_ms=60_001)(record(AVRO)).rows
    assert projector(dated, retention_ms=60_000)(record(AVRO)).filtered == "expired"
    assert projector("INSERT INTO a SELECT * FROM t", retention_ms=1)(record(AVRO)).rows

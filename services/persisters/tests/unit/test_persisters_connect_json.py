"""JSON with the envelope of Kafka Connect: the payload by its schema, and invalid values."""

from __future__ import annotations

import base64
from datetime import date, time
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.configuration import check, projector
from isotherm.persisters.records.connect_json import EnvelopeError, EnvelopeReader
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import RegistrySettings

INT = {"type": "int32", "optional": False}
TEXT = {"type": "string", "optional": True}
LOGICAL = "org.apache.kafka.connect.data."


def struct(**fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"field": name, **of} for name, of in fields.items()]}


def read(schema: Any, payload: Any) -> Any:
    return EnvelopeReader()(orjson.dumps({"schema": schema, "payload": payload}))[0]


@pytest.mark.parametrize(
    ("schema", "payload", "value"),
    [
        (None, {"a": 1}, {"a": 1}),
        (struct(a=INT, b=TEXT), {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        (struct(a=INT, b=TEXT), {"b": None, "a": 1, "gone": 5}, {"a": 1, "b": None}),
        (struct(a=INT, b=TEXT), {"a": 1}, {"a": 1, "b": None}),
        (struct(a={**INT, "default": 7}), {}, {"a": 7}),
        (struct(inner=struct(a=INT)), {"inner": {"a": 1}}, {"inner": {"a": 1}}),
        ({"type": "array", "items": INT}, [1, 2], [1, 2]),
        ({"type": "map", "keys": TEXT, "values": INT}, {"a": 1}, {"a": 1}),
        ({"type": "map", "keys": INT, "values": INT}, [[1, 2]], {1: 2}),
        ({"type": "bytes"}, "AP8=", b"\x00\xff"),
        ({"type": "bytes", "name": f"{LOGICAL}Decimal", "parameters": {"scale": "2"}}, "AJY=", Decimal("1.50")),
        ({"type": "int32", "name": f"{LOGICAL}Date"}, 20_454, date(2026, 1, 1)),
        ({"type": "int32", "name": f"{LOGICAL}Time"}, 1_500, time(0, 0, 1, 500_000)),
        ({"type": "int64", "name": f"{LOGICAL}Timestamp"}, 1_767_225_600_000, 1_767_225_600_000),
        ({"type": "double"}, 1, 1),
        ({"type": "boolean"}, True, True),
        ({"type": "string", "optional": True}, None, None),
    ],
)
def test_payloads_are_taken_by_their_schemas(schema: Any, payload: Any, value: Any) -> None:
    assert read(schema, payload) == value


@pytest.mark.parametrize(
    ("schema", "payload", "told"),
    [
        (struct(a=INT), {"a": None}, "field 'a' is null"),
        (struct(a=INT), {}, "field 'a' is null"),
        (struct(a=INT), {"a": "text"}, "field 'a': expected int32"),
        (struct(a=INT), {"a": True}, "field 'a': expected int32"),
        (struct(a=INT), [1], "the payload: expected an object"),
        (struct(a=INT), None, "the payload is null"),
        ({"type": "bytes"}, "no base64", "no base64"),
        ({"type": "date"}, 1, "unknown type 'date'"),
        ({}, 1, "has no type"),
        ("text", 1, "has no type"),
        ({"type": "struct"}, {}, "fields of the payload"),
    ],
)
def test_what_does_not_fit_its_schema_is_a_bad_record(schema: Any, payload: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read(schema, payload)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}',
        b"[]",
        b"1",
        b'{"schema": null}',
        b'{"payload": {}}',
        b'{"schema": null, "payload": 1, "more": 2}',
    ],
)
def test_what_is_no_envelope_is_a_bad_record_that_names_the_key(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"schemas\.enable=false"):
        EnvelopeReader()(data)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
TYPES = st.sampled_from(["struct", "array", "map", "int32", "string", "bytes", "date"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": TYPES, "optional": st.booleans()}) | JSON,
    lambda inner: st.fixed_dictionaries(
        {"type": TYPES, "items": inner, "keys": inner, "values": inner, "fields": st.lists(inner, max_size=2)}
    ),
    max_leaves=5,
)


@given(SCHEMAS, JSON)
def test_whatever_the_schema_says_the_reader_answers_or_refuses(schema: Any, payload: Any) -> None:
    try:
        read(schema, payload)
    except (ValueError, TypeError, OverflowError):
        return


def prepared(data: bytes, **config: str) -> ProjectedRecord:
    """The row of a connector for a value."""
    kcql = "INSERT INTO a SELECT * FROM t"
    given = {"name": "n", "connector.class": "elasticsearch", "topics": "t", "kcql": kcql, "url": "http://h:1"}
    kind = installed_sinks()["elasticsearch"]
    validated = check(kind, from_mapping(given | {key.replace("__", "."): text for key, text in config.items()}))
    return projector(kind, validated, SchemaRegistry(RegistrySettings()))(Record("t", 0, 0, 0, None, data, ()))


ENVELOPE = b'{"schema":{"type":"struct","fields":[{"field":"a","type":"int32"}]},"payload":{"a":1}}'
CONNECTS = "org.apache.kafka.connect.json.JsonConverter"


@pytest.mark.parametrize(
    ("config", "unwrapped"),
    [
        ({"value__converter": CONNECTS}, True),
        ({"value__converter": CONNECTS, "value__converter__schemas__enable": "true"}, True),
        ({"value__converter": CONNECTS, "value__converter__schemas__enable": "false"}, False),
        ({"value__converter": "json"}, False),
        ({"value__converter": "json", "value__converter__schemas__enable": "true"}, True),
        ({}, False),
    ],
)
def test_connects_converter_expects_envelopes_unless_told_otherwise(config: dict[str, str], unwrapped: bool) -> None:
    (row,) = prepared(ENVELOPE, **config).rows
    assert row.values == ({"a": 1} if unwrapped else orjson.loads(ENVELOPE))
    plain = prepared(b'{"a": 1}', **config)
    assert (plain.failed is not None) == unwrapped


@given(st.integers(-(10**60), 10**60), st.integers(0, 60))
def test_a_decimal_keeps_every_digit(unscaled: int, scale: int) -> None:
    written = base64.b64encode(unscaled.to_bytes(32, "big", signed=True)).decode()
    schema = {"type": "bytes", "name": f"{LOGICAL}Decimal", "parameters": {"scale": str(scale)}}
    assert read(schema, written).as_tuple() == Decimal(f"{unscaled}E-{scale}").as_tuple()


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"type": "bytes", "name": f"{LOGICAL}Decimal", "parameters": {"scale": "2"}}, "AAAA" * 1_000),
        ({"type": "bytes", "name": f"{LOGICAL}Decimal", "parameters": {"scale": "-99999999"}}, "AQ=="),
        ({"type": "bytes"}, "é==="),
        ({"type": "int32", "name": f"{LOGICAL}Time"}, 86_400_000),
        ({"type": "int32", "name": f"{LOGICAL}Time"}, -1),
    ],
    ids=["bytes", "scale", "not base64", "tomorrow", "yesterday"],
)
def test_a_value_out_of_bounds_is_a_bad_record(schema: Any, payload: Any) -> None:
    with pytest.raises(EnvelopeError):
        read(schema, payload)


def test_defaults_of_defaults_do_not_grow_without_bound() -> None:
    # Each level is an array of ten nulls, whose default is the level below: 10**9 values from a kilobyte.
    schema: dict[str, Any] = {"type": "string", "default": "x"}
    for _ in range(9):
        schema = {"type": "array", "items": schema, "default": [None] * 10}
    with pytest.raises(EnvelopeError, match="defaults"):
        read(schema, [None] * 10)
    assert read({"type": "array", "items": TEXT | {"default": "x"}}, [None]) == ["x"]

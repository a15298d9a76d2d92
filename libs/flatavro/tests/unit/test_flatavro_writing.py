"""The compiled encoder writes what fastavro writes, and leaves other values to fastavro."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.flatavro.writing import flat_encoder
from isotherm.servicekit.avro import WireFormatError, encoder, parse

_TIME = {"type": "long", "logicalType": "timestamp-millis"}
FLAT = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "size", "type": "double"},
        {"name": "time", "type": _TIME},
        {"name": "count", "type": "long", "default": 7},
        {"name": "more", "type": {"type": "map", "values": "string"}, "default": {}},
    ],
}
OPTIONAL = {
    "type": "record",
    "name": "Optional",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "time", "type": ["null", _TIME]},
        {"name": "count", "type": ["null", "int"]},
        {"name": "size", "type": ["null", "double"]},
        {"name": "is_new", "type": ["null", "boolean"]},
        {"name": "is_old", "type": "boolean"},
        {"name": "level", "type": "int"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
PARSED = parse(FLAT)
ENCODE = encoder(FLAT, 9)
ENCODE_OPTIONAL = encoder(OPTIONAL, 9)
HEADER = b"\0\0\0\0\x09"

longs = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 20_000), st.sampled_from([2**13, 2**14, 2**63 - 1]))
records = st.fixed_dictionaries(
    {
        "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
        "size": st.floats(allow_nan=False),
        "time": longs,
    },
    optional={"count": longs, "more": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)},
)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
ints = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-9_000, 9_000), st.sampled_from([-(2**31), 2**31 - 1]))
optional_records = st.fixed_dictionaries(
    {
        "name": st.none() | texts,
        "time": st.none() | longs,
        "count": st.none() | ints,
        "size": st.none() | st.floats(allow_nan=False),
        "is_new": st.none() | st.booleans(),
        "is_old": st.booleans(),
        "level": ints,
        "tags": st.lists(texts, max_size=3),
    }
)


def written_by_fastavro(record: dict[str, Any], parsed: Any = PARSED) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, record)
    return HEADER + buffer.getvalue()


@given(records)
@example({"name": "ü" * 100, "size": 1.0, "time": 1_767_225_600_000, "count": 0, "more": {"a": "b"}})
def test_the_bytes_are_those_of_fastavro(record: dict[str, Any]) -> None:
    assert ENCODE(record) == written_by_fastavro(record)
    # Now out of its memory.
    assert ENCODE(record) == written_by_fastavro(record)


@given(optional_records)
def test_unions_with_null_are_written_as_fastavro_does(record: dict[str, Any]) -> None:
    expected = written_by_fastavro(record, parse(OPTIONAL))
    assert ENCODE_OPTIONAL(record) == expected
    assert ENCODE_OPTIONAL(record) == expected


def test_values_that_fit_no_branch_exactly_are_left_to_fastavro() -> None:
    left: list[Any] = []

    def otherwise(record: Any) -> bytes:
        left.append(record)
        return b""

    encode = flat_encoder(OPTIONAL, HEADER, otherwise)
    assert encode is not None
    plain: dict[str, Any] = dict.fromkeys(("name", "time", "count", "size", "is_new"))
    plain |= {"is_old": True, "level": -1, "tags": ["a"]}
    encode(plain)
    assert not left
    others: list[dict[str, Any]] = [
        {"name": 1},
        {"count": True},
        {"count": 2**31},
        {"level": None},
        {"is_new": 1},
        {"is_old": None},
        {"tags": ("a",)},
        {"tags": [1]},
        {"size": 1},
    ]
    for other in others:
        encode(plain | other)
    assert left == [plain | other for other in others]


def test_what_is_not_plain_is_written_by_fastavro() -> None:
    given_over: list[Any] = []

    def otherwise(record: Any) -> bytes:
        given_over.append(record)
        return b""

    encode = flat_encoder(FLAT, HEADER, otherwise)
    assert encode is not None
    plain: dict[str, Any] = {"name": "a", "size": 1.0, "time": 5, "count": 1, "more": {}}
    encode(plain)
    assert not given_over
    others: list[dict[str, Any]] = [
        {"time": datetime(2026, 1, 1, tzinfo=UTC)},
        {"count": True},
        {"count": -1},
        {"size": 1},
        {"name": ["a"]},
    ]
    for other in others:
        encode(plain | other)
    assert given_over == [plain | other for other in others]


@pytest.mark.parametrize("wrong", [{"name": 5}, {"time": 2**63}, {"more": {"a": 1}}, {"size": "x"}, {"name": "\ud800"}])
def test_what_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    record = {"name": "a", "size": 1.0, "time": 5, "count": 1, "more": {}}
    with pytest.raises(WireFormatError, match="does not fit"):
        encoder(FLAT, 9)(record | wrong)


@pytest.mark.parametrize(
    "kind", [["string", "null"], ["null", "string", "int"], ["null", ["null", "int"]], "bytes", "float"]
)
def test_other_schemas_are_not_flat(kind: Any) -> None:
    schema = {"type": "record", "name": "Other", "fields": [{"name": "a", "type": kind}]}
    assert flat_encoder(schema, HEADER, lambda _record: b"") is None

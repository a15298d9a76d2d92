"""The compiled reader gives what fastavro gives, or leaves the bytes to it."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flatavro.reading import UNUSUAL, flat_reader

HEADER = b"\0\0\0\0\x09"
FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "time", "type": {"type": "long"}},
        {"name": "low", "type": "double"},
        {"name": "high", "type": {"type": "double"}},
        {"name": "count", "type": "int"},
        {"name": "is_on", "type": "boolean"},
        {"name": "more", "type": {"type": "map", "values": "string"}},
        {"name": "room", "type": ["null", "string"]},
        {"name": "factor", "type": ["double", "null"]},
        {"name": "until", "type": ["null", "long"]},
    ],
}
PARSED = fastavro.parse_schema(FLAT)
READ = flat_reader(FLAT, len(HEADER))
PLAIN = {
    "name": "a",
    "time": 1_767_225_600_000,
    "low": 1.5,
    "high": -0.0,
    "count": -1,
    "is_on": True,
    "more": {"a": "b"},
    "room": None,
    "factor": 2.5,
    "until": 1_767_225_600_001,
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
times = st.integers(1_767_225_600_000, 1_767_225_700_000)
longs = st.one_of(times, st.integers(-(2**63), 2**63 - 1), st.integers(-70, 20_000), st.sampled_from([2**40, 2**41]))
doubles = st.floats(allow_nan=False)
records = st.fixed_dictionaries(
    {
        "name": texts,
        "time": longs,
        "low": doubles,
        "high": doubles,
        "count": st.integers(-(2**31), 2**31 - 1),
        "is_on": st.booleans(),
        "more": st.dictionaries(texts, texts, max_size=3),
        "room": st.none() | texts,
        "factor": st.none() | doubles,
        "until": st.none() | longs,
    }
)


def written(record: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, PARSED, record)
    return HEADER + buffer.getvalue()


def read_by_fastavro(data: bytes) -> Any:
    body = io.BytesIO(data[len(HEADER) :])
    value = fastavro.schemaless_reader(body, PARSED, None)
    assert not body.read()
    return value


def read_flat(data: bytes) -> Any:
    assert READ is not None
    return READ(data)


@given(records)
@example(PLAIN)
def test_the_record_is_that_of_fastavro_or_left_to_it(record: dict[str, Any]) -> None:
    data = written(record)
    for _ in range(2):
        try:
            found = read_flat(data)
        except UNUSUAL:
            texts_in_it = [record["name"], record["room"] or "", *record["more"], *record["more"].values()]
            assert any(len(text.encode()) > 63 for text in texts_in_it)
            return
        assert found == read_by_fastavro(data)
        assert list(found) == list(PLAIN)


@given(records, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.integers(-3, 3))
def test_damaged_bytes_are_read_as_fastavro_reads_them_or_left_to_it(
    record: dict[str, Any], damage: list[tuple[int, int]], more: int
) -> None:
    data = bytearray(written(record))
    for place, byte in damage:
        data[len(HEADER) + place % (len(data) - len(HEADER))] = byte
    damaged = bytes(data[: len(data) + more] if more < 0 else data + b"\1" * more)
    try:
        found = read_flat(damaged)
    except UNUSUAL:
        return
    assert repr(found) == repr(read_by_fastavro(damaged))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02",
        b"\x02a",
        b"\x01a",
        b"\x02\xff" + b"\0" * 30,
        b"\0" + b"\x80" * 100_000,
        b"\0" + b"\xff" * 9 + b"\x7f",
    ],
)
def test_bad_bytes_are_left_to_fastavro(body: bytes) -> None:
    with pytest.raises(UNUSUAL):
        read_flat(HEADER + body)


@pytest.mark.parametrize(
    "type_",
    [
        "bytes",
        "float",
        ["null", "string", "long"],
        ["string"],
        {"type": "array", "items": "string"},
        {"type": "map", "values": "long"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "enum", "name": "Colour", "symbols": ["RED"]},
    ],
)
def test_other_schemas_are_not_flat(type_: Any) -> None:
    assert flat_reader({"type": "record", "name": "Other", "fields": [{"name": "a", "type": type_}]}, 5) is None
    assert flat_reader({"type": "string"}, 5) is None

"""The compiled reader returns what fastavro returns, or leaves the bytes to fastavro."""

from __future__ import annotations

from typing import Any

import pytest
from flatavro_records import FLAT, HEADER, PLAIN, read_by_fastavro, records, written
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.flatavro.reading import FALLBACK_ERRORS, flat_reader

READ = flat_reader(FLAT, len(HEADER))


def test_unions_in_unions_are_not_flat() -> None:
    # Avro does not have them. A hundred of them are more indentation than Python allows.
    nested: Any = ["null", "int"]
    for _ in range(100):
        nested = ["null", nested]
    assert flat_reader({"type": "record", "fields": [{"name": "a", "type": nested}]}, 0) is None


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
        except FALLBACK_ERRORS:
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
    except FALLBACK_ERRORS:
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
    with pytest.raises(FALLBACK_ERRORS):
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

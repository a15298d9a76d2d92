"""Decoding of values for display, also of values that are too deep or too large for pages and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from console_in_memory import MemoryRegistry, World, world_of
from hypothesis import given
from hypothesis import strategies as st

from isotherm.console.records.decoding import (
    MAX_DEPTH,
    MAX_SHOWN,
    DecodeValue,
    value_decoder,
)
from isotherm.console.records.record import Record
from isotherm.servicekit.avro import (
    Decoder,
    WriterSchema,
    encoder,
    parse,
)

CHAIN = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(levels: int, begin: bytes = b"[", end: bytes = b"]") -> bytes:
    return begin * levels + b"1" + end * levels


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


@pytest.fixture(scope="module")
def read() -> DecodeValue:
    return value_decoder(Decoder(MemoryRegistry()))


@given(JSON)
def test_json_is_shown_unchanged(read: DecodeValue, value: Any) -> None:
    assert read(orjson.dumps(value))[:2] == ("json", value)


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b"[0,", b"]")])
def test_json_that_is_too_deep_to_be_written_again_is_a_bounded_text(
    read: DecodeValue, begin: bytes, end: bytes
) -> None:
    deepest = nested(MAX_DEPTH, begin, end)
    assert read(deepest)[:2] == ("json", orjson.loads(deepest))
    for levels in (MAX_DEPTH + 1, 254, 300, 1_020, 5_000):
        text = nested(levels, begin, end)
        assert read(text)[:2] == ("text", text.decode())
    assert len(read(nested(MAX_SHOWN, begin, end)).value) == MAX_SHOWN
    assert read(b"[" + b"[1]," * 2_000 + b"[2]]").format == "json", "many brackets are not deep"


def test_avro_that_is_too_deep_is_shown_raw_with_the_reason() -> None:
    registry = MemoryRegistry()
    known = WriterSchema(7, CHAIN, parse(CHAIN))
    registry.schema = lambda schema_id: known  # type: ignore[method-assign]  # a schema of somebody else
    read, header = value_decoder(Decoder(registry)), encoder(CHAIN, 7)({"next": None})[:5]
    assert read(header + b"\x02" * 9 + b"\x00").format == "avro"
    for levels in (MAX_DEPTH, 300, 900):
        raw = header + b"\x02" * levels + b"\x00"
        assert read(raw) == ("binary", raw.hex(" "), f"nested more than {MAX_DEPTH} levels deep")


@pytest.mark.parametrize("levels", [300, 1_020])
@pytest.mark.parametrize(
    "path",
    [
        "/isotherm/dead-letter-queues/a.dead-letters/records",
        "/isotherm/dead-letter-queues/a.dead-letters/records/0/3",
        "/isotherm/topics/x/records",
        "/isotherm/topics/x/records?text=1",
        "/isotherm/topics/x/records/0/0",
        "/ui/dead-letter-queues/a.dead-letters",
        "/ui/dead-letter-queues/a.dead-letters/0/3",
        "/ui/topics/x",
        "/ui/topics/x/0/0",
    ],
)
def test_one_deeply_nested_record_does_not_hide_the_others(world: World, path: str, levels: int) -> None:
    world.queues.records = [replace(world.queues.records[0], value=nested(levels)), world.queues.records[1]]
    world.topics.put("x", nested(levels), b'{"n":1}')
    answer = world.http.get(path)
    assert answer.status_code == 200
    assert "[[[[" in answer.text


def long_key(record: Record) -> Record:
    return replace(record, key=b"k" * 4 * MAX_SHOWN)


def long_header(record: Record) -> Record:
    return replace(record, headers=[("h", b"h" * 4 * MAX_SHOWN)])


@pytest.mark.parametrize("change", [long_key, long_header])
def test_keys_and_headers_are_bounded_too(world: World, change: Callable[[Record], Record]) -> None:
    world.topics.put("x", b"1")
    partitions = world.topics.topics["x"].partitions
    partitions[0] = [change(one) for one in partitions[0]]
    for path in ("/isotherm/topics/x/records", "/isotherm/topics/x/records/0/0", "/ui/topics/x/0/0"):
        assert MAX_SHOWN < len(world.http.get(path).content) < 2 * MAX_SHOWN


@pytest.mark.parametrize("time_ms", [10**17, -(10**15), -1])
def test_a_time_that_no_calendar_has_is_shown(world: World, time_ms: int) -> None:
    world.topics.put("x", b"1")
    partitions = world.topics.topics["x"].partitions
    partitions[0] = [replace(one, timestamp_ms=time_ms) for one in partitions[0]]
    for path in ("/ui/topics/x", "/ui/topics/x/0/0", "/isotherm/topics/x/records"):
        assert world.http.get(path).status_code == 200


@pytest.mark.parametrize("value", [b"[" + b"[]," * 100_000 + b"1]", b"\xff" * 100_000, b"t" * 100_000])
def test_lists_cut_large_values(world: World, value: bytes) -> None:
    world.topics.put("x", value, b'{"n":1}')
    small, large = world.http.get("/isotherm/topics/x/records").json()["records"]
    assert (small["value"], small["is_cut"]) == ({"n": 1}, False)
    assert (large["value_base64"], large["is_cut"], 8_000 < len(large["value"]) < 9_000) == (None, True, True)
    whole = world.http.get("/isotherm/topics/x/records/0/0")
    assert (whole.json()["is_cut"], len(whole.content) > MAX_SHOWN) == (False, True)
    assert len(world.http.get("/ui/topics/x").content) < MAX_SHOWN


def test_a_search_finds_text_behind_the_cut(world: World) -> None:
    world.topics.put("x", b"t" * 50_000 + b"needle", b"1")
    (found,) = world.http.get("/isotherm/topics/x/records?text=needle").json()["records"]
    assert found["offset"] == 0

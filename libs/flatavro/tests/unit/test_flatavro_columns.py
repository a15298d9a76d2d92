"""Records read as a batch equal those read one by one; batches that the fast path cannot read are left to fastavro."""

from __future__ import annotations

import random
from typing import Any

import pytest
from flatavro_records import FLAT, HEADER, PLAIN, read_by_fastavro, records, written
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.flatavro.columns import flat_batch_reader
from isotherm.flatavro.reading import FALLBACK_ERRORS, flat_reader

READ = flat_batch_reader(FLAT, len(HEADER))
READ_ONE = flat_reader(FLAT, len(HEADER))


def read_batch(batch: list[bytes]) -> Any:
    assert READ is not None
    return READ(batch)


def is_usual(data: bytes) -> bool:
    assert READ_ONE is not None
    try:
        READ_ONE(data)
    except FALLBACK_ERRORS:
        return False
    return True


@given(st.lists(records, min_size=1, max_size=6))
@example([PLAIN])
@example([PLAIN, {**PLAIN, "room": "Küche"}, {**PLAIN, "until": None, "more": {}}])
def test_a_batch_is_its_records_or_left_to_them(batch: list[dict[str, Any]]) -> None:
    data = [written(record) for record in batch]
    try:
        found, columns = read_batch(data)
    except FALLBACK_ERRORS:
        assert not all(map(is_usual, data))
        return
    assert repr(found) == repr([read_by_fastavro(one) for one in data])
    assert [list(record) for record in found] == [list(PLAIN)] * len(batch)
    assert columns == {name: [record[name] for record in found] for name in PLAIN}


@given(
    st.lists(records, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 255)), max_size=3),
    st.integers(0, 3),
    st.integers(-3, 3),
)
def test_damaged_batches_are_read_as_fastavro_reads_them_or_left_to_it(
    batch: list[dict[str, Any]], damage: list[tuple[int, int, int]], cut: int, more: int
) -> None:
    data = [bytearray(written(record)) for record in batch]
    for number, place, byte in damage:
        chosen = data[number % len(data)]
        chosen[len(HEADER) + place % (len(chosen) - len(HEADER))] = byte
    chosen = data[cut % len(data)]
    data[cut % len(data)] = chosen[:more] if more < 0 else chosen + b"\1" * more
    damaged = [bytes(one) for one in data]
    try:
        found, _ = read_batch(damaged)
    except FALLBACK_ERRORS:
        return
    assert repr(found) == repr([read_by_fastavro(one) for one in damaged])


def test_thousands_are_read_at_once() -> None:
    chance = random.Random(7)
    batch = [
        {
            **PLAIN,
            "name": f"device-{number}",
            "time": 1_767_225_600_000 + chance.randrange(-(10**12), 10**6),
            "low": chance.random(),
            "count": chance.randrange(-(2**31), 2**31),
            "more": {"room": "5"} if number % 7 == 0 else {},
            "room": f"room {number}" if chance.random() < 0.5 else None,
            "factor": chance.choice([None, chance.random()]),
        }
        for number in range(5_000)
    ]
    found, _ = read_batch([written(record) for record in batch])
    assert found == batch


def test_texts_that_are_the_same_throughout_are_read_at_once() -> None:
    for text in ("", "kitchen", "Küche"):
        batch = [{**PLAIN, "name": text, "room": text, "more": {"room": text}, "time": number} for number in range(50)]
        assert read_batch([written(record) for record in batch])[0] == batch
        # The last is the same as the first, one between is not.
        batch[7] |= {"name": text[::-1] + "x", "more": {"room": text, "floor": text}}
        assert read_batch([written(record) for record in batch])[0] == batch


def test_maps_of_several_blocks_are_read_block_by_block() -> None:
    fields = [{"name": "more", "type": {"type": "map", "values": "string"}}, {"name": "number", "type": "long"}]
    read = flat_batch_reader({"type": "record", "name": "Mapped", "fields": fields}, 0)
    assert read is not None
    bodies = {
        b"\0\0": {},
        b"\x02\x02a\x02b\0\0": {"a": "b"},
        b"\x04\x02a\x02b\x02c\x02d\0\0": {"a": "b", "c": "d"},
        b"\x02\x02a\x02b\x04\x02c\x02d\x02a\x02e\0\0": {"a": "e", "c": "d"},
    }
    found, _ = read([*bodies, *reversed(bodies)])
    assert [record["more"] for record in found] == [*bodies.values(), *reversed(bodies.values())]
    # A block that says its size in bytes, as one that is read by itself, is left to fastavro.
    with pytest.raises(FALLBACK_ERRORS):
        read([*bodies, b"\x01\x08\x02a\x02b\0\0"])


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x02a", b"\x01a", b"\x02\xff" + b"\0" * 30, b"\0" + b"\x80" * 1_000])
def test_bad_bytes_among_good_ones_are_left_to_fastavro(body: bytes) -> None:
    good = written(PLAIN)
    for batch in ([HEADER + body], [HEADER + body, good], [good, HEADER + body], [good, HEADER + body, good]):
        with pytest.raises(FALLBACK_ERRORS):
            read_batch(batch)


def test_other_schemas_are_not_flat() -> None:
    for type_ in ("bytes", ["null", "string", "long"], ["string"], ["null", {"type": "map", "values": "long"}]):
        fields = [{"name": "a", "type": type_}]
        assert flat_batch_reader({"type": "record", "name": "Other", "fields": fields}, 5) is None
    assert flat_batch_reader({"type": "string"}, 5) is None
    assert flat_batch_reader({"type": "record", "name": "Empty", "fields": []}, 5) is None

"""Decoding of payloads by content format."""

from __future__ import annotations

import json

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.payloads import Limits, NotNumericError, PayloadError, decode
from isotherm.payloads.cbor_keys import problem_of_keys

DOCUMENT = (
    b'{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.60440030439427,"message":"Sensor message 98"}'
)
DOCUMENT_ROW = {
    "sensorId": "Sensor4",
    "timestamp": 1486997194029,
    "temperature": 23.60440030439427,
    "message": "Sensor message 98",
}


@pytest.mark.parametrize("content_format", [None, 0, 42, 50, "", "text/plain;charset=utf-8", "Application/JSON"])
def test_an_object_is_one_row_under_every_format_that_may_hold_json(content_format: str | int | None) -> None:
    assert decode(DOCUMENT, content_format) == [DOCUMENT_ROW]


def test_an_array_gives_its_objects_in_order() -> None:
    assert decode(b'[{"value":1},{"value":2}]', 50) == [{"value": 1}, {"value": 2}]


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"21.5", 21.5), (b" 21.5\r\n", 21.5), (b"+21.5", 21.5), (b".5", 0.5), (b"21.", 21.0), (b"-3", -3), (b"1e3", 1e3)],
)
def test_a_plain_number_is_the_value(data: bytes, value: float) -> None:
    assert decode(data, None) == [{"value": value}]


@pytest.mark.parametrize(
    "data",
    [b"", b"nan", b"inf", b"1_000", b"0x10", b"on", b'"21.5"', b"null", b"[1]", b"[]", b"\xff\x00", b"{}x"],
)
def test_anything_else_is_refused_without_a_format(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data, None)


@pytest.mark.parametrize(
    ("data", "content_format"), [(b"true", None), (b"true", 50), (cbor2.dumps(True), 60), (b"false", 0)]
)
def test_a_plain_boolean_is_the_value(data: bytes, content_format: int | None) -> None:
    assert decode(data, content_format) == [{"value": data != b"false"}]


@pytest.mark.parametrize(
    ("data", "content_format"), [(b"on", None), (b'"on"', 50), (cbor2.dumps("on"), 60), (cbor2.dumps(b"\1"), 60)]
)
def test_a_text_is_told_from_other_mistakes(data: bytes, content_format: int | None) -> None:
    with pytest.raises(NotNumericError):
        decode(data, content_format)


@pytest.mark.parametrize("content_format", [41, "application/xml", 9999, "image/png"])
def test_an_unsupported_format_is_refused_by_name(content_format: str | int) -> None:
    with pytest.raises(PayloadError, match=f"'{content_format}'.*application/senml"):
        decode(DOCUMENT, content_format)


def test_limits_hold_for_bytes_depth_and_values() -> None:
    with pytest.raises(PayloadError, match="over the limit of 10"):
        decode(DOCUMENT, 50, limits=Limits(max_bytes=10))
    with pytest.raises(PayloadError, match="deeper than 2"):
        decode(b'{"a":{"b":{"c":1}}}', 50, limits=Limits(max_depth=2))
    assert decode(b'{"a":{"b":1}}', 50, limits=Limits(max_depth=2)) == [{"a": {"b": 1}}]
    with pytest.raises(PayloadError, match="more than 3 values"):
        decode(b'[{"a":1},{"a":1}]', 50, limits=Limits(max_items=3))


def test_cbor_maps_arrays_and_numbers_are_rows() -> None:
    assert decode(cbor2.dumps(DOCUMENT_ROW), 60) == [DOCUMENT_ROW]
    assert decode(cbor2.dumps([{"value": 1}, {"value": 2}]), "application/cbor") == [{"value": 1}, {"value": 2}]
    assert decode(cbor2.dumps(21.5), 60) == [{"value": 21.5}]
    # The self-described tag (RFC 8949 section 3.4.6) changes nothing.
    assert decode(b"\xd9\xd9\xf7" + cbor2.dumps({"value": [1, {"a": 2}]}), 60) == [{"value": [1, {"a": 2}]}]


def test_cbor_times_and_decimal_fractions_become_plain_values() -> None:
    moment = b"\xc0\x74" + b"2013-03-21T20:04:00Z"
    assert decode(b"\xa1\x61t" + moment, 60) == [{"t": "2013-03-21T20:04:00+00:00"}]
    assert decode(b"\xa1\x65value\xc4\x82\x21\x19\x6a\xb3", 60) == [{"value": 273.15}]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xa1\x01\x02",  # a key that is a number
        b"\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\x01\x02",  # bytes left over
        b"\xf7",  # undefined
        b"\xc2\x49" + b"\xff" * 9,  # a big number
        b"\xa1\x61a\xd8\x23\x63(a)",  # a regular expression
        b"\xa1\x61a\xd8\x1c\x81\xd8\x1d\x00",  # an array that holds itself
        b"\x81" * 5000,
        b"\x9b" + b"\xff" * 8,  # an array of 2**64 - 1 items, none of them there
        b"\xa1\x61a\xc4\x82\x1a\x3f\xff\xff\xff\x40",  # a decimal fraction whose mantissa is not a number
    ],
)
def test_hostile_cbor_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data, 60)


def test_shared_cbor_values_do_not_fan_out() -> None:
    # Each level references the one below twice: 2**12 leaves from 60 bytes.
    shared: object = [1]
    for _ in range(12):
        shared = [shared, shared]
    data = cbor2.dumps({"a": shared}, value_sharing=True)
    with pytest.raises(PayloadError, match="only the tags 0, 1"):
        decode(data, 60, limits=Limits(max_items=1000))


def test_cbor_does_not_repeat_a_text_by_reference() -> None:
    # A text of 4 kB and 1,000 references to it, of 3 bytes each.
    text = "x" * 4_000
    data = cbor2.dumps([{"a": text} for _ in range(1_000)], string_referencing=True)
    assert len(data) < 20_000
    with pytest.raises(PayloadError, match="only the tags 0, 1"):
        decode(data, 60)


def test_cbor_keys_that_are_arrays_are_refused_before_they_are_compared() -> None:
    # Arrays of -1 and -2, which have the same hash: comparing all with all takes seconds.
    keys = [bytes([0x8C]) + bytes(0x20 | number >> bit & 1 for bit in range(12)) for number in range(4_096)]
    data = b"\xb9\x10\x00" + b"".join(key + b"\x00" for key in keys)
    for content_format, pack in ((60, data), (112, b"\x81" + data)):
        with pytest.raises(PayloadError, match="is the key of a map"):
            decode(pack, content_format)


_keys = st.integers(-3, 3) | st.text(max_size=2)
_cbor = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys | st.tuples(_keys), inner, max_size=4),
    max_leaves=10,
)


@given(_cbor, st.booleans())
def test_arrays_among_keys_are_found_without_decoding(value: object, indefinite: bool) -> None:
    def has(found: object) -> bool:
        if isinstance(found, dict):
            return any(isinstance(key, tuple) for key in found) or any(map(has, found.values()))
        return isinstance(found, list) and any(map(has, found))

    problem = problem_of_keys(cbor2.dumps(value, indefinite_containers=indefinite), 1_000)
    assert (problem is not None) == has(value)


@given(st.binary(max_size=60))
def test_looking_at_keys_ends_for_any_bytes(data: bytes) -> None:
    assert problem_of_keys(data, 10) in (None, "more than 10 values", "an array or a map is the key of a map")


def test_keys_behind_more_values_than_allowed_are_not_decoded() -> None:
    with pytest.raises(PayloadError, match="more than 1000 values"):
        decode(cbor2.dumps([{1: 2}] * 5_000), 112, limits=Limits(max_items=1_000))


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _json, max_size=5))
def test_cbor_and_json_objects_come_back_as_they_are(row: dict[str, object]) -> None:
    assert decode(cbor2.dumps(row), 60) == [row]
    text = json.dumps(row)
    if "Infinity" not in text:
        assert decode(text.encode(), 50) == [row]


@given(st.binary(max_size=200), st.sampled_from([None, 0, 42, 50, 60, 110, 112]))
def test_any_bytes_give_rows_or_a_payload_error(data: bytes, content_format: int | None) -> None:
    try:
        rows = decode(data, content_format)
    except PayloadError:
        return
    assert rows
    assert all(isinstance(row, dict) for row in rows)


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        (b"[1,2]", Limits()),
        (b'[{"a":1},2]', Limits()),
        (b'[{"a":1},{"a":1}]', Limits(max_depth=1)),
        (b'[{"a":1},{"a":{"b":{}}}]', Limits(max_depth=2)),
        (b"[]", Limits()),
    ],
)
def test_an_array_that_is_not_rows_within_the_limits_is_refused(data: bytes, limits: Limits) -> None:
    with pytest.raises(PayloadError):
        decode(data, 50, limits=limits)


def test_an_array_of_flat_objects_is_its_rows() -> None:
    rows = [{"a": 1, "b": None, "c": True}, {}, {"a": "x", "b": 1.5}]
    assert decode(json.dumps(rows).encode(), 50) == rows
    assert decode(json.dumps(rows).encode(), 50, limits=Limits(max_items=8, max_depth=2)) == rows


def test_a_key_that_is_no_text_is_refused_in_an_array() -> None:
    with pytest.raises(PayloadError, match="texts as keys, not int"):
        decode(cbor2.dumps([{"a": 1}, {1: 2}]), 60)

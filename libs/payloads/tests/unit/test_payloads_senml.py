"""SenML packs: the examples of RFC 8428 and its rules."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.payloads import PayloadError, decode

NOW_MS = 1_700_000_000_000
DEVICE = "urn:dev:ow:10e2073a01080063"

LABELS = {"bver": -1, "bn": -2, "bt": -3, "bu": -4, "bv": -5, "bs": -6, "n": 0, "u": 1, "v": 2}
LABELS |= {"vs": 3, "vb": 4, "s": 5, "t": 6, "ut": 7, "vd": 8}


def resolve(*records: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a pack; JSON and CBOR with integer labels must give the same rows."""
    rows = decode(json.dumps(records).encode(), 110, now_ms=NOW_MS)
    labelled = [{LABELS[label]: value for label, value in record.items()} for record in records]
    if not any("vd" in record for record in records):
        assert decode(cbor2.dumps(labelled), 112, now_ms=NOW_MS) == rows
    return rows


def test_single_datapoint() -> None:
    assert resolve({"n": DEVICE, "u": "Cel", "v": 23.1}) == [
        {"name": DEVICE, "metric": DEVICE, "unit": "Cel", "value": 23.1}
    ]


def test_multiple_datapoints_with_base_fields_and_relative_times() -> None:
    rows = resolve(
        {
            "bn": f"{DEVICE}:",
            "bt": 1.276020076001e09,
            "bu": "A",
            "bver": 5,
            "n": "voltage",
            "u": "V",
            "v": 120.1,
        },
        {"n": "current", "t": -5, "v": 1.2},
        {"n": "current", "t": -4, "v": 1.3},
        {"n": "current", "v": 1.7},
    )
    named = {"device_id": DEVICE}
    current = {**named, "name": f"{DEVICE}:current", "metric": "current", "unit": "A"}
    assert rows == [
        {
            **named,
            "name": f"{DEVICE}:voltage",
            "metric": "voltage",
            "unit": "V",
            "value": 120.1,
            "event_time": 1276020076001,
        },
        {**current, "value": 1.2, "event_time": 1276020071001},
        {**current, "value": 1.3, "event_time": 1276020072001},
        {**current, "value": 1.7, "event_time": 1276020076001},
    ]


def test_multiple_measurements_of_one_name() -> None:
    rows = resolve(
        {"bn": DEVICE, "bt": 1.320067464e09, "bu": "%RH", "v": 20},
        {"u": "lon", "v": 24.30621},
        {"t": 60, "v": 20.3},
    )
    assert [(row["unit"], row["value"], row["event_time"]) for row in rows] == [
        ("%RH", 20, 1320067464000),
        ("lon", 24.30621, 1320067464000),
        ("%RH", 20.3, 1320067524000),
    ]
    assert {row["device_id"] for row in rows} == {DEVICE}
    assert all("metric" not in row for row in rows)


def test_multiple_data_types() -> None:
    rows = resolve(
        {"bn": f"{DEVICE}:", "n": "temp", "u": "Cel", "v": 23.1},
        {"n": "label", "vs": "Machine Room"},
        {"n": "open", "vb": False},
        {"n": "nfc-reader", "vd": "aGkgCg"},
    )
    assert [row.get("string_value") for row in rows] == [None, "Machine Room", None, None]
    assert (rows[2]["value"], type(rows[2]["value"])) == (0.0, float)
    assert resolve({"n": "open", "vb": True})[0]["value"] == 1.0
    assert rows[3]["data_value"] == b"hi \n"


def test_data_values_of_cbor_are_bytes() -> None:
    assert decode(cbor2.dumps([{0: "nfc", 8: b"hi"}]), 112, now_ms=NOW_MS)[0]["data_value"] == b"hi"


def test_times_below_2_to_28_are_relative_to_now_and_zero_is_left_out() -> None:
    rows = resolve({"n": "a", "v": 1, "t": -10.5}, {"n": "a", "v": 1, "t": 2}, {"n": "a", "v": 1})
    assert [row.get("event_time") for row in rows] == [NOW_MS - 10_500, NOW_MS + 2_000, None]
    assert resolve({"n": "a", "v": 1, "t": 2**28})[0]["event_time"] == 2**28 * 1000


def test_base_value_and_base_sum_are_added() -> None:
    rows = resolve({"bn": "m:", "bv": 100, "bs": 10, "n": "a", "v": 1, "s": 2}, {"n": "b", "v": -1}, {"n": "c"})
    assert [(row["value"], row["sum"]) for row in rows] == [(101, 12), (99, 10), (100, 10)]


def test_a_record_of_base_fields_only_sets_them() -> None:
    assert resolve({"bn": "m/", "bu": "Cel"}, {"n": "a", "v": 1}) == [
        {"name": "m/a", "device_id": "m", "metric": "a", "unit": "Cel", "value": 1}
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"n": "a", "v": 1, "mandatory_": 1}, "'mandatory_' must be understood"),
        ({"n": "a", "v": 1, "bver": 11}, "version 11"),
        ({"n": "a b", "v": 1}, "name 'a b'"),
        ({"n": "-a", "v": 1}, "name '-a'"),
        ({"v": 1}, "name ''"),
        ({"n": "a" * 600, "v": 1}, "more than 512"),
        ({"n": "a"}, "no value"),
        ({"n": "a", "v": 1, "vs": "x"}, "more than one value: v, vs"),
        ({"n": "a", "v": "1"}, "v: expected a finite number"),
        ({"n": "a", "v": True}, "v: expected a finite number"),
        ({"n": "a", "vb": 1}, "vb: expected"),
        ({"n": "a", "vs": 1}, "vs: expected"),
        ({"n": "a", "vd": "*"}, "vd: expected base64url"),
        ({"n": 1, "v": 1}, "n: expected a text"),
        ({"n": "a", "v": 1, "t": 1e15}, "between 1970 and 9999"),
        ({"n": "a", "v": 1, "t": -2e9}, "between 1970 and 9999"),
    ],
)
def test_a_violation_of_the_rfc_is_refused_with_record_and_reason(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError, match=r"^SenML record 1: .*" + reason):
        decode(json.dumps([{"n": "first", "v": 1}, record]).encode(), 110, now_ms=NOW_MS)


@pytest.mark.parametrize("data", [b"{}", b"1", b'"a"', b"[1]", b"[]"])
def test_a_pack_is_an_array_of_objects(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data, 110)


def test_unknown_labels_are_ignored_as_the_rfc_wants_but_not_unknown_numbers() -> None:
    assert decode(b'[{"n":"a","v":1,"extra":5}]', 110) == [{"name": "a", "metric": "a", "value": 1}]
    with pytest.raises(PayloadError, match="unknown label 99"):
        decode(cbor2.dumps([{0: "a", 2: 1, 99: 1}]), 112)
    with pytest.raises(PayloadError, match="n occurs twice"):
        decode(cbor2.dumps([{0: "a", "n": "b", 2: 1}]), 112)


@given(
    st.floats(min_value=2**28, max_value=4e9),
    st.lists(st.tuples(st.integers(-1000, 1000), st.floats(-1e6, 1e6)), min_size=1, max_size=20),
)
def test_resolving_gives_what_writing_every_record_in_full_gives(
    base_time: float, items: list[tuple[int, float]]
) -> None:
    short = resolve({"bn": "d:", "bt": base_time, "bu": "Cel"}, *({"n": "m", "t": t, "v": v} for t, v in items))
    full = resolve(*({"bn": "d:", "n": "m", "u": "Cel", "bt": base_time + t, "v": v} for t, v in items))
    assert short == full


@pytest.mark.parametrize("data", ["é", "\ud7ff==", "a", [], 1, None])
def test_data_that_is_no_base64_is_refused(data: object) -> None:
    with pytest.raises(PayloadError, match="vd"):
        decode(json.dumps([{"n": "a", "vd": data}]).encode(), 110)


def test_a_long_unit_is_refused_because_every_record_repeats_it() -> None:
    with pytest.raises(PayloadError, match="unit"):
        decode(json.dumps([{"bn": "a", "bu": "x" * 513, "v": 1}]).encode(), 110)

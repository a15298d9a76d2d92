"""Readings from rows, and times."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.payloads import (
    Defaults,
    IdentityError,
    NotNumericError,
    PayloadError,
    decode,
    epoch_ms,
    record,
)

NOW_MS = 1_700_000_000_000
DEFAULTS = Defaults("level-device", "temperature", {"temperature": "Cel"}, NOW_MS)


def test_a_complete_row_needs_no_default() -> None:
    row = {
        "device_id": "t-1",
        "metric": "brightness",
        "value": 300,
        "unit": "lx",
        "event_time": "2017-02-13T14:46:34.029Z",
        "sequence": 98,
        "attributes": {"room": "attic", "floor": 3},
    }
    assert record(row, Defaults(None, None, {}, NOW_MS)) == {
        "device_id": "t-1",
        "metric": "brightness",
        "value": 300.0,
        "unit": "lx",
        "event_time": 1486997194029,
        "ingest_time": NOW_MS,
        "sequence": 98,
        "attributes": {"room": "attic", "floor": "3"},
    }


def test_a_row_with_a_time_has_sequence_0_unless_it_gives_one() -> None:
    assert record({"value": 1, "event_time": 1486997194029}, DEFAULTS)["sequence"] == 0
    assert record({"value": 1, "sequence": 3}, DEFAULTS)["sequence"] == 3


def test_every_other_field_becomes_an_attribute_as_text() -> None:
    row = {
        "value": 1,
        "ok": True,
        "n": 2,
        "f": 0.5,
        "s": "x",
        "none": None,
        "raw": b"\x00",
        "deep": {"a": [1, b"\x01"]},
    }
    assert record(row, DEFAULTS)["attributes"] == {
        "ok": "true",
        "n": "2",
        "f": "0.5",
        "s": "x",
        "raw": "AA==",
        "deep": '{"a":[1,"AQ=="]}',
    }


def test_a_bare_value_takes_every_default_and_its_index() -> None:
    assert record({"value": 21.5}, DEFAULTS, 7) == {
        "device_id": "level-device",
        "metric": "temperature",
        "value": 21.5,
        "unit": "Cel",
        "event_time": NOW_MS,
        "ingest_time": NOW_MS,
        "sequence": 7,
        "attributes": {},
    }


def test_the_documents_payload_without_aliases_names_the_missing_field() -> None:
    row = {"sensorId": "Sensor4", "timestamp": 1486997194029, "temperature": 23.6, "message": "Sensor message 98"}
    with pytest.raises(PayloadError, match=r"^value: .*message, sensorId, temperature.*SELECT temperature AS value"):
        record(row, DEFAULTS)


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (False, 0.0)])
def test_a_boolean_is_1_or_0(value: bool, number: float) -> None:
    made = record({"value": value}, DEFAULTS)["value"]
    assert (made, type(made)) == (number, float)


@pytest.mark.parametrize(
    "row", [{"value": "on"}, {"value": b"1"}, {"string_value": "on", "metric": "m"}, {"data_value": b"1"}]
)
def test_a_text_is_told_from_other_mistakes(row: dict[str, Any]) -> None:
    with pytest.raises(NotNumericError, match=r"^value: "):
        record(row, DEFAULTS)


@pytest.mark.parametrize("value", ["21.5", math.nan, math.inf, -math.inf, [1], {}, None, 10**400, b"1"])
def test_a_value_must_be_a_finite_number(value: object) -> None:
    with pytest.raises(PayloadError, match=r"^value: "):
        record({"value": value}, DEFAULTS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_id", ""),
        ("device_id", 1.5),
        ("device_id", True),
        ("device_id", "x" * 257),
        ("metric", []),
        ("unit", 1),
        ("unit", "x" * 257),
        ("event_time", True),
        ("event_time", "yesterday"),
        ("event_time", -1),
        ("sequence", -1),
        ("sequence", 1.0),
        ("sequence", True),
        ("sequence", 2**63),
        ("attributes", "x"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    with pytest.raises(PayloadError, match=f"^{field}: "):
        record({"value": 1, field: value}, DEFAULTS)


@pytest.mark.parametrize(
    ("defaults", "field"),
    [
        (DEFAULTS._replace(device_id=None), "device_id"),
        (DEFAULTS._replace(metric=None), "metric"),
        (DEFAULTS._replace(units={}), "unit"),
    ],
)
def test_a_missing_field_without_default_is_named(defaults: Defaults, field: str) -> None:
    with pytest.raises(PayloadError, match=f"^{field}: neither"):
        record({"value": 1}, defaults)


def test_numeric_device_ids_are_texts() -> None:
    assert record({"value": 1, "device_id": 42}, DEFAULTS)["device_id"] == "42"


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (0, 0),
        (1486997194, 1486997194000),
        (1486997194.029, 1486997194029),
        (1486997194029, 1486997194029),
        (1486997194029.7, 1486997194029),
        (1486997194029123, 1486997194029),
        (1486997194029123456, 1486997194029),
        ("2017-02-13T14:46:34Z", 1486997194000),
        ("2017-02-13T15:46:34.029+01:00", 1486997194029),
        ("20170213T144634Z", 1486997194000),
        ("9999-12-31T23:59:59.999Z", 253402300799999),
    ],
)
def test_times_of_every_magnitude(time: object, ms: int) -> None:
    assert epoch_ms(time) == ms


@pytest.mark.parametrize(
    "time",
    [
        -1,
        math.nan,
        math.inf,
        True,
        None,
        "",
        "2017-02-13",
        "2017-02-13T14:46:34",
        "1486997194",
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        10**30,
    ],
)
def test_an_invalid_time_is_refused(time: object) -> None:
    with pytest.raises(PayloadError, match="not a time"):
        epoch_ms(time)


@given(st.integers(10**11, 253_402_300_799_999 // 10), st.integers(-14 * 60, 14 * 60))
@example(8_744_936_909_175, 0)
def test_every_way_to_write_a_moment_means_the_same(ms: int, offset_minutes: int) -> None:
    # From March 1973 (earlier ms count as seconds) to the largest nanoseconds in 64 bits.
    ms = min(ms, 9 * 10**12)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    local = moment.astimezone(timezone(timedelta(minutes=offset_minutes)))
    assert epoch_ms(ms) == ms
    assert epoch_ms(ms * 1000 + 999) == ms
    assert epoch_ms(ms * 1_000_000 + 999_999) == ms
    assert epoch_ms(local.isoformat()) == ms
    assert epoch_ms(ms // 1000) == ms // 1000 * 1000
    assert epoch_ms(ms / 1000) == ms


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(
    st.dictionaries(st.sampled_from(["device_id", "metric", "value", "unit", "event_time", "sequence", "x"]), _scalars)
)
def test_any_row_is_a_reading_or_a_payload_error(row: dict[str, Any]) -> None:
    try:
        made = record(row, DEFAULTS)
    except PayloadError:
        return
    assert math.isfinite(made["value"])
    assert made["device_id"]
    assert 0 <= made["event_time"] <= 253_402_300_799_999
    assert all(isinstance(text, str) for text in made["attributes"].values())


BOUND = DEFAULTS._replace(bound_device_id="7")


@pytest.mark.parametrize("row", [{"value": 1}, {"value": 1, "device_id": "7"}, {"value": 1, "device_id": 7}])
def test_bound_device_is_the_device(row: dict[str, Any]) -> None:
    assert record(row, BOUND)["device_id"] == "7"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(JSON_VALUES)
@example("victim")
@example("")
@example(7.0)
@example(True)
def test_no_row_names_another_device_than_the_bound_one(said: object) -> None:
    row = {"value": 1, "device_id": said}
    if said in (None, "7") or (type(said) is int and said == 7):
        assert record(row, BOUND)["device_id"] == "7"
    else:
        with pytest.raises(IdentityError, match="may speak for '7' only"):
            record(row, BOUND)


def test_base_name_of_senml_names_no_other_device_than_the_bound_one() -> None:
    def of(base_name: str) -> list[str]:
        rows = decode(b'[{"bn":"%b:","n":"temperature","v":1}]' % base_name.encode(), 110, now_ms=NOW_MS)
        return [record(row, BOUND)["device_id"] for row in rows]

    assert of("7") == ["7"]
    with pytest.raises(IdentityError):
        of("victim")


def test_bound_device_has_a_length_as_any_other() -> None:
    with pytest.raises(PayloadError, match="1 to 256"):
        record({"value": 1}, DEFAULTS._replace(bound_device_id="x" * 257))

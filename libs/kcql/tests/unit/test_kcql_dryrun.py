"""The dry run: KCQL applied to lines of JSON."""

import json
from typing import Any

import pytest

from isotherm.kcql import KcqlError, apply


def outcomes(text: str, *records: Any, envelope: bool = False) -> list[dict[str, Any]]:
    return list(apply(text, [json.dumps(record) for record in records], envelope=envelope))


def test_the_printed_form() -> None:
    text = """INSERT INTO temperatures SELECT device.id AS device_id, * FROM temperatures.grouped
              PK device.id, window_start WITHINDEXSUFFIX -{YYYY.MM.DD}"""
    value = {"device": {"id": "dev-1"}, "window_start": 1767225600000, "mean": 21.5}
    (outcome,) = outcomes(text, {"value": value, "timestamp": 1769817600000}, envelope=True)
    assert outcome == {
        "target": "temperatures-2026.01.31",
        "id": "dev-1-1767225600000",
        "row": {"device_id": "dev-1", **value},
    }
    assert list(outcome) == ["target", "id", "row"]
    assert list(outcome["row"]) == ["device_id", "device", "window_start", "mean"]


def test_without_a_pk_and_without_a_target() -> None:
    assert outcomes("SELECT a FROM s", {"a": 1}) == [{"target": None, "id": None, "row": {"a": 1}}]
    assert outcomes("SELECT a FROM s WITHTARGET=a", {"a": "t"})[0]["target"] == "t"


def test_a_record_that_the_condition_leaves_out_has_a_line_of_its_own() -> None:
    found = outcomes("INSERT INTO t SELECT a FROM s WHERE a > 1", {"a": 1}, {"a": 2}, {"b": 3}, {"a": "x"})
    assert found[:3] == [{"filtered": "where"}, {"target": "t", "id": None, "row": {"a": 2}}, {"filtered": "where"}]
    assert found[3] == {"error": '"a": is a text, and WHERE compares it with a number'}


def test_one_line_a_record_whatever_is_in_it() -> None:
    lines: list[str | bytes] = [
        '{"a": {"b": 1}}\n',
        "\n",
        "[1\n",
        '{"a": NaN}',
        b'{"a": {"b": "\xff"}}',
        b'{"a": {"b": 2}}\r\n',
        '{"a": 5}',
        "null",
        "[" * 100_000,
    ]
    found = list(apply("INSERT INTO t SELECT a.b FROM s", lines))
    assert [outcome.get("row") for outcome in found] == [{"b": 1}, None, None, None, {"b": 2}, None, {"b": None}, None]
    errors = [outcome["error"] for outcome in found if "error" in outcome]
    assert errors[0] == "not JSON: Expecting ',' delimiter at character 3"
    assert "NaN" in errors[1]
    assert errors[3] == '"a.b": leads through "a", which has no fields'


@pytest.mark.parametrize("records", [[{"a": 1}], [{"a": 1}, {"a": 2}]])
def test_a_date_needs_withtimestamp_or_the_envelope(records: list[Any]) -> None:
    text = "INSERT INTO t SELECT * FROM s WITHINDEXSUFFIX -{YYYY}"
    for outcome in outcomes(text, *records):
        assert outcome == {"error": 'the date in the suffix "-{YYYY}" needs WITHTIMESTAMP or the envelope'}
    assert outcomes(f"{text} WITHTIMESTAMP a", *records)[0]["target"] == "t-1970"
    assert outcomes(text, {"value": records[0], "timestamp": 0}, envelope=True)[0]["target"] == "t-1970"
    assert "needs an event time" in outcomes(text, {"value": records[0]}, envelope=True)[0]["error"]
    assert outcomes("INSERT INTO t SELECT * FROM s WITHINDEXSUFFIX -v1", *records)[0]["target"] == "t-v1"


def test_the_envelope_carries_every_part() -> None:
    text = "INSERT INTO _header.to SELECT _key.k, _.topic, _.partition, _.offset, _.timestamp, a FROM s"
    record = {
        "key": {"k": 1},
        "value": {"a": 2},
        "headers": {"to": "x"},
        "topic": "s",
        "partition": 3,
        "offset": 4,
        "timestamp": 5,
    }
    expected = {"k": 1, "topic": "s", "partition": 3, "offset": 4, "timestamp": 5, "a": 2}
    assert outcomes(text, record, envelope=True) == [{"target": "x", "id": None, "row": expected}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([1], "not an envelope"),
        ({"a": 1}, 'it has "a" beside key, value'),
        ({"headers": [1]}, '"headers" of the envelope is not an object'),
        ({"topic": 1}, '"topic" of the envelope is not a text'),
        ({"offset": True}, '"offset" of the envelope is not a whole number'),
        ({"timestamp": "now"}, '"timestamp" of the envelope is not a whole number'),
    ],
)
def test_what_is_no_envelope(record: Any, reason: str) -> None:
    (outcome,) = outcomes("SELECT _value FROM s", record, envelope=True)
    assert reason in outcome["error"]


def test_several_statements_take_the_records_of_their_topic() -> None:
    text = "INSERT INTO x SELECT a FROM devices/+/t; INSERT INTO y SELECT a FROM other; INSERT INTO z SELECT a FROM `*`"
    assert [o["target"] for o in outcomes(text, {"a": 1})] == ["x", "y", "z"]
    by_topic = outcomes(text, {"value": {"a": 1}, "topic": "devices/7/t"}, envelope=True)
    assert [o["target"] for o in by_topic] == ["x", "z"]
    two = "INSERT INTO x SELECT a FROM b; INSERT INTO y SELECT a FROM c"
    assert outcomes(two, {"value": {"a": 1}, "topic": "d"}, envelope=True) == [
        {"error": 'no statement reads the topic "d"'}
    ]


def test_a_single_statement_takes_any_record() -> None:
    assert outcomes("SELECT a FROM s", {"value": {"a": 1}, "topic": "other"}, envelope=True)[0]["row"] == {"a": 1}


def test_functions_of_the_dry_run() -> None:
    (known,) = outcomes("SELECT now() FROM s", {"a": 1})
    assert known["row"]["now"] > 1_700_000_000_000
    (unknown,) = outcomes("SELECT then() FROM s", {"a": 1})
    assert "then()" in unknown["error"]


def test_a_refused_statement_reads_no_line() -> None:
    lines = iter(["{}"])
    with pytest.raises(KcqlError):
        apply("SELECT", lines)
    assert list(lines) == ["{}"]

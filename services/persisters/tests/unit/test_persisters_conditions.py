"""WHERE in a sink: what is left out is counted as filtered, and no id, key or tombstone escapes the condition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import Record
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.servicekit.avro import SchemaRegistry

SELECT = "INSERT INTO a SELECT * FROM t"


class NoSchemas(SchemaRegistry):
    """No value here has a schema."""

    def __init__(self) -> None:
        pass


def projector(text: str) -> Projector:
    decoders = value_decoder("auto", NoSchemas()), key_decoder("auto", NoSchemas())
    return Projector(kcql.parse(text), *decoders, Conventions(ttl_unit_ms=1_000), lambda: 100_000.0)


def record(value: Any, offset: int = 0, **parts: Any) -> Record:
    data = None if value is None else json.dumps(value).encode()
    said: dict[str, Any] = {"timestamp_ms": 1_111, "key": b"k", "headers": ()}
    return Record("t", 2, offset, value=data, **{**said, **parts})


def test_what_the_condition_leaves_out_is_filtered_and_counted() -> None:
    read = [record({"n": number}, number) for number in (1, 2, 3)] + [record({"n": None}, 4), record({}, 5)]
    batch = InFlightBatch.prepare(read, ErrorPolicy(Policy.THROW), projector(f"{SELECT} WHERE n >= 2"))
    assert [row.values for row in batch.rows] == [{"n": 2}, {"n": 3}]
    batch.rows = []
    counts = batch.count_outcomes()
    assert (counts.written, counts.filtered) == (2, {"where": 3})
    assert batch.end == 6


def test_a_value_that_the_condition_cannot_be_asked_of_is_a_bad_record() -> None:
    prepared = projector(f"{SELECT} WHERE n >= 2")(record({"n": "two"}))
    assert prepared.failed is not None
    assert (prepared.failed.stage, prepared.failed.reason) == ("TRANSFORMATION", "projection")


@pytest.mark.parametrize(
    ("condition", "parts", "others"),
    [
        ("_key.id = 'x'", {"key": b'{"id": "x"}'}, {"key": b'{"id": "y"}'}),
        ("_key = 'x'", {"key": b"x"}, {"key": b"y"}),
        ("_header.h = 'x'", {"headers": [("h", b"x")]}, {}),
        ("_.timestamp > TIMESTAMP '1970-01-01T00:00:02Z'", {"timestamp_ms": 2_001}, {}),
    ],
)
def test_the_condition_reads_every_part_of_the_record(
    condition: str, parts: dict[str, Any], others: dict[str, Any]
) -> None:
    project = projector(f"{SELECT} WHERE {condition}")
    assert len(project(record({}, **parts)).rows) == 1
    assert project(record({}, **others)).filtered == "where"


def test_of_several_statements_each_has_its_condition() -> None:
    project = projector(f"{SELECT} WHERE n < 5; INSERT INTO b SELECT * FROM t WHERE n > 3")
    targets = [[row.target for row in project(record({"n": number})).rows] for number in (1, 4, 9)]
    assert targets == [["a"], ["a", "b"], ["b"]]


def test_a_tombstone_meets_the_condition_only_by_its_key_and_headers() -> None:
    deleting = f"{SELECT} PK _key PROPERTIES('behavior.on.null.values'=DELETE)"
    assert projector(f"{deleting} WHERE n > 5")(record(None)).filtered == "where"
    (row,) = projector(f"{deleting} WHERE _value IS NULL OR n > 5")(record(None)).rows
    assert (row.id, row.values) == ("k", None)
    assert projector(f"{SELECT} WHERE _key = 'k'")(record(None)).filtered == "tombstone"


def test_an_expired_record_is_counted_as_such_only_if_the_condition_is_true() -> None:
    project = projector(f"{SELECT} TTL=5 WHERE n > 5")
    assert project(record({"n": 9})).filtered == "expired"
    assert project(record({"n": 1})).filtered == "where"

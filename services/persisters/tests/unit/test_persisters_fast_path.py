"""Rows of a whole batch equal those of its records; the fast path leaves any other batch to the slow one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch, Outcome
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.servicekit.avro import (
    JsonSchema,
    SchemaRegistry,
    UnknownSchemaError,
    WriterSchema,
    encoder,
    parse,
)

NOW_MS = 1_767_225_660_000
SELECT = "INSERT INTO a SELECT * FROM t"
MANY = 120
"""Enough records for the fast path."""
DATED = f"{SELECT} WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
DECLARED: Mapping[str, Any] = {
    "type": "record",
    "name": "Declared",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
    "isotherm.identity": "name,at",
    "isotherm.event_time": "at",
    "isotherm.revision": "n",
}
NESTED: Mapping[str, Any] = {
    **DECLARED,
    "fields": [*DECLARED["fields"], {"name": "list", "type": {"type": "array", "items": "long"}, "default": []}],
}
KNOWN: dict[int, Mapping[str, Any]] = {
    7: DECLARED,
    8: NESTED,
    9: {**DECLARED, "isotherm.identity": "name,note"},
    10: {**DECLARED, "isotherm.identity": "at,name,n"},
    11: {**DECLARED, "isotherm.identity": "note,name"},
}

values: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": st.text(max_size=80) | st.text("a-%", max_size=3),
        "at": st.integers(NOW_MS - 100_000, NOW_MS),
        "n": st.integers(-(2**63), 2**63 - 1),
        "note": st.none() | st.text(max_size=80),
        "tags": st.dictionaries(st.text(), st.text(), max_size=2),
    }
)


class Schemas(SchemaRegistry):
    """The registry's look-up by id, from memory."""

    def __init__(self) -> None:
        pass

    def schema(self, schema_id: int) -> WriterSchema:
        if schema_id not in KNOWN:
            raise UnknownSchemaError(schema_id)
        found: JsonSchema = dict(KNOWN[schema_id])
        return WriterSchema(schema_id, found, parse(found))


def projector(text: str = DATED, retention_ms: int | None = None) -> Projector:
    schemas = Schemas()
    decoders = value_decoder("auto", schemas), key_decoder("auto", schemas)
    return Projector(kcql.parse(text), *decoders, Conventions(retention_ms=retention_ms), lambda: float(NOW_MS))


def records(data: Sequence[bytes | None]) -> list[Record]:
    return [Record("t", 2, 30 + place, 1_111, b"k", one, ()) for place, one in enumerate(data)]


def written(value: Mapping[str, Any], schema_id: int = 7) -> bytes:
    return encoder(dict(KNOWN[schema_id]), schema_id)({**value, "list": []} if schema_id == 8 else value)


def one_by_one(project: Projector, batch: list[Record]) -> list[Row]:
    """Project the records one by one, which also makes the projector learn the schema."""
    return [row for record in batch for row in project(record).rows]


def essence(rows: Sequence[Row]) -> object:
    return [(one.offset, one.target, one.id, one.values, one.event_time_ms, one.revision, one.raw) for one in rows]


@given(
    batch=st.lists(values, min_size=1, max_size=5),
    text=st.sampled_from([SELECT, DATED, f"{SELECT} WITHINDEXSUFFIX -{{HH}}"]),
    retention_ms=st.sampled_from([None, 50_000]),
    times=st.sampled_from([1, MANY]),
    schema_id=st.sampled_from([7, 10]),
)
def test_rows_of_a_batch_are_those_of_its_records(
    batch: list[dict[str, Any]], text: str, retention_ms: int | None, times: int, schema_id: int
) -> None:
    project, read = projector(text, retention_ms), records([written(value, schema_id) for value in batch] * times)
    expected = one_by_one(project, read)
    found = project.try_project_batch(read)
    if len(expected) < len(read):
        assert found is None, "some of them are past their time"
    else:
        assert found is not None
        assert essence(found) == essence(expected)


@given(
    batch=st.lists(values, min_size=1, max_size=5),
    condition=st.sampled_from(
        ["n > 0", "note IS NULL OR name LIKE '%a%'", "n < 0 AND note = '' OR at < 1767225600000"]
    ),
    times=st.sampled_from([1, MANY]),
)
def test_a_batch_keeps_the_records_that_each_keeps_alone(
    batch: list[dict[str, Any]], condition: str, times: int
) -> None:
    project, read = projector(f"{DATED} WHERE {condition}"), records([written(value) for value in batch] * times)
    alone = InFlightBatch.prepare(read, ErrorPolicy(Policy.THROW), project)
    together = InFlightBatch.prepare(read, ErrorPolicy(Policy.THROW), project, project.try_project_batch)
    assert project.try_project_batch(read) is not None, "the fast path takes it"
    assert essence(together.rows) == essence(alone.rows)
    assert together.outcomes == alone.outcomes
    assert set(alone.outcomes.values()) <= {(Outcome.FILTERED, "where")}
    assert len(alone.outcomes) + len(alone.rows) == len(read)


@pytest.mark.parametrize("schema_id", [7, 9, 10, 11])
@given(one=values, other=values)
def test_different_identities_have_different_ids(schema_id: int, one: dict[str, Any], other: dict[str, Any]) -> None:
    names = KNOWN[schema_id]["isotherm.identity"].split(",")
    project = projector(SELECT)
    ids = [row.id for row in one_by_one(project, records([written(each, schema_id) for each in (one, other)]))]
    assert (ids[0] == ids[1]) == ([one[name] for name in names] == [other[name] for name in names])


def test_the_separator_within_a_part_is_told_apart_in_batches_too() -> None:
    """`room` with `inside-temp`, `room-inside` with `temp`: two identities."""
    fields = [{"name": name, "type": "string"} for name in ("device", "metric")]
    schema = {**DECLARED, "fields": [*DECLARED["fields"], *fields], "isotherm.identity": "device,metric,at,n"}
    value = {"name": "", "at": NOW_MS, "n": 1, "note": None, "tags": {}}
    devices = [("room", "inside-temp"), ("room-inside", "temp")]
    with mock.patch.dict(KNOWN, {12: schema}):
        encode = encoder(schema, 12)
        project = projector(SELECT)
        batch = records([encode({**value, "device": device, "metric": metric}) for device, metric in devices] * MANY)
        alone = [row.id for row in one_by_one(project, batch)]
        together = project.try_project_batch(batch)
    assert alone[:2] == [f"room-inside%2Dtemp-{NOW_MS}-1", f"room-inside-temp-{NOW_MS}-1"]
    assert together is not None
    assert [row.id for row in together] == alone


def test_a_null_an_empty_text_and_null_as_a_text_are_three_identities() -> None:
    project = projector(SELECT)
    value = {"name": "x", "at": NOW_MS, "n": 1, "note": None, "tags": {}}
    notes = (None, "", "null", "%")
    later, first = (
        [row.id for row in one_by_one(project, records([written({**value, "note": note}, id_) for note in notes]))]
        for id_ in (9, 11)
    )
    assert later == ["x-", "x-%", "x-null", "x-%25"]
    assert first == ["-x", "%-x", "null-x", "%%-x"]


PLAIN = written({"name": "x", "at": NOW_MS, "n": 1, "note": None, "tags": {}})
LONG = written({"name": "x" * 70, "at": NOW_MS, "n": 1, "note": "y" * 5_000, "tags": {}})


@pytest.mark.parametrize("plain", [1, MANY])
def test_texts_that_fastavro_has_to_read_take_the_fast_path_too(plain: int) -> None:
    project = projector()
    one_by_one(project, records([PLAIN]))
    found = project.try_project_batch(records([PLAIN] * plain + [LONG]))
    assert found is not None
    assert [len(row.id) for row in found] == [15] * plain + [84]


@pytest.mark.parametrize(
    "other",
    [
        None,
        b"",
        b"\x00\x00",
        PLAIN[:-1],
        PLAIN + b"\x00",
        b"{}",
        written({"name": "x", "at": 1, "n": 1, "note": None, "tags": {}}, 8),
        written({"name": "x", "at": 300_000_000_000_000, "n": 1, "note": None, "tags": {}}),
    ],
    ids=["no value", "empty", "short", "cut", "too long", "JSON", "another schema", "a time without a date"],
)
def test_a_batch_with_anything_else_is_left_to_single_records(other: bytes | None) -> None:
    project = projector()
    one_by_one(project, records([PLAIN]))
    for plain in ([PLAIN], [PLAIN] * MANY):
        assert project.try_project_batch(records([*plain, other])) is None
        assert project.try_project_batch(records([other, *plain])) is None


@pytest.mark.parametrize(
    ("text", "schema_id"),
    [
        ("INSERT INTO a SELECT name, at, n FROM t", 7),
        (f"{SELECT} PK name", 7),
        (f"{SELECT} WITHTIMESTAMP n", 7),
        ("INSERT INTO a SELECT * FROM t IGNORE note", 7),
        (f"{SELECT} WHERE _key = 'k'", 7),
        (f"{SELECT}; INSERT INTO b SELECT * FROM t", 7),
        (SELECT, 8),
        (SELECT, 9),
    ],
)
def test_other_statements_and_schemas_are_left_to_single_records(text: str, schema_id: int) -> None:
    project = projector(text)
    batch = records([written({"name": "x", "at": NOW_MS, "n": 1, "note": "z", "tags": {}}, schema_id)])
    assert one_by_one(project, batch)
    assert project.try_project_batch(batch) is None


def test_a_batch_is_prepared_from_a_batch_and_from_single_records_alike() -> None:
    project, batch = projector(), records([PLAIN, PLAIN])
    policy = ErrorPolicy(Policy.THROW)
    assert project.try_project_batch(batch) is None, "the schema is not known yet"
    first = InFlightBatch.prepare(batch, policy, project, project.try_project_batch)
    assert project.try_project_batch(batch) is not None
    second = InFlightBatch.prepare(batch, policy, project, project.try_project_batch)
    assert essence(first.rows) == essence(second.rows)
    assert (first.end, second.end) == (32, 32)
    third = InFlightBatch.prepare(records([PLAIN, b"\x00", PLAIN]), policy, project, project.try_project_batch)
    assert third.stopped_at is not None
    assert (len(third.rows), third.end) == (1, 31)

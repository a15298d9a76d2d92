"""Transforms in a sink: what the statements see, what is counted, and that nothing untransformed reaches a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from isotherm import kcql
from isotherm.connector.transforms.catalog import PACKAGE
from isotherm.connector.transforms.chain import read_chain
from isotherm.persisters import configuration
from isotherm.persisters.api.record import Record
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import key_decoder, value_decoder
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.records.transforming import RecordTransforms
from isotherm.persisters.sinks.hazelcast.items import content, encoder
from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry, WriterSchema, parse

READING: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": "double"},
    ],
    "isotherm.identity": "device,at",
    "isotherm.event_time": "at",
}
AT_MS = 1_769_860_800_123
VALUE = {"device": "attic", "at": AT_MS, "value": 21.5}


class OneSchema(SchemaRegistry):
    """The registry's look-up by id, from memory."""

    def __init__(self) -> None:
        pass

    def schema(self, schema_id: int) -> WriterSchema:
        return WriterSchema(schema_id, READING, parse(READING))


def projector(text: str, given: Mapping[str, str], converter: str = "auto", *, envelope: bool = False) -> Projector:
    chain, problems = read_chain(given)
    assert not problems
    assert chain is not None
    decoders = value_decoder(converter, OneSchema(), envelope=envelope), key_decoder("auto", OneSchema())
    return Projector(kcql.parse(text), *decoders, Conventions(), transforms=RecordTransforms(chain))


def chain_of(*steps: tuple[str, dict[str, str]]) -> dict[str, str]:
    given = {"transforms": ",".join(f"s{index}" for index in range(len(steps)))}
    for index, (kind, options) in enumerate(steps):
        given[f"transforms.s{index}.type"] = f"{PACKAGE}{kind}"
        given |= {f"transforms.s{index}.{key}": value for key, value in options.items()}
    return given


def record(value: bytes | None, key: bytes | None = b"k", topic: str = "t") -> Record:
    return Record(topic, 2, 33, AT_MS, key, value, [("h", b"x")])


AVRO = avro.encoder(READING, 7)(VALUE)
SELECT = "INSERT INTO a SELECT * FROM `*`"


def test_the_statements_see_the_transformed_record() -> None:
    given = chain_of(
        ("RegexRouter", {"regex": "(.*)", "replacement": "$1-x"}),
        ("InsertField$Value", {"topic.field": "topic"}),
        ("HeaderFrom$Value", {"fields": "device", "headers": "device", "operation": "copy"}),
        ("ValueToKey", {"fields": "value"}),
    )
    fields = "value, topic, _header.device, _key.value AS k, _.topic AS now"
    text = f"INSERT INTO a SELECT {fields} FROM `t-x` WHERE topic = 't-x'"
    (row,) = projector(text, given)(record(AVRO)).rows
    assert row.values == {"value": 21.5, "topic": "t-x", "device": "attic", "k": 21.5, "now": "t-x"}
    assert row.id == f"attic-{AT_MS}", "the identity that the schema declares"
    assert row.event_time_ms == AT_MS
    assert row.plan.columns["topic"] == "string", "AUTOCREATE knows the new column"
    assert projector(text.replace("t-x` WHERE", "t` WHERE"), given)(record(AVRO)).filtered == "no_statement"


def test_masked_devices_do_not_become_one_row() -> None:
    project = projector(SELECT, chain_of(("MaskField$Value", {"fields": "device"})))
    first = project(record(AVRO)).rows[0]
    assert first.values == {**VALUE, "device": ""}
    assert first.id == "t-2-33", "topic, partition and offset: the schema's identity is gone"


@pytest.mark.parametrize("format_", ["AVRO", "JSON", "TEXT"])
def test_no_format_stores_what_was_masked(format_: str) -> None:
    masked = projector(SELECT, chain_of(("MaskField$Value", {"fields": "device", "replacement": "***"})))
    (row,) = masked(record(AVRO)).rows
    assert row.raw is None
    stored = content(encoder(format_)(row))
    assert b"attic" not in stored
    assert b"***" in stored


def test_filtered_and_bad_records_are_counted_as_such() -> None:
    assert projector(SELECT, chain_of(("Filter", {})))(record(AVRO)).filtered == "transform"
    prepared = projector(SELECT, chain_of(("Cast$Value", {"spec": "device:int8"})))(record(AVRO))
    assert prepared.failed is not None
    assert (prepared.failed.stage, prepared.failed.reason) == ("TRANSFORMATION", "transform")
    assert prepared.failed.record.value == AVRO, "the dead letter has the record as it came"


def test_a_batch_does_not_pass_the_transforms() -> None:
    project = projector(SELECT, chain_of(("InsertField$Value", {"offset.field": "o"})))
    assert project(record(AVRO)).rows
    assert project.try_project_batch([record(AVRO)] * 200) is None


def test_a_tombstone_goes_through_and_deletes_by_the_transformed_key() -> None:
    text = "INSERT INTO a SELECT * FROM t PK _key PROPERTIES('behavior.on.null.values'=DELETE)"
    project = projector(text, chain_of(("ExtractField$Key", {"field": "id"})))
    (row,) = project(record(None, b'{"id": "x"}')).rows
    assert (row.id, row.values) == ("x", None)


def test_data_that_are_no_record_any_more_have_no_fields() -> None:
    prepared = projector(SELECT, chain_of(("ExtractField$Value", {"field": "value"})))(record(AVRO))
    assert prepared.failed is not None
    assert prepared.failed.reason == "projection"


def test_values_without_a_schema_and_with_an_envelope() -> None:
    given = chain_of(("Cast$Value", {"spec": "n:string"}), ("InsertField$Value", {"partition.field": "p"}))
    (row,) = projector(SELECT, given)(record(b'{"n": 5}')).rows
    assert row.values == {"n": "5", "p": 2}
    assert row.plan.columns == {}
    schema = {"type": "struct", "fields": [{"field": "n", "type": "int32", "optional": True}]}
    data = json.dumps({"schema": schema, "payload": {"n": 5}}).encode()
    (row,) = projector(SELECT, given, "json", envelope=True)(record(data)).rows
    assert row.values == {"n": "5", "p": 2}
    assert row.plan.columns == {"n": "string", "p": "int"}


def test_the_example_masks_and_filters() -> None:
    file = Path(__file__).parents[4] / "examples/filter-and-mask/warm-readings-to-postgresql.properties"
    _, _, checked = configuration.load(None, file, resolve=False)
    assert checked.notices == ()
    chain, _ = read_chain(checked.values)
    assert chain is not None
    decoders = value_decoder("json", OneSchema()), key_decoder("auto", OneSchema())
    project = Projector(checked.statements, *decoders, Conventions(), transforms=RecordTransforms(chain))
    reading = {"device_id": "d", "metric": "temperature", "event_time": 1, "sequence": 0, "attributes": {"owner": "x"}}
    outcomes = []
    for value in (20.0, 30.0):
        data = json.dumps({**reading, "value": value, "unit": "Cel"}).encode()
        made = project(record(data, topic="thermostat.data"))
        outcomes.append(made.filtered or made.rows[0].values)
    assert outcomes == ["where", {**reading, "value": 30.0, "attributes": {}, "origin": "thermostat.data"}]

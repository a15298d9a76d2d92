"""The catalog passes the gate; known bad changes are refused, each by its rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import isotherm.schemas
from isotherm.contracts import schema_catalog
from isotherm.contracts.compatibility.gate import (
    check,
    counterexample,
    pinned,
    rules,
)
from isotherm.contracts.consumers import NEEDS

CATALOG = schema_catalog.current()
# The gate is tried with the first versions only: what it says does not change when the catalog grows.
FIRST = replace(CATALOG, schemas={record: {1: versions[1]} for record, versions in CATALOG.schemas.items()})
READING = FIRST.schema("SensorReading", 1)
Change = Callable[[dict[str, Any]], object]


def _changed(schema: schema_catalog.JsonSchema, change: Change) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(schema))
    change(copied)
    return copied


def _field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (field for field in schema["fields"] if field["name"] == name)
    assert isinstance(found, dict)
    return found


def _without(name: str) -> Change:
    return lambda schema: schema["fields"].remove(_field(schema, name))


def _with(**field: Any) -> Change:
    return lambda schema: schema["fields"].append(field)


def _verdict(record: str, change: Change) -> list[str]:
    changed = FIRST.with_schema(record, 2, _changed(FIRST.schema(record, 1), change))
    return [str(finding) for finding in check(changed, pinned(), NEEDS).findings]


def test_every_version_fits_every_version() -> None:
    verdict = check(CATALOG, pinned(), NEEDS)
    assert verdict.findings == []
    assert verdict.pairs == sum(
        len(CATALOG.versions(record)) * (len(CATALOG.versions(record)) - 1) for record in CATALOG.schemas
    )


@pytest.mark.parametrize("record", sorted(CATALOG.schemas))
def test_every_version_brings_back_what_it_was_given(record: str) -> None:
    for schema in CATALOG.schemas[record].values():
        assert list(rules(schema, schema)) == []
        assert counterexample(schema, schema) is None


def test_pinned_versions_are_those_of_the_topic_files() -> None:
    assert ("aggregator", 1) in pinned()["SensorReading"]
    assert set(pinned()) <= set(isotherm.schemas.records())


@pytest.mark.parametrize(
    ("record", "change", "says"),
    [
        pytest.param(
            "SensorReading",
            lambda schema: _field(schema, "value").update(name="reading"),
            ["v1 (aggregator, alerts, console, demo, persisters)", ": value: READER_FIELD_MISSING_DEFAULT_VALUE"],
            id="rename a field",
        ),
        pytest.param(
            "Device",
            lambda schema: _field(schema, "room").update(type="null"),
            ["Device: reader v2 (aggregator) cannot read writer v1: room: TYPE_MISMATCH"],
            id="narrow a union",
        ),
        pytest.param(
            "Device",
            lambda schema: _field(schema, "room").update(type=["null", "string", "long"]),
            ["Device: reader v1 (alerts, console) cannot read writer v2: room: MISSING_UNION_BRANCH"],
            id="widen a union",
        ),
        pytest.param(
            "SensorReading",
            lambda schema: _field(schema, "sequence").pop("default"),
            ["SensorReading: reader v2 cannot read writer any later one: sequence: DEFAULT_REMOVED"],
            id="remove a default",
        ),
        pytest.param(
            "SensorReading",
            _without("unit"),
            ["cannot read writer v2: unit: READER_FIELD_MISSING_DEFAULT_VALUE"],
            id="remove a field without a default",
        ),
        pytest.param(
            "SensorReading",
            _with(name="quality", type="string"),
            ["reader v2 (any later one) cannot read writer v1: quality: READER_FIELD_MISSING_DEFAULT_VALUE"],
            id="add a field without a default",
        ),
        pytest.param(
            "TemperatureAggregate",
            lambda schema: _field(schema, "count").update(type="string"),
            ["count: TYPE_MISMATCH", "reader v1 (alerts, console, demo, persisters)"],
            id="another type",
        ),
        pytest.param(
            "TemperatureAggregate",
            lambda schema: _field(schema, "count").update(type="double"),
            ["count: generated record", "is read as"],
            id="a promotion that loses digits",
        ),
        pytest.param(
            "MqttSession",
            lambda schema: _field(_field(schema, "committed")["type"]["items"], "crc32").update(type="double"),
            ["committed: generated record", "is read as"],
            id="a promotion that loses digits, in a record within",
        ),
        pytest.param(
            "SensorReading",
            lambda schema: schema.update(name="Reading"),
            ["NAME_MISMATCH"],
            id="rename the record",
        ),
        pytest.param(
            "SensorReading",
            _without("sequence"),
            ["sequence: NEEDED_FIELD", "demo, persisters-cassandra, persisters-elasticsearch"],
            id="remove a field with a default that is needed",
        ),
    ],
)
def test_known_bad_change_is_refused(record: str, change: Change, says: list[str]) -> None:
    findings = "\n".join(_verdict(record, change))
    for part in says:
        assert part in findings, findings


@pytest.mark.parametrize(
    ("record", "change"),
    [
        pytest.param("SensorReading", _with(name="quality", type="string", default="good"), id="field with a default"),
        pytest.param("Device", lambda schema: schema["fields"].reverse(), id="another order"),
        pytest.param("Device", lambda schema: schema.update(doc="Other words."), id="other words"),
    ],
)
def test_good_change_passes(record: str, change: Change) -> None:
    assert _verdict(record, change) == []


def test_removing_what_has_a_default_and_nobody_needs_passes_and_is_told() -> None:
    changed = FIRST.with_schema("CoapMessage", 2, _changed(FIRST.schema("CoapMessage", 1), _without("proxy_uri")))
    verdict = check(changed, pinned(), NEEDS)
    assert verdict.findings == []
    assert verdict.notes == ["CoapMessage v2 removes proxy_uri (default null): no consumer needs it"]


def test_a_change_is_judged_against_every_version_and_not_only_the_last() -> None:
    """Version 2 brings a field with a default, version 3 takes the default back: 2 and 3 agree, 1 and 3 do not."""
    second = _changed(READING, _with(name="quality", type="string", default="good"))
    third = _changed(second, lambda schema: _field(schema, "quality").pop("default"))
    assert list(rules(third, second)) == []
    assert list(rules(third, READING)) == [("quality", "READER_FIELD_MISSING_DEFAULT_VALUE", "quality")]


def test_one_record_would_not_have_found_a_narrowed_union() -> None:
    wide = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long", "string"]}]}
    narrow = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}]}
    found = counterexample(narrow, wide)
    assert found is not None
    assert found[0] == "a"
    assert counterexample(wide, narrow) is None

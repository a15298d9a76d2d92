"""Avro schemas with which a few bytes make many values, and hostile bytes for harmless schemas."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm.flatavro.growth import GrowthError, check_growth
from isotherm.servicekit.avro import WireFormatError, WriterSchema, is_recursive, parse, read_value

HEADER = bytes(5)
EMPTY = {"type": "record", "name": "E", "fields": []}


def record(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": of} for name, of in types.items()]}


def doubling(levels: int) -> dict[str, Any]:
    """A record with two of the one below, and so on: without a byte it holds 2**levels records."""
    inner: dict[str, Any] = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, levels + 1):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": inner["name"]}]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    return inner


@pytest.mark.parametrize(
    "schema",
    [
        record(a={"type": "array", "items": "null"}),
        record(a={"type": "array", "items": EMPTY}),
        record(a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        record(
            a={"type": "array", "items": {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}]}}
        ),
        record(a={"type": "map", "values": doubling(5)}),
        record(a=doubling(20)),
        record(a=doubling(150)),
        record(
            many={
                "type": "array",
                "items": {**doubling(8), "fields": [*doubling(8)["fields"], {"name": "i", "type": "int"}]},
            }
        ),
        record(a=doubling(4), next=["null", "R"]),
    ],
    ids=["nulls", "empty records", "fixed 0", "null fields", "map", "doubling", "tower", "doubling items", "recursive"],
)
def test_schemas_that_make_much_of_few_bytes_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrowthError):
        check_growth(schema)


@pytest.mark.parametrize(
    "schema",
    [
        record(a="null", b=EMPTY, c={"type": "fixed", "name": "F", "size": 0}),
        record(value="string", next=["null", "R"]),
        record(value="int", children={"type": "array", "items": "R"}),
        record(a={"type": "array", "items": ["null", "int"]}, b={"type": "map", "values": "null"}),
        record(a={"type": "array", "items": {"type": "array", "items": "boolean"}}),
    ],
)
def test_usual_schemas_are_accepted(schema: dict[str, Any]) -> None:
    check_growth(schema)


def test_every_schema_of_the_suite_is_accepted() -> None:
    for topic in isotherm.schemas.topics():
        for version in isotherm.schemas.versions(topic.record) if topic.record else ():
            check_growth(isotherm.schemas.schema(topic.record or "", version))


def read(schema: dict[str, Any], body: bytes) -> Any:
    return read_value(HEADER + body, WriterSchema(0, schema, parse(schema), is_recursive(schema)))


def test_an_integer_has_at_most_ten_bytes_in_a_recursive_schema_too() -> None:
    # The reader in Python, which such schemas need, takes minutes for the first one.
    for body in (b"\xff" * 1_000_000 + b"\x01", b"\xff" * 9 + b"\x7f" + b"\x00" * 1_000):
        with pytest.raises(WireFormatError, match="ten bytes or 64 bits"):
            read(record(value="long", next=["null", "R"]), body)


@given(st.integers(-(10**60), 10**60))
def test_a_decimal_keeps_its_digits_beyond_the_declared_precision(unscaled: int) -> None:
    schema = record(a={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3})
    data = unscaled.to_bytes(26, "big", signed=True)
    assert read(schema, bytes([52]) + data)["a"].as_tuple() == Decimal(f"{unscaled}E-3").as_tuple()


def test_a_decimal_of_many_bytes_is_a_bad_record() -> None:
    schema = record(a={"type": "bytes", "logicalType": "decimal", "precision": 10})
    with pytest.raises(WireFormatError):
        read(schema, b"\xa0\x1f" + b"\x7f" * 2_000)

"""JSON Schema in Avro's terms, and values behind its ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isotherm.connector.transforms.schemas import DATE, TIMESTAMP
from isotherm.persisters.records.json_schema import UnknownShapeError, avro_of_json_schema
from isotherm.persisters.records.registry_formats import JsonSchemaDecoder
from isotherm.servicekit.avro import RegisteredSchema, SchemaReference, SchemaRegistry, WireFormatError

READING: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "house.Reading",
    "type": "object",
    "properties": {
        "device": {"type": "string", "connect.index": 1},
        "value": {"type": "number", "connect.index": 0},
        "count": {"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int16"}], "connect.index": 2},
        "at": {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp", "connect.index": 3},
        "day": {"type": "integer", "title": "org.apache.kafka.connect.data.Date", "connect.index": 4},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}, "connect.index": 5},
        "list": {"type": "array", "items": {"$ref": "#/definitions/item"}, "connect.index": 6},
        "room": {"$ref": "room.json", "connect.index": 7},
        "level": {"type": ["integer", "null"], "connect.index": 8},
        "kind": {"enum": ["hot", "cold"], "connect.index": 9},
        "deep": {"$ref": "room.json#/properties/name", "connect.index": 10},
    },
    "required": ["device", "value", "at", "day", "tags", "list", "kind"],
    "definitions": {"item": {"properties": {"n": {"type": "boolean"}}, "required": ["n"]}},
}
ROOM = {"type": "object", "title": "Room", "properties": {"name": {"type": "string"}}}


def test_an_object_is_a_record() -> None:
    made = avro_of_json_schema(READING, {"room.json": ROOM})
    assert (made["namespace"], made["name"]) == ("house", "Reading")
    types = {one["name"]: one["type"] for one in made["fields"]}
    assert list(types)[:3] == ["value", "device", "count"], "in the converter's order"
    assert types["device"] == "string"
    assert types["count"] == ["null", {"type": "int", "connect.type": "int16"}]
    assert (types["at"], types["day"]) == (TIMESTAMP, DATE)
    assert types["tags"] == {"type": "map", "values": "string"}
    assert types["list"]["items"]["fields"] == [{"name": "n", "type": "boolean"}]
    assert types["room"][1]["fields"] == [{"name": "name", "type": ["null", "string"], "default": None}]
    assert types["level"] == ["null", "long"]
    assert types["deep"] == ["null", "string"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string"}, "not the schema of an object"),
        (True, "says nothing"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "several types"),
        (
            {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
            "2 alternatives",
        ),
        ({"type": "object", "properties": {"a": {}}}, "the type None"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "holds itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, "leads nowhere"),
        ({"type": "object", "properties": {"a": {"$ref": "x.json"}}}, "not among the references"),
        ({"type": "object"}, "says nothing"),
    ],
)
def test_what_says_too_little_is_told(schema: Any, told: str) -> None:
    with pytest.raises(UnknownShapeError, match=told):
        avro_of_json_schema(schema, {})


class Registry(SchemaRegistry):
    """Schemas by id and by subject, from memory."""

    def __init__(self) -> None:
        pass

    def registered(self, schema_id: int) -> RegisteredSchema:
        return {
            1: RegisteredSchema("JSON", json.dumps(READING), (SchemaReference("room.json", "room", 3),)),
            2: RegisteredSchema("JSON", '{"type": "object"}', ()),
            3: RegisteredSchema("AVRO", '"string"', ()),
        }[schema_id]

    def version(self, subject: str, version: int) -> RegisteredSchema:
        assert (subject, version) == ("room", 3)
        return RegisteredSchema("JSON", json.dumps(ROOM), ())


def test_values_behind_an_id() -> None:
    decode = JsonSchemaDecoder(Registry())
    found = decode(b'\0\0\0\0\1{"value": 1.5}')
    assert found.value == {"value": 1.5}
    assert found.writer is not None
    assert found.writer.json["name"] == "Reading"
    assert decode(b"\0\0\0\0\2{}").writer is None, "like JSON without a schema"
    with pytest.raises(WireFormatError, match="is one of AVRO, not of JSON"):
        decode(b"\0\0\0\0\3{}")
    with pytest.raises(ValueError, match="unexpected end of data"):
        decode(b"\0\0\0\0\1{")

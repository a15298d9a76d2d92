"""Values of Protocol Buffers and JSON Schema through a real registry into a table that AUTOCREATE makes."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory  # type: ignore[import-untyped]  # it ships no types
from psycopg.rows import dict_row

from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Batch
from isotherm.persisters.configuration import check, projector
from isotherm.persisters.records.protobuf.files import message_type
from isotherm.persisters.records.protobuf.proto_text import read_proto
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.registry_client import Schema, SchemaRegistryClient
from isotherm.servicekit.settings import RegistrySettings
from isotherm.stack.servers.postgresql import Postgresql
from isotherm.stack.servers.registry import Registry

# After the registry's client, which is imported without its OAuth library.
from confluent_kafka.schema_registry import SchemaReference  # isort: skip
from confluent_kafka.schema_registry.json_schema import JSONSerializer  # isort: skip

pytestmark = pytest.mark.integration

AT_MS = 1_769_860_800_123
ROOM = 'syntax = "proto3"; package house; message Room { string name = 1; }'
READING = """syntax = "proto3";
package house;
import "google/protobuf/timestamp.proto";
import "room.proto";
message Ignored { string x = 1; }
message Reading {
  string device = 1; double value = 2; optional int32 count = 3; google.protobuf.Timestamp at = 4;
  Kind kind = 5; Room room = 6;
  enum Kind { COLD = 0; HOT = 1; }
}
"""
JSON_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Reading",
    "type": "object",
    "properties": {
        "device": {"type": "string"},
        "value": {"type": "number"},
        "count": {"type": ["integer", "null"]},
        "at": {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"},
        "kind": {"enum": ["COLD", "HOT"]},
        "room": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
    "required": ["device", "value", "at"],
}
VALUE = {"device": "attic", "value": 21.5, "count": None, "at": AT_MS, "kind": "HOT", "room": {"name": "loft"}}


class World:
    """A registry, and a table of one test's own."""

    def __init__(self, registry: Registry, postgresql: Postgresql) -> None:
        self.topic = f"t{uuid.uuid4().hex[:10]}"
        self.url = registry.url
        self.client = SchemaRegistryClient({"url": registry.url})
        self._postgresql = postgresql

    def stored(self, data: bytes, converter: str) -> list[dict[str, Any]]:
        """What the table holds after a value was written to it."""
        server: Any = self._postgresql
        keys = {
            "name": "n",
            "connector.class": "postgresql",
            "topics": self.topic,
            "host": "127.0.0.1",
            "port": str(server.port),
            "database": server.database,
            "username": server.user,
            "password": server.password,
            "value.converter": converter,
            "kcql": f"INSERT INTO {self.topic} SELECT * FROM {self.topic} PK device AUTOCREATE",
        }
        kind = installed_sinks()["postgresql"]
        config = check(kind, from_mapping(keys))
        registry = SchemaRegistry(RegistrySettings(url=self.url))
        prepared = projector(kind, config, registry)(Record(self.topic, 0, 0, AT_MS, None, data, ()))
        assert prepared.failed is None, prepared.failed
        sink = kind.load().build(config, lambda data: None, 2, lambda topic: f"id-of-{topic}")  # type: ignore[arg-type,return-value]  # it stores no revision
        try:
            sink.open()
            assert sink.write(Batch(self.topic, 0, list(prepared.rows))) == []
        finally:
            sink.close()
            registry.close()
        with psycopg.connect(server.url, row_factory=dict_row) as connection:
            query = f"SELECT *, extract(epoch FROM at) * 1000 AS at FROM {self.topic}"
            return [dict(row) for row in connection.execute(query.encode()).fetchall()]


@pytest.fixture
def world(registry: Registry, postgresql: Postgresql) -> Iterator[World]:
    made = World(registry, postgresql)
    yield made
    made.client.close()


def message() -> Any:
    made = message_factory.GetMessageClass(message_type(READING, {"room.proto": ROOM}, (1,)))()
    made.device, made.value, made.kind = "attic", 21.5, 1
    made.at.seconds, made.at.nanos = AT_MS // 1_000, AT_MS % 1_000 * 1_000_000
    made.room.name = "loft"
    return made


def check_row(rows: list[dict[str, Any]]) -> None:
    (row,) = rows
    assert int(row.pop("at")) == AT_MS
    room = row.pop("room")
    assert (json.loads(room) if isinstance(room, str) else room) == VALUE["room"]
    assert row == {name: value for name, value in VALUE.items() if name not in ("at", "room")}


@pytest.mark.parametrize("converter", ["auto", "protobuf", "io.confluent.connect.protobuf.ProtobufConverter"])
def test_messages_of_a_registered_proto_file_with_a_reference(world: World, converter: str) -> None:
    world.client.register_schema(f"{world.topic}-room", Schema(ROOM, "PROTOBUF"))
    references = [SchemaReference("room.proto", f"{world.topic}-room", 1)]
    schema_id = world.client.register_schema(f"{world.topic}-value", Schema(READING, "PROTOBUF", references))
    header = b"\0" + schema_id.to_bytes(4, "big")
    second_type = b"\2\2"
    check_row(world.stored(header + second_type + message().SerializeToString(), converter))


def test_messages_of_a_descriptor_that_a_client_in_python_registered(world: World) -> None:
    """As confluent-kafka's ProtobufSerializer registers a file: its descriptor in base64."""
    alone = READING.replace('import "room.proto";', "message Room { string name = 1; }")
    descriptor = base64.b64encode(read_proto(alone, "reading.proto").SerializeToString()).decode()
    schema_id = world.client.register_schema(f"{world.topic}-value", Schema(descriptor, "PROTOBUF"))
    data = b"\0" + schema_id.to_bytes(4, "big") + b"\2\4" + message().SerializeToString()
    check_row(world.stored(data, "auto"))


@pytest.mark.parametrize("converter", ["auto", "jsonschema", "io.confluent.connect.json.JsonSchemaConverter"])
def test_values_of_confluents_json_serializer(world: World, converter: str) -> None:
    serialize = JSONSerializer(json.dumps(JSON_SCHEMA), world.client)
    data = serialize(VALUE, SerializationContext(world.topic, MessageField.VALUE))
    assert data is not None
    check_row(world.stored(data, converter))

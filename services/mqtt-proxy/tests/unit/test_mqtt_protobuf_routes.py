"""Routes of payloads in Protocol Buffers: message to reading, and what the statement must say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # it ships no types
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from mqtt_rules import ingest_rules

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.ingest.plain_route import Encode
from isotherm.mqtt_proxy.ingest.routes import RouteError, Router, kcql_routes
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator

_FIELD = descriptor_pb2.FieldDescriptorProto


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="acme.proto", package="acme", syntax="proto3")
    message = file.message_type.add(name="Reading")
    message.field.add(name="id", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    message.field.add(name="t", number=2, type=_FIELD.TYPE_DOUBLE, label=_FIELD.LABEL_OPTIONAL)
    message.field.add(name="note", number=3, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())
Reading = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("acme.Reading"))


@pytest.fixture
def descriptor(tmp_path: Path) -> Path:
    path = tmp_path / "acme.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[_file()]).SerializeToString())
    return path


def route(descriptor: Path, fields: str = "id AS device_id, t AS value, note") -> str:
    properties = f"PROPERTIES('protobuf.descriptor'='{descriptor}', 'protobuf.message'='acme.Reading')"
    return f"INSERT INTO readings SELECT {fields} FROM devices/+/temperature WITHFORMAT PROTOBUF {properties}"


def translate(routes: str, payload: bytes, **publish: Any) -> tuple[TranslatedPublish, list[Mapping[str, Any]]]:
    """Return the records and the readings in their order."""
    readings: list[Mapping[str, Any]] = []

    def encode(reading: Mapping[str, Any]) -> bytes:
        readings.append(reading)
        return b"avro"

    encoders: dict[str, Encode] = {"readings": encode}
    compiled = kcql_routes(routes, device_level=None, metrics=frozenset())
    of = Translator(Router(compiled, first_match_only=False), encoders, ingest_rules())
    return of.translate(Publish("devices/d1/temperature", payload, 1, **publish), IngestContext("c", 1_000)), readings


def test_fields_of_the_message_are_fields_of_the_reading(descriptor: Path) -> None:
    payload = Reading(id="x", t=21.5, note="hall").SerializeToString()
    result, (reading,) = translate(route(descriptor), payload, properties={Property.CONTENT_TYPE: "image/png"})
    assert (result.records[0].key, result.dead_letters) == ("x", [])
    assert (reading["device_id"], reading["value"], reading["unit"]) == ("x", 21.5, "Cel")
    assert reading["attributes"] == {"note": "hall"}


def test_the_level_is_the_device_where_the_message_names_none(descriptor: Path) -> None:
    (reading,) = translate(route(descriptor), Reading(note="x").SerializeToString())[1]
    assert (reading["device_id"], reading["value"]) == ("d1", 0.0)


def test_bytes_that_are_no_message_are_a_dead_letter(descriptor: Path) -> None:
    result, readings = translate(route(descriptor), b'{"t": 1}')
    assert ([record.topic for record in result.records], result.dead_letters, readings) == (["dead"], ["payload"], [])
    message = dict(result.records[0].headers)["__connect.errors.exception.message"]
    assert isinstance(message, bytes)
    assert b"acme.Reading" in message


def test_the_compiled_way_takes_no_message(descriptor: Path) -> None:
    (compiled,) = kcql_routes(route(descriptor), device_level=None, metrics=frozenset())
    assert compiled.plain_names is None


def test_a_text_field_is_no_value(descriptor: Path) -> None:
    result, _ = translate(route(descriptor, "note AS value"), Reading(note="warm").SerializeToString())
    assert result.dead_letters == ["reading"]


def test_routes_of_several_formats_read_the_payload_each_in_its_own(descriptor: Path) -> None:
    routes = f"{route(descriptor)}; INSERT INTO readings SELECT t AS value FROM devices/#"
    result, readings = translate(routes, Reading(t=2).SerializeToString())
    assert ([reading["value"] for reading in readings], result.dead_letters) == ([2.0], ["payload"])
    result, readings = translate(routes, b'{"t": 3}')
    assert ([reading["value"] for reading in readings], result.dead_letters) == ([3.0], ["payload"])


@pytest.mark.parametrize(
    ("clauses", "says"),
    [
        ("WITHFORMAT PROTOBUF", "WITHFORMAT PROTOBUF needs PROPERTIES"),
        ("WITHFORMAT PROTOBUF PROPERTIES('protobuf.descriptor'='x')", "WITHFORMAT PROTOBUF needs PROPERTIES"),
        ("PROPERTIES('protobuf.descriptor'='x')", "belong to WITHFORMAT PROTOBUF"),
        ("WITHFORMAT RAW PROPERTIES(a=b)", "takes SELECT"),
        (
            "WITHFORMAT PROTOBUF PROPERTIES('protobuf.descriptor'='/nowhere.pb', 'protobuf.message'='a.B')",
            "protobuf.descriptor: .*nowhere.pb",
        ),
    ],
)
def test_a_statement_names_descriptor_and_message(clauses: str, says: str) -> None:
    with pytest.raises(RouteError, match=says):
        kcql_routes(f"INSERT INTO readings SELECT * FROM a {clauses}", device_level=None, metrics=frozenset())


def test_an_unknown_message_is_refused_with_the_known_ones(descriptor: Path) -> None:
    with pytest.raises(RouteError, match=r"'acme\.Redding'; it holds acme\.Reading"):
        translate(route(descriptor).replace("acme.Reading", "acme.Redding"), b"")

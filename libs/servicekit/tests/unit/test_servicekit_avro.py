from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.servicekit import avro
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    SchemaRegistry,
    UnknownSchemaError,
    WireFormatError,
    WriterSchema,
    encoder,
    is_recursive,
    parse,
    split,
)
from isotherm.servicekit.settings import RegistrySettings

WRITER: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "namespace": "test",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "x", "type": "double"},
        {"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
READER: dict[str, Any] = {
    **WRITER,
    "fields": [WRITER["fields"][0], {"name": "added", "type": "int", "default": 7}],
}
INCOMPATIBLE: dict[str, Any] = {**WRITER, "fields": [{"name": "required", "type": "int"}]}
RECORD = {"id": "a", "n": 1, "x": 0.5, "tags": {}, "note": None}
WRITER_ID, BROKEN_ID, FLAKY_ID = 7, 8, 9
MISROUTED_ID = 13
"""An id for which somebody else answers 404: an ingress, a server that is starting."""
FOREIGN_ID = 11


class StubRegistry(ThreadingHTTPServer):
    """The part of the registry's REST API that the tests need; it counts requests and can answer with errors."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.questions: list[str] = []
        self.fails = False
        self.foreign: str | None = None
        """The text of the schema with id FOREIGN_ID."""


class _Handler(BaseHTTPRequestHandler):
    server: StubRegistry

    def do_GET(self) -> None:
        self.server.questions.append(self.path)
        if self.server.fails:
            self._answer(503, {"error_code": 50301, "message": "not now"})
        elif self.path.startswith(f"/schemas/ids/{WRITER_ID}"):
            self._answer(200, {"schema": json.dumps(WRITER)})
        elif self.path.startswith(f"/schemas/ids/{FOREIGN_ID}") and self.server.foreign is not None:
            self._answer(200, {"schema": self.server.foreign})
        elif self.path.startswith(f"/schemas/ids/{MISROUTED_ID}"):
            self._answer(404, {"message": "no such page"})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        self.server.questions.append(self.path)
        asked = json.loads(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"])
        if self.server.fails:
            self._answer(503, {"error_code": 50301, "message": "not now"})
        elif self.path.startswith("/subjects/known-value") and asked == WRITER:
            self._answer(200, {"subject": "known-value", "id": WRITER_ID, "version": 1, "schema": json.dumps(WRITER)})
        elif self.path.startswith("/subjects/ingress-value"):
            self._answer(404, {"message": "default backend"})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class _KnownSchemas(SchemaRegistry):
    """A registry client with all answers in its cache: it asks no server."""

    def __init__(self, schemas: dict[int, dict[str, Any]]) -> None:
        super().__init__(RegistrySettings(url="http://127.0.0.1:1"))
        for schema_id, schema in schemas.items():
            self._by_id[schema_id] = WriterSchema(schema_id, schema, parse(schema))


_KNOWN = _KnownSchemas({WRITER_ID: WRITER})


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    server = StubRegistry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def registry(stub: StubRegistry) -> Iterator[SchemaRegistry]:
    opened = SchemaRegistry(RegistrySettings(url=f"http://127.0.0.1:{stub.server_address[1]}", timeout_ms=2_000))
    yield opened
    opened.close()


def test_header_is_magic_byte_and_big_endian_id() -> None:
    assert encoder(WRITER, 0x01020304)(RECORD)[:5] == b"\x00\x01\x02\x03\x04"


@given(
    st.fixed_dictionaries(
        {
            "id": st.text(),
            "n": st.integers(-(2**63), 2**63 - 1),
            "x": st.floats(allow_nan=False),
            "tags": st.dictionaries(st.text(), st.text(), max_size=3),
            "note": st.none() | st.text(),
        }
    )
)
def test_what_was_encoded_comes_back(record: dict[str, Any]) -> None:
    decoded = Decoder(_KNOWN)(encoder(WRITER, WRITER_ID)(record))

    assert decoded.record == record
    assert decoded.writer.json == WRITER


def test_pinned_reader_sees_its_own_fields_with_defaults(registry: SchemaRegistry) -> None:
    assert Decoder(registry, READER)(encoder(WRITER, WRITER_ID)(RECORD)).record == {"id": "a", "added": 7}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes are too short for the wire format's 5-byte header"),
        (b"\x00\x00\x00\x01", "4 bytes are too short"),
        (b"{'a':1}", "magic byte is 123, expected 0"),
        (b"\x01\x00\x00\x00\x07rest", "magic byte is 1, expected 0"),
        (b"\x00\x00\x00\x00\x07", "the body does not fit schema id 7"),
        (encoder(WRITER, WRITER_ID)(RECORD)[:-3], "the body does not fit schema id 7"),
        (encoder(WRITER, WRITER_ID)(RECORD) + b"xy", "2 bytes are left over after schema id 7"),
        (b"\x00\x00\x00\x00\x07" + b"\xff" * 30, "the body does not fit schema id 7"),
        (b"\x00\x00\x00\x00\x07\x04\xc3\x28" + b"\x00" * 11, "the body does not fit schema id 7"),
    ],
)
def test_bad_bytes_are_a_bad_record_and_say_why(registry: SchemaRegistry, data: bytes, told: str) -> None:
    with pytest.raises(WireFormatError) as refused:
        Decoder(registry)(data)

    assert told in str(refused.value)


@given(st.binary(max_size=60))
def test_no_bytes_at_all_bring_the_decoder_down(body: bytes) -> None:
    try:
        Decoder(_KNOWN)(b"\x00\x00\x00\x00\x07" + body)
    except WireFormatError:
        return


def test_reader_that_cannot_read_the_writer_s_record_says_so(registry: SchemaRegistry) -> None:
    with pytest.raises(WireFormatError, match="does not fit schema id 7"):
        Decoder(registry, INCOMPATIBLE)(encoder(WRITER, WRITER_ID)(RECORD))


def test_unknown_id_is_a_bad_record_that_names_it(registry: SchemaRegistry) -> None:
    with pytest.raises(UnknownSchemaError, match="no schema with id 1000") as refused:
        Decoder(registry)(b"\x00\x00\x00\x03\xe8abc")

    assert refused.value.schema_id == 1000


def test_unknown_id_is_asked_for_once_in_a_while(
    registry: SchemaRegistry, stub: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(avro, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    for _ in range(50):
        with pytest.raises(UnknownSchemaError):
            registry.schema(1000)
    assert len(stub.questions) == 1
    now_s[0] += 3
    with pytest.raises(UnknownSchemaError):
        registry.schema(1000)
    assert len(stub.questions) == 2


def test_a_404_that_is_not_the_registrys_is_an_outage(registry: SchemaRegistry) -> None:
    with pytest.raises(RegistryUnavailableError):
        registry.schema(MISROUTED_ID)
    with pytest.raises(RegistryUnavailableError):
        registry.schema_id("ingress-value", WRITER)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}}}),
        json.dumps({"type": "object", "properties": {}}),
        json.dumps({"type": "enum", "name": "E"}),
        json.dumps({"type": "record", "name": "r", "fields": ["a"]}),
        json.dumps(["null", "string"]),
        "7",
        'syntax = "proto3"; message M {}',
        '{"type":' * 500 + '"int"' + "}" * 500,
        '{"type":' * 100_000,
    ],
    ids=["no type", "object", "no symbols", "no field", "union", "number", "protobuf", "deep", "deeper"],
)
def test_schema_that_is_not_one_of_an_avro_record_makes_a_bad_record(
    registry: SchemaRegistry, stub: StubRegistry, text: str
) -> None:
    stub.foreign = text
    with pytest.raises(WireFormatError, match=f"schema id {FOREIGN_ID} is not one of an Avro record"):
        Decoder(registry)(b"\x00" + FOREIGN_ID.to_bytes(4, "big") + b"body")


NODE: dict[str, Any] = {
    "type": "record",
    "name": "Node",
    "namespace": "test",
    "fields": [{"name": "next", "type": ["null", {"type": "map", "values": "test.Node"}]}],
}


def nested(levels: int) -> bytes:
    return b"\x00\x00\x00\x00\x0b" + b"\x02\x02\x00" * levels + b"\x00" * (levels + 1)


def test_record_that_holds_itself_is_read_as_deep_as_python_goes(registry: SchemaRegistry, stub: StubRegistry) -> None:
    """The compiled reader would end the process at a few thousand levels."""
    stub.foreign = json.dumps(NODE)
    decode = Decoder(registry)
    for levels in (3, 100):
        found = decode(nested(levels)).record
        for _ in range(levels):
            found = found["next"][""]
        assert found == {"next": None}
    wide = {"next": {str(number): {"next": None} for number in range(1_000)}}
    assert decode(encoder(NODE, FOREIGN_ID)(wide)).record == wide
    for levels in (5_000, 200_000):
        with pytest.raises(WireFormatError, match="the body does not fit schema id 11: RecursionError"):
            decode(nested(levels))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (WRITER, False),
        (NODE, True),
        ({**NODE, "fields": [{"name": "a", "type": {"type": "array", "items": NODE}}]}, True),
        ({**NODE, "name": "Tree", "fields": [{"name": "a", "type": WRITER}, {"name": "b", "type": "R"}]}, False),
    ],
)
def test_recursive_schemas_are_known(schema: dict[str, Any], expected: bool) -> None:
    assert is_recursive(schema) is expected


def test_id_is_asked_for_once(registry: SchemaRegistry, stub: StubRegistry) -> None:
    decode = Decoder(registry)
    for _ in range(3):
        decode(encoder(WRITER, WRITER_ID)(RECORD))

    assert len(stub.questions) == 1


def test_registry_that_refuses_is_unavailable_and_asked_again_later(
    registry: SchemaRegistry, stub: StubRegistry
) -> None:
    stub.fails = True
    with pytest.raises(RegistryUnavailableError):
        registry.schema(WRITER_ID)
    with pytest.raises(RegistryUnavailableError):
        registry.encoder("known", WRITER)

    stub.fails = False

    assert registry.schema(WRITER_ID).json == WRITER


def test_registry_that_is_not_there_is_unavailable() -> None:
    nobody = SchemaRegistry(RegistrySettings(url="http://127.0.0.1:1", timeout_ms=500))

    with pytest.raises(RegistryUnavailableError):
        nobody.schema(1)
    with pytest.raises(RegistryUnavailableError):
        nobody.subjects()


def test_encoder_of_a_topic_has_the_registered_id(registry: SchemaRegistry) -> None:
    assert split(registry.encoder("known", WRITER)(RECORD)) == WRITER_ID


def test_schema_that_was_not_applied_is_told_so(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaNotRegisteredError, match="subject known-value does not hold this schema; run `isotherm"):
        registry.encoder("known", READER)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {**RECORD, "n": "one"},
        {**RECORD, "n": 2**63},
        {**RECORD, "tags": {"a": 1}},
        {**RECORD, "id": None},
        {**RECORD, "note": 5},
    ],
)
def test_record_that_does_not_fit_is_refused_when_it_is_encoded(record: dict[str, Any]) -> None:
    with pytest.raises(WireFormatError, match="the record does not fit its schema"):
        encoder(WRITER, WRITER_ID)(record)

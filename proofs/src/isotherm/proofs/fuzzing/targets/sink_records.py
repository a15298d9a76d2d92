"""What sinks read beside Avro and JSON: .proto texts and messages, JSON Schemas; what transforms make of records."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from isotherm.connector.transforms.catalog import PACKAGE
from isotherm.connector.transforms.chain import read_chain
from isotherm.connector.transforms.message import Message, TransformError
from isotherm.persisters.records.connect_json import EnvelopeReader
from isotherm.persisters.records.decoding import BAD_RECORD
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.persisters.records.json_schema import UnknownShapeError, avro_of_json_schema
from isotherm.persisters.records.protobuf.files import message_type
from isotherm.persisters.records.protobuf.messages import MessageReader
from isotherm.persisters.records.protobuf.proto_text import ProtoTextError
from isotherm.persisters.records.registry_formats import message_indexes
from isotherm.proofs.fuzzing.target import Target, expect, split
from isotherm.servicekit.avro import WireFormatError

_TEXT = 'syntax = "proto3"; message A { string s = 1; repeated A a = 2; map<int32, bytes> m = 3; }'


def proto_target() -> Callable[[bytes], None]:
    """Return the check that a .proto text and a message, separated by a zero byte, are a row or are refused."""
    MessageReader(message_type(_TEXT, {}, (0,)))

    def run(data: bytes) -> None:
        text, body = split(data, 2)
        try:
            reader = MessageReader(message_type(text.decode("utf-8", "replace"), {}, (0,)))
        except ProtoTextError:
            return
        names = [one["name"] for one in reader.schema["fields"]]
        try:
            row = reader(body)
        except WireFormatError:
            return
        expect(list(row) == names, "the row has other fields than the schema")
        to_json(row)

    return run


def index_target() -> Callable[[bytes], None]:
    """Return the check that message indexes are read within the value, or refused."""

    def run(data: bytes) -> None:
        try:
            indexes, begin = message_indexes(data)
        except WireFormatError:
            return
        expect(bool(indexes) and begin <= max(len(data), 5), "the message begins behind the value")

    return run


def json_schema_target() -> Callable[[bytes], None]:
    """Return the check that a JSON Schema is told in Avro's terms, or refused."""

    def run(data: bytes) -> None:
        try:
            made = avro_of_json_schema(orjson.loads(data), {})
        except (UnknownShapeError, orjson.JSONDecodeError):
            return
        expect(made["type"] == "record", "it is no record")

    return run


_CHAIN: tuple[tuple[str, dict[str, str]], ...] = (
    ("Flatten$Value", {}),
    ("MaskField$Value", {"fields": "a"}),
    ("Cast$Value", {"spec": "b:int8,c:string,d:float32,e:boolean"}),
    ("TimestampConverter$Value", {"field": "t", "target.type": "string", "format": "yyyy-MM-dd HH:mm"}),
    ("ReplaceField$Value", {"renames": "b:f"}),
    ("InsertField$Value", {"offset.field": "o"}),
)


def transform_target() -> Callable[[bytes], None]:
    """Return the check that transforms make a document of an envelope, or call it bad."""
    given = {"transforms": ",".join(f"s{index}" for index in range(len(_CHAIN)))}
    for index, (kind, options) in enumerate(_CHAIN):
        given[f"transforms.s{index}.type"] = PACKAGE + kind
        given |= {f"transforms.s{index}.{name}": value for name, value in options.items()}
    chain, problems = read_chain(given)
    expect(chain is not None and not problems, "the chain is not valid")

    def run(data: bytes) -> None:
        try:
            value, writer = EnvelopeReader()(data)
        except BAD_RECORD:
            return
        schema = None if writer is None else writer.json
        try:
            made = None if chain is None else chain.apply(Message("t", 0, 1, 2, None, None, schema, value, ()))
            to_json(None if made is None else made.value)
        except (TransformError, NotADocumentError, RecursionError):
            return

    return run


TARGETS = (
    Target(
        name="proto-text",
        make=proto_target,
        dictionary=(
            *(
                b'syntax = "proto3";',
                b"message A {",
                b"repeated ",
                b"optional ",
                b"map<string, ",
                b"oneof x {",
                b"enum E {",
            ),
            *(
                b"reserved 1 to max;",
                b"option (a).b = {",
                b'import "google/protobuf/timestamp.proto";',
                b" = 1;",
                b"//",
            ),
        ),
        max_bytes=1_024,
        quick_inputs=60,
    ),
    Target(name="message-indexes", make=index_target, max_bytes=200, quick_inputs=100),
    Target(
        name="json-schema",
        make=json_schema_target,
        dictionary=(
            *(
                b'{"type":"object","properties":',
                b'"$ref":"#/',
                b'"oneOf":[',
                b'{"type":"null"}',
                b'"items":',
                b'"enum":',
            ),
            b'"additionalProperties":',
        ),
        quick_inputs=80,
    ),
    Target(
        name="transforms",
        make=transform_target,
        dictionary=(
            b'{"schema":',
            b'"payload":',
            b'"struct"',
            b'"fields":[',
            b'{"field":"b","type":',
            b'"optional":true',
        ),
        quick_inputs=80,
    ),
)

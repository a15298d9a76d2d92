"""Protocol Buffers: .proto texts, message indexes, rows, and the types in Avro's terms."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # it ships no types
    descriptor_pb2,
    message_factory,
    type_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.records.protobuf.files import message_type
from isotherm.persisters.records.protobuf.messages import MessageReader
from isotherm.persisters.records.protobuf.proto_text import ProtoTextError, read_proto
from isotherm.persisters.records.registry_formats import ProtobufDecoder, message_indexes, registry_formats
from isotherm.servicekit.avro import RegisteredSchema, SchemaReference, SchemaRegistry, WireFormatError

READING = """
// A reading. /* no comment inside */
syntax = "proto3";
package house.v1;
import "google/protobuf/timestamp.proto";
import 'google/protobuf/wrappers.proto';
import public "rooms.proto";
option java_package = "com.house";
option (deep.option).part = { a: 1 b { c: "}" } };

message Reading {
  reserved 9, 30 to 32, 100 to max;
  reserved "old", "older";
  string device = 1 [json_name = "d", deprecated = true, (custom) = { x: "]" }];
  double value = 2;
  optional int32 count = 3;
  repeated int64 list = 4;
  map<string, Inner> by_name = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.DoubleValue exact = 7;
  oneof choice { string text = 13; uint32 number = 0xE; }
  Kind kind = 15;
  message Inner { Kind kind = 1; Reading again = 2; bool flag = 3; }
  enum Kind { option allow_alias = true; UNKNOWN = 0; HOT = 1; WARM = 1 [deprecated = true]; COLD = -2; }
  Inner inner = 16;
  bytes raw = 17;
  .house.v1.Room room = 18;
  map<int32, bool> flags = 19;
  float message = 20;
}
service Readings { rpc Get (Reading) returns (stream Reading) { option (x) = "{"; } }
message Second { Reading reading = 1; }
"""
ROOMS = 'syntax = "proto3"; package house.v1; message Room { string name = 1; uint64 area = 2; }'
WHOLE = {
    "device": "attic",
    "value": 2.5,
    "count": None,
    "list": [1, 2],
    "by_name": {"x": {"kind": "UNKNOWN", "again": None, "flag": True}},
    "at": 5_250,
    "exact": 0.0,
    "text": None,
    "number": 7,
    "kind": "COLD",
    "inner": {"kind": "UNKNOWN", "again": b"\x0a\x01z", "flag": False},
    "raw": b"",
    "room": {"name": "", "area": 9},
    "flags": {"-1": True},
    "message": 0.0,
}


def reading(indexes: tuple[int, ...] = (0,)) -> Any:
    return message_type(READING, {"rooms.proto": ROOMS}, indexes)


def message() -> Any:
    made = message_factory.GetMessageClass(reading())(device="attic", value=2.5, list=[1, 2], number=7, kind=-2)
    made.by_name["x"].flag = True
    made.at.seconds, made.at.nanos = 5, 250_999_999
    made.exact.value = 0
    made.inner.again.device = "z"
    made.room.area = 9
    made.flags[-1] = True
    return made


def test_a_message_is_a_row_with_every_field() -> None:
    assert MessageReader(reading())(message().SerializeToString()) == WHOLE


def test_the_type_in_avros_terms() -> None:
    schema = MessageReader(reading()).schema
    types = {one["name"]: one["type"] for one in schema["fields"]}
    assert (schema["namespace"], schema["name"]) == ("house.v1", "Reading")
    assert types["count"] == ["null", "int"]
    assert types["list"] == {"type": "array", "items": "long"}
    assert types["at"] == ["null", {"type": "long", "logicalType": "timestamp-millis"}]
    assert types["exact"] == ["null", "double"]
    assert types["number"] == ["null", "long"]
    assert types["kind"] == "string"
    assert types["flags"] == {"type": "map", "values": "boolean"}
    assert types["room"][1]["fields"][1] == {"name": "area", "type": "long"}
    assert types["inner"][1]["fields"][1]["type"] == ["null", "bytes"], "a message inside itself has no end"


def test_bytes_that_are_no_message_are_a_bad_record() -> None:
    with pytest.raises(WireFormatError, match=r"not a message house\.v1\.Reading"):
        MessageReader(reading())(b"\x0a\xff")


def test_proto2() -> None:
    text = """message Old { required string a = 1; optional int32 b = 2 [default = -5]; extensions 100 to 199;
              extend Old { optional int32 c = 100; } }"""
    made = message_type(text, {}, (0,))
    row = MessageReader(made)(message_factory.GetMessageClass(made)(a="x").SerializeToString())
    assert row == {"a": "x", "b": None}


def test_a_descriptor_in_base64_is_read_as_its_text() -> None:
    file = read_proto(READING, "x.proto")
    again = read_proto(base64.b64encode(file.SerializeToString()).decode(), "x.proto")
    assert again == file


def test_a_file_of_the_library_is_read_as_its_own_compiler_reads_it() -> None:
    """The text of type.proto, shortened, beside the descriptor that comes with the library."""
    text = """syntax = "proto3"; package google.protobuf;
      import "google/protobuf/any.proto"; import "google/protobuf/source_context.proto";
      message Enum { string name = 1; repeated EnumValue enumvalue = 2; repeated Option options = 3;
        SourceContext source_context = 4; Syntax syntax = 5; string edition = 6; }
      message EnumValue { string name = 1; int32 number = 2; repeated Option options = 3; }
      message Option { string name = 1; Any value = 2; }
      message SourceContext { string file_name = 1; }
      enum Syntax { SYNTAX_PROTO2 = 0; SYNTAX_PROTO3 = 1; SYNTAX_EDITIONS = 2; }"""
    theirs = descriptor_pb2.DescriptorProto()
    type_pb2.Enum.DESCRIPTOR.CopyToProto(theirs)
    ours = read_proto(text, "type.proto").message_type[0]
    assert [(one.name, one.number, one.label) for one in ours.field] == [
        (one.name, one.number, one.label) for one in theirs.field
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("messag X {}", "no .proto file: line 1, column 1"),
        ("message X { string a = ; }", "line 1, column 24"),
        ('syntax = "proto9";', "the syntax 'proto9' is not supported"),
        ("message X { optional group A = 1 { } }", "groups are not supported"),
        ("message A { " * 40 + "}" * 40, "nested deeper than 32"),
        ("// " + "x" * 600_000, "allowed: 524288"),
        ("message X { Y y = 1; }", "Y"),
        ("message X { string s = 1" + "5" * 90 + "; }", "5555 does not fit into 32 bits"),
        ("message X { string s = 1" + "5" * 5_000 + "; }", "5555 is no number"),
        ("message X { string s = 600000000; }", "600000000"),
        ("enum E { A = 0; B = 2147483648; } message X { E e = 1; }", "2147483648 does not fit into 32 bits"),
        ('import "gone.proto"; message X { }', "imports 'gone.proto', which the registry's references do not hold"),
        ('import "schema.proto"; message X { }', "imports"),
        ("enum E { A = 0; }", "no message type at [0]"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, told: str) -> None:
    with pytest.raises(ProtoTextError) as caught:
        message_type(text, {}, (0,))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("indexes", "name"), [((0,), "Reading"), ((1,), "Second"), ((0, 0), "Inner"), ((0, 1), "ByNameEntry")]
)
def test_indexes_name_a_type(indexes: tuple[int, ...], name: str) -> None:
    assert reading(indexes).name == name


@given(st.binary(max_size=40))
def test_any_bytes_are_indexes_or_refused(data: bytes) -> None:
    try:
        indexes, begin = message_indexes(bytes(5) + data)
    except WireFormatError:
        return
    assert indexes
    assert 5 < begin <= 5 + len(data)


def zigzag(number: int) -> bytes:
    bits = number << 1
    written = bytearray()
    while bits > 127:
        written.append(bits & 127 | 128)
        bits >>= 7
    return bytes((*written, bits))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=32))
def test_indexes_are_zigzag_varints(indexes: list[int]) -> None:
    data = bytes(5) + zigzag(len(indexes)) + b"".join(map(zigzag, indexes)) + b"rest"
    assert message_indexes(data) == (tuple(indexes), len(data) - 4)


class Registry(SchemaRegistry):
    """Schemas of any type by id and by subject, from memory."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def registered(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        reference = SchemaReference("rooms.proto", "rooms", 1)
        return {
            1: RegisteredSchema("PROTOBUF", READING, (reference,)),
            2: RegisteredSchema("AVRO", '"string"', ()),
        }[schema_id]

    def version(self, subject: str, version: int) -> RegisteredSchema:
        assert (subject, version) == ("rooms", 1)
        return RegisteredSchema("PROTOBUF", ROOMS, ())


def test_values_in_the_wire_format_are_read_by_id_and_indexes() -> None:
    registry = Registry()
    decode = ProtobufDecoder(registry)
    found = decode(b"\0\0\0\0\1\0" + message().SerializeToString())
    assert found.value == WHOLE
    assert found.writer is not None
    assert found.writer.schema_id < 0
    assert decode(b"\0\0\0\0\1\2\2" + b"").value == {"reading": None}
    assert decode(b"\0\0\0\0\1\4\0\0" + b"\x18\x01").value == {"kind": "UNKNOWN", "again": None, "flag": True}
    decode(b"\0\0\0\0\1\0")
    assert registry.asked == [1, 1, 1], "once for each type"


def test_a_schema_of_another_type_is_told() -> None:
    with pytest.raises(WireFormatError, match="schema id 2 is one of AVRO, not of PROTOBUF"):
        ProtobufDecoder(Registry())(b"\0\0\0\0\2\0")
    with pytest.raises(WireFormatError, match="schema id 1: the file has no message type at"):
        ProtobufDecoder(Registry())(b"\0\0\0\0\1\2\x10")
    assert registry_formats(Registry())(2) is None

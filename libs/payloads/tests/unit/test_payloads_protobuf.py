"""Decoding of Protocol Buffers by a descriptor, which the library makes here without protoc."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # it ships no types
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from isotherm.payloads import Limits, PayloadError
from isotherm.payloads.protobuf import DescriptorError, MessageDecoder

_FIELD = descriptor_pb2.FieldDescriptorProto
_NAME = "acme.Reading"


def _add(
    message: Any, name: str, kind: int, *, type_name: str = "", repeated: bool = False, optional: int = -1
) -> None:
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=len(message.field) + 1, type=kind, label=label)
    if type_name:
        field.type_name = type_name
    if optional >= 0:
        field.proto3_optional = True
        field.oneof_index = optional


def descriptor_set() -> Any:
    """A file of proto3 with every kind of field, and the files that it imports."""
    imported = [timestamp_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR]
    file = descriptor_pb2.FileDescriptorProto(
        name="acme.proto", package="acme", syntax="proto3", dependency=[one.name for one in imported]
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="OFF", number=0)
    state.value.add(name="ON", number=1)
    reading = file.message_type.add(name="Reading")
    _add(reading, "device_id", _FIELD.TYPE_STRING)
    _add(reading, "value", _FIELD.TYPE_DOUBLE)
    _add(reading, "event_time", _FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(reading, "sequence", _FIELD.TYPE_INT64, optional=0)
    _add(reading, "state", _FIELD.TYPE_ENUM, type_name=".acme.State")
    _add(reading, "raw", _FIELD.TYPE_BYTES)
    _add(reading, "ok", _FIELD.TYPE_BOOL, optional=1)
    _add(reading, "humidity", _FIELD.TYPE_MESSAGE, type_name=".google.protobuf.DoubleValue")
    _add(reading, "inner", _FIELD.TYPE_MESSAGE, type_name=".acme.Reading")
    _add(reading, "list", _FIELD.TYPE_MESSAGE, type_name=".acme.Reading", repeated=True)
    _add(reading, "labels", _FIELD.TYPE_MESSAGE, type_name=".acme.Reading.LabelsEntry", repeated=True)
    entry = reading.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    _add(entry, "key", _FIELD.TYPE_INT32)
    _add(entry, "value", _FIELD.TYPE_STRING)
    reading.oneof_decl.add(name="_sequence")
    reading.oneof_decl.add(name="_ok")
    files = descriptor_pb2.FileDescriptorSet()
    for one in imported:
        one.CopyToProto(files.file.add())
    files.file.append(file)
    return files


FILES = descriptor_set()
_POOL = descriptor_pool.DescriptorPool()
for _file in FILES.file:
    _POOL.AddSerializedFile(_file.SerializeToString())
Reading = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(_NAME))
DECODER = MessageDecoder(FILES.SerializeToString(), _NAME)
NOTHING = {"value": 0.0, "state": "OFF"}
"""The fields without presence that are no text."""


def decoded(**fields: Any) -> dict[str, Any]:
    (row,) = DECODER.decode(Reading(**fields).SerializeToString())
    return row


def test_fields_keep_their_names_and_numbers_stay_numbers() -> None:
    row = decoded(device_id="d", value=21.5, sequence=2**60, raw=b"\1", state=1, ok=False, labels={7: "x"})
    assert row == {
        "device_id": "d",
        "value": 21.5,
        "sequence": 2**60,
        "raw": b"\1",
        "state": "ON",
        "ok": False,
        "labels": {"7": "x"},
    }


def test_times_are_epoch_milliseconds_and_wrapped_values_plain() -> None:
    message = Reading(device_id="d")
    message.event_time.seconds, message.event_time.nanos = 1_486_997_194, 29_999_999
    message.humidity.value = 40.0
    (row,) = DECODER.decode(message.SerializeToString())
    assert row == {**NOTHING, "device_id": "d", "event_time": 1_486_997_194_029, "humidity": 40.0}


def test_a_zero_is_a_value_though_it_is_not_sent_and_what_is_absent_is_missing() -> None:
    assert decoded(device_id="d", value=0.0) == {**NOTHING, "device_id": "d"}
    assert decoded(sequence=0) == {**NOTHING, "sequence": 0}


def test_messages_and_lists_of_messages_are_nested_rows() -> None:
    row = decoded(inner={"value": 1}, list=[{"value": 2}, {"value": 3}])
    assert row["inner"] == {**NOTHING, "value": 1.0}
    assert [item["value"] for item in row["list"]] == [2.0, 3.0]


def test_an_unknown_number_of_an_enum_stays_a_number() -> None:
    assert decoded(state=9)["state"] == 9


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no field of acme.Reading is in the payload of 0 bytes"),
        (b"\xa2\x06\x01x", "no field of acme.Reading is in the payload of 4 bytes"),
        (b"{}", "not a message acme.Reading"),
        (b"\x0a\xff", "not a message acme.Reading"),
        (b"\x0a\x01\xff", "not a message acme.Reading"),
    ],
    ids=["empty", "unknown fields only", "json", "short", "no UTF-8"],
)
def test_other_bytes_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(PayloadError, match=says):
        DECODER.decode(data)


def nested(depth: int) -> Any:
    message = inner = Reading(value=1)
    for _ in range(depth - 1):
        inner = inner.inner
    inner.value = 1
    return message


def test_limits_hold_for_bytes_depth_and_values() -> None:
    limits = Limits(max_depth=4, max_items=100, max_bytes=60)
    DECODER.decode(nested(4).SerializeToString(), limits=limits)
    with pytest.raises(PayloadError, match="nested deeper than 4"):
        DECODER.decode(nested(5).SerializeToString(), limits=limits)
    with pytest.raises(PayloadError, match="more than 100 values"):
        DECODER.decode(Reading(list=[Reading()] * 10).SerializeToString(), limits=limits)
    with pytest.raises(PayloadError, match="over the limit of 60"):
        DECODER.decode(Reading(device_id="x" * 61).SerializeToString(), limits=limits)
    with pytest.raises(PayloadError):
        DECODER.decode(nested(1_000).SerializeToString())


@given(st.binary(max_size=64))
def test_any_bytes_are_a_row_or_a_payload_error(data: bytes) -> None:
    try:
        (row,) = DECODER.decode(data)
    except PayloadError:
        return
    assert row.keys() <= {field.name for field in Reading.DESCRIPTOR.fields}


def test_values_are_bounded_by_default_because_two_bytes_are_a_message_of_many() -> None:
    DECODER.decode(Reading(list=[Reading()] * 800).SerializeToString())
    with pytest.raises(PayloadError, match="more than 10000 values"):
        DECODER.decode(Reading(list=[Reading()] * 1_000).SerializeToString())


def proto2_decoder() -> MessageDecoder:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    reading = file.message_type.add(name="Reading")
    _add(reading, "device_id", _FIELD.TYPE_STRING)
    _add(reading, "labels", _FIELD.TYPE_MESSAGE, type_name=".old.Reading.LabelsEntry", repeated=True)
    entry = reading.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    _add(entry, "key", _FIELD.TYPE_STRING)
    _add(entry, "value", _FIELD.TYPE_STRING)
    return MessageDecoder(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "old.Reading")


def test_texts_of_proto2_that_are_no_utf_8_are_bytes_and_as_keys_of_a_map_refused() -> None:
    decoder = proto2_decoder()
    assert decoder.decode(b"\x0a\x01\xff") == [{"device_id": b"\xff"}]
    assert decoder.decode(b"\x12\x06\x0a\x01k\x12\x01\xff") == [{"labels": {"k": b"\xff"}}]
    with pytest.raises(PayloadError, match=r"not a message old\.Reading: the key of a map is not UTF-8"):
        decoder.decode(b"\x12\x06\x0a\x01\xff\x12\x01v")


def test_descriptors_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(DescriptorError, match=r"no message type 'acme\.Redding'; it holds .*acme\.Reading"):
        MessageDecoder(FILES.SerializeToString(), "acme.Redding")
    with pytest.raises(DescriptorError, match="not a FileDescriptorSet"):
        MessageDecoder(b"{}", _NAME)
    alone = descriptor_pb2.FileDescriptorSet(file=[FILES.file[-1]])
    with pytest.raises(DescriptorError, match="--include_imports"):
        MessageDecoder(alone.SerializeToString(), _NAME)

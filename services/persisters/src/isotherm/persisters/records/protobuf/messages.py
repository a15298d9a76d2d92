"""Messages of one type as rows, and the type in Avro's terms.

A row has every field: one that is absent has its default, or null if it can tell that it is absent (messages, oneofs,
`optional`). Enums are the names of their values, `google.protobuf.Timestamp` is epoch milliseconds, wrapped values are
plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import message_factory  # type: ignore[import-untyped]  # it ships no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

from isotherm.connector.transforms.schemas import TIMESTAMP, field, optional
from isotherm.servicekit.avro import WireFormatError

Read = Callable[[Any], Any]
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPED = {
    f"google.protobuf.{name}Value": name
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_AVRO: Mapping[str, Any] = {
    "double": "double",
    "float": "float",
    "int64": "long",
    "uint64": "long",
    "sint64": "long",
    "fixed64": "long",
    "sfixed64": "long",
    "int32": "int",
    "uint32": "long",
    "sint32": "int",
    "fixed32": "long",
    "sfixed32": "int",
    "bool": "boolean",
    "string": "string",
    "bytes": "bytes",
}
"""Unsigned numbers take the next wider type, as in Confluent's converter."""
_MAX_DEPTH = 32


class MessageReader:
    """Reads messages of one type. Raises ValueError for a type that is nested too deeply for rows."""

    def __init__(self, descriptor: Any) -> None:
        self._class = message_factory.GetMessageClass(descriptor)
        self._read = _row_reader(descriptor, ())
        self.schema: Any = _record(descriptor, ())
        """The type in Avro's terms."""

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Return the row of a message. Raises WireFormatError."""
        try:
            message = self._class.FromString(data)
        except DecodeError as error:
            raise WireFormatError(f"not a message {self._class.DESCRIPTOR.full_name}: {error}") from None
        row: dict[str, Any] = self._read(message)
        return row


def _row_reader(descriptor: Any, around: tuple[str, ...]) -> Read:
    if descriptor.full_name in around or len(around) > _MAX_DEPTH:
        # A message inside itself has no end in Avro's terms either, so its inner occurrence is bytes.
        return lambda message: message.SerializeToString()
    inside = (*around, descriptor.full_name)
    readers = [(one.name, _field_reader(one, inside)) for one in descriptor.fields]
    return lambda message: {name: read(message) for name, read in readers}


def _field_reader(one: Any, around: tuple[str, ...]) -> Read:
    name = one.name
    if one.is_repeated:
        if _is_map(one):
            read = _value_reader(one.message_type.fields_by_name["value"], around)
            return lambda message: {_key_text(key): read(value) for key, value in getattr(message, name).items()}
        read = _value_reader(one, around)
        return lambda message: [read(value) for value in getattr(message, name)]
    read = _value_reader(one, around)
    if one.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value_reader(one: Any, around: tuple[str, ...]) -> Read:
    if one.message_type is not None:
        full_name = one.message_type.full_name
        if full_name == _TIMESTAMP:
            return lambda value: value.seconds * 1_000 + value.nanos // 1_000_000
        if full_name in _WRAPPED:
            return lambda value: value.value
        return _row_reader(one.message_type, around)
    if one.enum_type is not None:
        names = {number: value.name for number, value in one.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    return lambda value: value


def _key_text(key: Any) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _record(descriptor: Any, around: tuple[str, ...]) -> Any:
    if descriptor.full_name in around or len(around) > _MAX_DEPTH:
        return "bytes"
    inside = (*around, descriptor.full_name)
    space, _, name = descriptor.full_name.rpartition(".")
    fields = [field(one.name, _field_type(one, inside)) for one in descriptor.fields]
    return {"type": "record", "name": name, **({"namespace": space} if space else {}), "fields": fields}


def _field_type(one: Any, around: tuple[str, ...]) -> Any:
    if one.is_repeated:
        if _is_map(one):
            return {"type": "map", "values": _value_type(one.message_type.fields_by_name["value"], around)}
        return {"type": "array", "items": _value_type(one, around)}
    return optional(_value_type(one, around), is_optional=one.has_presence)


def _value_type(one: Any, around: tuple[str, ...]) -> Any:
    if one.message_type is not None:
        full_name = one.message_type.full_name
        if full_name == _TIMESTAMP:
            return TIMESTAMP
        if full_name in _WRAPPED:
            return _AVRO[_WRAPPED[full_name].lower()]
        return _record(one.message_type, around)
    return "string" if one.enum_type is not None else _AVRO[_kind(one)]


def _kind(one: Any) -> str:
    return next(name.removeprefix("TYPE_").lower() for name, number in _type_numbers(one) if number == one.type)


def _type_numbers(one: Any) -> list[tuple[str, int]]:
    return [(name, getattr(type(one), name)) for name in dir(type(one)) if name.startswith("TYPE_")]


def _is_map(one: Any) -> bool:
    return one.message_type is not None and one.message_type.GetOptions().map_entry

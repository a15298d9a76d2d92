"""Decodes payloads in Protocol Buffers: one message is one row, with the fields' names as its keys.

The message type comes from a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it; no
generated code is needed. It needs the extra `protobuf`, so the package itself does not import it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # it ships no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

from isotherm.payloads.errors import PayloadError
from isotherm.payloads.formats import Limits

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SHOWN_TYPES = 10
_DEFAULT_LIMITS = Limits(max_items=10_000)
"""Fewer values than in JSON: two bytes are a message whose absent fields are values as well, each some microseconds."""


class DescriptorError(ValueError):
    """The descriptors cannot be used, or do not hold the message type."""


class MessageDecoder:
    """Decodes the messages of one type.

    Enums are the names of their values, timestamps epoch milliseconds, wrapped values plain ones. A field that can be
    absent and is so is left out, as is an empty text without presence. Any other field without presence has its
    default, because a 0 is not sent.
    """

    def __init__(self, descriptor_set: bytes, message_type: str) -> None:
        """Read a serialized FileDescriptorSet. Raises DescriptorError."""
        pool = descriptor_pool.DescriptorPool()
        names: list[str] = []
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
                pool.AddSerializedFile(file.SerializeToString())
                # The imported files come first, and their types are the least interesting ones.
                names = [f"{file.package}.{message.name}".lstrip(".") for message in file.message_type] + names
            descriptor = pool.FindMessageTypeByName(message_type)
        except DecodeError:
            raise DescriptorError("not a FileDescriptorSet") from None
        except TypeError as error:
            raise DescriptorError(f"{error}; protoc needs --include_imports") from None
        except KeyError:
            known = ", ".join(names[:_SHOWN_TYPES]) or "none"
            raise DescriptorError(f"there is no message type {message_type!r}; it holds {known}") from None
        self._name = message_type
        self._class = message_factory.GetMessageClass(descriptor)

    def decode(self, data: bytes, *, limits: Limits | None = None) -> list[dict[str, Any]]:
        """Return the row of one message.

        Raises PayloadError for bytes that are no such message, for a message of which no field is known, because any
        few bytes are a valid message of unknown fields, and beyond a limit.
        """
        limits = limits or _DEFAULT_LIMITS
        if len(data) > limits.max_bytes:
            raise PayloadError(f"{len(data)} bytes are over the limit of {limits.max_bytes}")
        try:
            message = self._class.FromString(data)
        except DecodeError as error:
            raise PayloadError(f"not a message {self._name}: {error}") from None
        if not message.ListFields():
            raise PayloadError(f"no field of {self._name} is in the payload of {len(data)} bytes")
        try:
            return [_Reader(limits).row(message, 1)]
        except UnicodeDecodeError:
            # proto2 does not check texts. Other fields give their bytes then, but a map cannot look up such a key.
            raise PayloadError(f"not a message {self._name}: the key of a map is not UTF-8") from None


class _Reader:
    """Reads one message within the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.max_items

    def row(self, message: Any, depth: int) -> dict[str, Any]:
        """Return the fields of `message`, which is `depth` messages deep. Raises PayloadError."""
        if depth > self._limits.max_depth:
            raise PayloadError(f"nested deeper than {self._limits.max_depth}")
        row: dict[str, Any] = {}
        for field in message.DESCRIPTOR.fields:
            self._count(1)
            if field.is_repeated:
                if items := getattr(message, field.name):
                    row[field.name] = self._items(field, items, depth)
            elif not field.has_presence:
                value = self._value(field, getattr(message, field.name), depth)
                if value not in ("", b""):
                    row[field.name] = value
            elif message.HasField(field.name):
                row[field.name] = self._value(field, getattr(message, field.name), depth)
        return row

    def _items(self, field: Any, items: Any, depth: int) -> object:
        self._count(len(items))
        if field.message_type is None or not field.message_type.GetOptions().map_entry:
            return [self._value(field, item, depth) for item in items]
        value_field = field.message_type.fields_by_name["value"]
        return {str(key): self._value(value_field, items[key], depth) for key in items}

    def _value(self, field: Any, value: Any, depth: int) -> object:
        if field.message_type is not None:
            name = field.message_type.full_name
            if name == _TIMESTAMP:
                return value.seconds * 1_000 + value.nanos // 1_000_000
            return value.value if name in _WRAPPERS else self.row(value, depth + 1)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        return value

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise PayloadError(f"more than {self._limits.max_items} values")

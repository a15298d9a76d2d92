"""Protocol Buffers and JSON Schema in Confluent's wire format: the value behind the schema id, and its Avro schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from isotherm.persisters.records.decoded_value import Decode, DecodedValue
from isotherm.persisters.records.derived_schemas import derived_writer
from isotherm.persisters.records.json_schema import UnknownShapeError, avro_of_json_schema
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegisteredSchema, SchemaRegistry, WireFormatError, WriterSchema, split

if TYPE_CHECKING:
    from isotherm.persisters.records.protobuf.messages import MessageReader

_log = logs.logger(__name__)

_HEADER_BYTES = 5
_MOST_INDEXES, _MOST_INDEX_BYTES = 32, 5
_MOST_REFERENCES = 1_000
_MOST_TYPES = 10_000


class JsonSchemaDecoder:
    """Decodes JSON behind the id of a JSON Schema. The value is not checked against the schema."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._writers: dict[int, WriterSchema | None] = {}

    def __call__(self, data: bytes) -> DecodedValue:
        """Decode one value. Raises WireFormatError, ValueError, RegistryUnavailableError."""
        schema_id = split(data)
        if schema_id not in self._writers:
            self._writers[schema_id] = self._writer(schema_id)
        return DecodedValue(orjson.loads(data[_HEADER_BYTES:]), self._writers[schema_id])

    def _writer(self, schema_id: int) -> WriterSchema | None:
        registered = _of_type(self._registry, schema_id, "JSON")
        references = {name: orjson.loads(one.text) for name, one in _references(self._registry, registered).items()}
        try:
            return derived_writer(avro_of_json_schema(orjson.loads(registered.text), references))
        except UnknownShapeError as error:
            # Its values are like JSON without a schema: nothing is created from it, and no field is asked of it.
            _log.warning("a JSON Schema says too little for columns", schema=schema_id, reason=str(error))
            return None


class ProtobufDecoder:
    """Decodes messages of Protocol Buffers behind the id of their file and the indexes of their type in it."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._types: dict[tuple[int, tuple[int, ...]], tuple[MessageReader, WriterSchema]] = {}

    def __call__(self, data: bytes) -> DecodedValue:
        """Decode one value. Raises WireFormatError, RegistryUnavailableError."""
        schema_id = split(data)
        indexes, begin = message_indexes(data)
        found = self._types.get((schema_id, indexes))
        if found is None:
            if len(self._types) >= _MOST_TYPES:
                self._types.clear()
            found = self._types[schema_id, indexes] = self._type(schema_id, indexes)
        reader, writer = found
        return DecodedValue(reader(data[begin:]), writer)

    def _type(self, schema_id: int, indexes: tuple[int, ...]) -> tuple[MessageReader, WriterSchema]:
        registered = _of_type(self._registry, schema_id, "PROTOBUF")
        # Only who reads messages waits for the library and for the grammar of .proto files.
        from isotherm.persisters.records.protobuf.files import message_type
        from isotherm.persisters.records.protobuf.messages import MessageReader

        texts = {name: one.text for name, one in _references(self._registry, registered).items()}
        try:
            reader = MessageReader(message_type(registered.text, texts, indexes))
        except ValueError as error:
            raise WireFormatError(f"schema id {schema_id}: {error}") from None
        return reader, derived_writer(reader.schema)


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message's type, and where the message begins.

    They stand behind the schema id as zigzag varints: how many, then each; a single 0 stands for the first type.
    Raises WireFormatError.
    """
    count, at = _varint(data, _HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise WireFormatError(f"{count} message indexes; allowed: {_MOST_INDEXES}")
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(_MOST_INDEX_BYTES):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << 7 * shift
        if byte < 128:
            return number >> 1 ^ -(number & 1), at
    raise WireFormatError("the message indexes behind the schema id cannot be read")


def _of_type(registry: SchemaRegistry, schema_id: int, expected: str) -> RegisteredSchema:
    registered = registry.registered(schema_id)
    if registered.type != expected:
        raise WireFormatError(f"schema id {schema_id} is one of {registered.type}, not of {expected}")
    return registered


def _references(registry: SchemaRegistry, schema: RegisteredSchema) -> dict[str, RegisteredSchema]:
    """Return everything that a schema refers to, also indirectly, by the names in the references."""
    found: dict[str, RegisteredSchema] = {}
    waiting = list(schema.references)
    while waiting:
        reference = waiting.pop()
        if reference.name in found:
            continue
        if len(found) >= _MOST_REFERENCES:
            raise WireFormatError(f"a schema refers to more than {_MOST_REFERENCES} others")
        found[reference.name] = registry.version(reference.subject, reference.version)
        waiting += found[reference.name].references
    return found


def registry_formats(registry: SchemaRegistry) -> Callable[[int], Decode | None]:
    """Return what chooses the decoder of a schema id by the registry's type; None for Avro and unknown types."""
    decoders: dict[str, Decode] = {"PROTOBUF": ProtobufDecoder(registry), "JSON": JsonSchemaDecoder(registry)}
    types: dict[int, str] = {}

    def decoder_of(schema_id: int) -> Decode | None:
        if schema_id not in types:
            if len(types) >= _MOST_TYPES:
                types.clear()
            types[schema_id] = registry.registered(schema_id).type
        return decoders.get(types[schema_id])

    return decoder_of

"""From a record's bytes to a value: Avro by schema id, JSON with or without a schema envelope, text, bytes.

Times of `timestamp-millis` stay the epoch milliseconds that the bytes hold: that is the form they have in documents,
in CQL and in ids, and reading them as datetimes would cost more than all the rest of the decoding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from isotherm.connector.config.converters import CONVERTERS
from isotherm.flatavro import columns as batches
from isotherm.flatavro import reading as flat
from isotherm.persisters.records.connect_json import EnvelopeReader
from isotherm.servicekit.avro import (
    JsonSchema,
    SchemaRegistry,
    WireFormatError,
    is_recursive,
    parse,
    read_body,
    split,
)

_WIRE_HEADER_BYTES = 5
_FEW_RECORDS = 100
"""Up to so many, reading one after another is quicker than setting out to read all at once."""
_MAGIC = b"\x00"
_JSON_BEGINNINGS = frozenset(b' \t\r\n{["-0123456789tfn')
"""RFC 8259, 2 and 3: blanks, and the first characters of values."""
_MILLIS = ("timestamp-millis", "local-timestamp-millis")
BAD_RECORD = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    EOFError,
    RecursionError,
    struct.error,
)
"""What reading, projecting or serializing a record raises where the record itself is to blame, and always will be."""


class WriterSchema(NamedTuple):
    """The schema that a value was written with."""

    schema_id: int
    json: JsonSchema
    parsed: Any
    """For fastavro, with times of milliseconds as numbers."""
    is_recursive: bool = False


class Decoded(NamedTuple):
    """A value and, where it is Avro, its writer's schema."""

    value: Any
    writer: WriterSchema | None = None


class FlatBatch:
    """The values of a batch of records that have all been written with one flat schema."""

    def __init__(self, writer: WriterSchema, values: list[Any], columns: Mapping[str, list[Any]] | None = None) -> None:
        self.writer = writer
        self.values = values
        self._columns = columns

    def column(self, name: str) -> list[Any]:
        """One field of all values."""
        return list(map(itemgetter(name), self.values)) if self._columns is None else self._columns[name]


class _Reader(NamedTuple):
    """What reads the values of one schema; the readers are None where it is not flat."""

    writer: WriterSchema
    read: flat.Read | None
    read_batch: batches.ReadBatch | None


Decode = Callable[[bytes], Decoded]
"""Raises WireFormatError or another of BAD_RECORD for bytes that are bad for ever, RegistryUnavailableError."""


def value_decoder(converter: str, registry: SchemaRegistry, *, envelope: bool = False) -> Decode:
    """The decoder that a `value.converter` (a key of CONVERTERS) asks for.

    `envelope` is Connect's `schemas.enable`: JSON values are `{"schema": .., "payload": ..}`. See `connect_json`.
    """
    avro = AvroDecoder(registry)
    read_json = _enveloped() if envelope else _json
    decoders: dict[str, Decode] = {
        "avro": avro,
        "json": read_json,
        "string": lambda data: Decoded(data.decode()),
        "bytes": Decoded,
        "auto": AvroDecoder(registry, otherwise=_told_apart(read_json)),
    }
    return decoders[CONVERTERS[converter]]


def key_decoder(converter: str, registry: SchemaRegistry, *, envelope: bool = False) -> Decode:
    """As `value_decoder` for keys, where `auto` takes what is neither Avro nor a JSON object as text."""
    if CONVERTERS[converter] != "auto":
        return value_decoder(converter, registry, envelope=envelope)
    avro = AvroDecoder(registry)

    def sniffed(data: bytes) -> Decoded:
        if data[:1] == _MAGIC:
            return avro(data)
        text = data.decode()
        return Decoded(json.loads(text)) if text[:1] == "{" else Decoded(text)

    return sniffed


class AvroDecoder:
    """Values in Confluent's wire format, each schema fetched and parsed once.

    Values that do not begin as that format does are read by `otherwise`; without it they are refused.
    """

    def __init__(self, registry: SchemaRegistry, otherwise: Decode | None = None) -> None:
        self._registry = registry
        self._otherwise = otherwise
        self._known: dict[bytes, _Reader] = {}
        """By the header of the wire format."""

    def __call__(self, data: bytes) -> Decoded:
        """Decode one value.

        Raises WireFormatError (UnknownSchemaError among them), RegistryUnavailableError.
        """
        header = data[:_WIRE_HEADER_BYTES]
        known = self._known.get(header)
        if known is None:
            if self._otherwise is not None and header[:1] != _MAGIC:
                return self._otherwise(data)
            known = self._known[header] = self._reader(split(data))
        return Decoded(self._value(data, known), known.writer)

    def flat_batch(self, batch: Sequence[bytes | None]) -> FlatBatch | None:
        """The values of a batch that was written with one flat schema, known already; None for any other batch.

        None also when one of them cannot be decoded: `__call__` says which, and why.
        """
        header = (batch[0] or b"")[:_WIRE_HEADER_BYTES]
        known = self._known.get(header)
        if known is None or known.read_batch is None:
            return None
        values = [data for data in batch if data is not None and data.startswith(header)]
        if len(values) < len(batch):
            return None
        if len(values) > _FEW_RECORDS:
            try:
                return FlatBatch(known.writer, *known.read_batch(values))
            except (*flat.UNUSUAL, *BAD_RECORD):
                # A single record may be to blame: one by one then.
                pass
        try:
            return FlatBatch(known.writer, [self._value(data, known) for data in values])
        except WireFormatError:
            return None

    def _value(self, data: bytes, known: _Reader) -> Any:
        if known.read is not None:
            try:
                return known.read(data)
            except (*flat.UNUSUAL, *BAD_RECORD):
                # For fastavro to read, or to say what is wrong.
                pass
        return self._read(data, known.writer)

    def _read(self, data: bytes, writer: WriterSchema) -> Any:
        try:
            value, left = read_body(data, writer.parsed, None, recursive=writer.is_recursive)
        except BAD_RECORD as error:
            raise WireFormatError(f"the body does not fit schema id {writer.schema_id}: {error!r}") from error
        if left:
            raise WireFormatError(f"{left} bytes are left over after schema id {writer.schema_id}")
        return value

    def _reader(self, schema_id: int) -> _Reader:
        schema = self._registry.schema(schema_id).json
        plain = _times_as_numbers(schema)
        return _Reader(
            WriterSchema(schema_id, schema, parse(plain), is_recursive(schema)),
            flat.flat_reader(plain, _WIRE_HEADER_BYTES),
            batches.flat_batch_reader(plain, _WIRE_HEADER_BYTES),
        )


def _times_as_numbers(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_times_as_numbers(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: _times_as_numbers(inner)
        for name, inner in schema.items()
        if not (name == "logicalType" and inner in _MILLIS)
    }


def _told_apart(read_json: Decode) -> Decode:
    def read(data: bytes) -> Decoded:
        if data and data[0] not in _JSON_BEGINNINGS:
            raise WireFormatError(f"magic byte is {data[0]}, expected 0; and no JSON text begins so")
        return read_json(data)

    return read


def _json(data: bytes) -> Decoded:
    return Decoded(orjson.loads(data))


def _enveloped() -> Decode:
    read = EnvelopeReader()
    return lambda data: Decoded(read(data))

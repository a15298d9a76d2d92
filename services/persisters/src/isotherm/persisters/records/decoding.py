"""From a record's bytes to a value: Avro by schema id, JSON with or without a schema envelope, text, bytes.

A time of `timestamp-millis` stays the number of epoch milliseconds that the bytes hold. Documents, CQL and ids use that
form, and converting it to a datetime would cost more than the rest of the decoding.
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
from isotherm.persisters.hotpath import Buffers, ReadColumns
from isotherm.persisters.records.columns.columnar import ColumnKinds, column_kinds
from isotherm.persisters.records.connect_json import EnvelopeReader
from isotherm.persisters.records.decoded_value import Decode, DecodedValue
from isotherm.persisters.records.registry_formats import JsonSchemaDecoder, ProtobufDecoder, registry_formats
from isotherm.servicekit.avro import (
    SchemaRegistry,
    UnknownSchemaError,
    WireFormatError,
    WriterSchema,
    is_recursive,
    parse,
    read_value,
    split,
)

_WIRE_HEADER_BYTES = 5
_FEW_RECORDS = 100
"""Up to so many records, reading one after another is quicker than setting up to read them all at once."""
_MAGIC = b"\x00"
_JSON_BEGINNINGS = frozenset(b' \t\r\n{["-0123456789tfn')
"""Blanks, and the first characters of JSON values (RFC 8259, sections 2 and 3)."""
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
"""What decoding, projecting or serializing raises if the record itself is bad and stays so."""


class FlatBatch:
    """The values of a batch of records that were all written with one flat schema."""

    def __init__(self, writer: WriterSchema, values: list[Any], columns: Mapping[str, list[Any]] | None = None) -> None:
        self.writer = writer
        self.values = values
        self._columns = columns

    def column(self, name: str) -> list[Any]:
        """Return one field of all values."""
        return list(map(itemgetter(name), self.values)) if self._columns is None else self._columns[name]


class _SchemaReader(NamedTuple):
    """The readers of one schema; `read`, `read_batch` and `kinds` are None unless the schema is flat."""

    writer: WriterSchema
    read: flat.Read | None
    read_batch: batches.ReadBatch | None
    kinds: ColumnKinds | None
    """Of the columns that the compiled reader fills."""


def value_decoder(converter: str, registry: SchemaRegistry, *, envelope: bool = False) -> Decode:
    """Return the decoder for a `value.converter` (a key of CONVERTERS).

    `envelope` is Connect's `schemas.enable`: JSON values are `{"schema": .., "payload": ..}`, see `connect_json`.
    """
    read_json = _enveloped() if envelope else _json
    decoders: dict[str, Callable[[], Decode]] = {
        "avro": lambda: AvroDecoder(registry),
        "protobuf": lambda: ProtobufDecoder(registry),
        "jsonschema": lambda: JsonSchemaDecoder(registry),
        "json": lambda: read_json,
        "string": lambda: lambda data: DecodedValue(data.decode()),
        "bytes": lambda: DecodedValue,
        "auto": lambda: AvroDecoder(registry, otherwise=_json_only(read_json), formats=registry_formats(registry)),
    }
    return decoders[CONVERTERS[converter]]()


def key_decoder(converter: str, registry: SchemaRegistry, *, envelope: bool = False) -> Decode:
    """Return the decoder for a `key.converter`; `auto` reads what is neither Avro nor a JSON object as text."""
    if CONVERTERS[converter] != "auto":
        return value_decoder(converter, registry, envelope=envelope)
    avro = AvroDecoder(registry, formats=registry_formats(registry))

    def sniffed(data: bytes) -> DecodedValue:
        if data[:1] == _MAGIC:
            return avro(data)
        text = data.decode()
        return DecodedValue(json.loads(text)) if text[:1] == "{" else DecodedValue(text)

    return sniffed


class AvroDecoder:
    """Decodes values in Confluent's wire format; fetches and parses each schema once.

    Values that do not begin with the magic byte go to `otherwise`; without it they are refused. So do values of other
    types of schemas to what `formats` returns for the schema's id.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        otherwise: Decode | None = None,
        formats: Callable[[int], Decode | None] | None = None,
    ) -> None:
        self._registry = registry
        self._otherwise = otherwise
        self._formats = formats
        self._others: dict[bytes, Decode] = {}
        """The decoders of values that are not Avro, by the value's header."""
        self._known: dict[bytes, _SchemaReader] = {}
        """The readers by the value's header in the wire format."""

    def __call__(self, data: bytes) -> DecodedValue:
        """Decode one value.

        Raises WireFormatError (UnknownSchemaError among them), RegistryUnavailableError.
        """
        header = data[:_WIRE_HEADER_BYTES]
        known = self._known.get(header)
        if known is None:
            if self._otherwise is not None and header[:1] != _MAGIC:
                return self._otherwise(data)
            other = self._others.get(header)
            if other is not None:
                return other(data)
            schema_id = split(data)
            try:
                known = self._known[header] = self._reader(schema_id)
            except UnknownSchemaError:
                raise
            except WireFormatError:
                other = None if self._formats is None else self._formats(schema_id)
                if other is None:
                    raise
                self._others[header] = other
                return other(data)
        return DecodedValue(self._value(data, known), known.writer)

    def flat_batch(self, batch: Sequence[bytes | None]) -> FlatBatch | None:
        """Return the values of a batch that was written with one flat schema; None for any other batch.

        It also returns None if the schema is not known yet, or if one of the values cannot be decoded: `__call__`
        reports which one, and why.
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
            except (*flat.FALLBACK_ERRORS, *BAD_RECORD):
                # A single record may be the cause: read them one by one.
                pass
        try:
            return FlatBatch(known.writer, [self._value(data, known) for data in values])
        except WireFormatError:
            return None

    def columns(self, batch: list[bytes | None], read: ReadColumns) -> tuple[WriterSchema, list[Buffers]] | None:
        """Return the columns of a batch that was written with one flat schema; None for any other batch.

        Where a value cannot be decoded it returns None too, as `flat_batch`. `read` is the compiled reader.
        """
        header = (batch[0] or b"")[:_WIRE_HEADER_BYTES]
        known = self._known.get(header)
        if known is None or known.kinds is None:
            return None
        found = read(known.kinds.kinds, batch, header)
        return None if found is None else (known.writer, found)

    def kinds(self, schema_id: int) -> ColumnKinds | None:
        """Return the kinds of the columns of a schema of which a value was decoded; None if it has none."""
        known = self._known.get(_MAGIC + schema_id.to_bytes(4))
        return None if known is None else known.kinds

    def _value(self, data: bytes, known: _SchemaReader) -> Any:
        if known.read is not None:
            try:
                return known.read(data)
            except (*flat.FALLBACK_ERRORS, *BAD_RECORD):
                # fastavro reads the value or reports what is wrong with it.
                pass
        return read_value(data, known.writer)

    def _reader(self, schema_id: int) -> _SchemaReader:
        schema = self._registry.schema(schema_id).json
        plain = flat.times_as_numbers(schema)
        return _SchemaReader(
            WriterSchema(schema_id, schema, parse(plain), is_recursive(schema)),
            flat.flat_reader(plain, _WIRE_HEADER_BYTES),
            batches.flat_batch_reader(plain, _WIRE_HEADER_BYTES),
            column_kinds(plain),
        )


def _json_only(read_json: Decode) -> Decode:
    def read(data: bytes) -> DecodedValue:
        if data and data[0] not in _JSON_BEGINNINGS:
            raise WireFormatError(f"magic byte is {data[0]}, expected 0, and no JSON text begins with it")
        return read_json(data)

    return read


def _json(data: bytes) -> DecodedValue:
    return DecodedValue(orjson.loads(data))


def _enveloped() -> Decode:
    read = EnvelopeReader()
    return lambda data: DecodedValue(*read(data))

"""Avro: schemas that anybody may register, bodies of any bytes, and Kafka Connect's JSON with schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

import isotherm.schemas
from isotherm.console.records.decoding import value_decoder
from isotherm.persisters.records.connect_json import EnvelopeReader
from isotherm.persisters.records.decoding import BAD_RECORD, AvroDecoder
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.proofs.fuzzing.target import Target, expect, split
from isotherm.servicekit.avro import (
    Decoder,
    SchemaRegistry,
    WireFormatError,
    WriterSchema,
    encoder,
    parse,
    read_value,
)
from isotherm.servicekit.registry_client import Schema
from isotherm.servicekit.settings import RegistrySettings

_HEADER = bytes((0, 0, 0, 0, 7))


class _OneSchema:
    """A registry's client that has one schema."""

    def __init__(self) -> None:
        self.text = ""

    def get_schema(self, _schema_id: int) -> Schema:
        return Schema(self.text, "AVRO")


def schema_target() -> Callable[[bytes], None]:
    """Return the check that a schema and a body, separated by a zero byte, are a value or a bad record."""
    client = _OneSchema()

    def run(data: bytes) -> None:
        text, body = split(data, 2)
        client.text = text.decode("utf-8", "replace")
        decode = AvroDecoder(_registry(client))
        try:
            value = decode(_HEADER + body).value
        except BAD_RECORD:
            return
        batch = decode.flat_batch([_HEADER + body] * 101)
        # As texts, because a NaN is not equal to itself.
        expect(batch is None or repr(batch.values) == repr([value] * 101), "a batch is read otherwise")
        try:
            to_json(value)
        except NotADocumentError:
            return

    return run


_EMPTY_REGISTRY = SchemaRegistry(RegistrySettings())


def display_target() -> Callable[[bytes], None]:
    """Return the check that the console shows any value of a topic as JSON, whatever its schema."""
    client = _OneSchema()

    def run(data: bytes) -> None:
        text, body = split(data, 2)
        client.text = text.decode("utf-8", "replace")
        show = value_decoder(Decoder(_registry(client)))
        for value in (_HEADER + body, data):
            orjson.dumps(show(value).value)

    return run


def _registry(client: _OneSchema) -> SchemaRegistry:
    registry = SchemaRegistry.__new__(SchemaRegistry)
    registry.__dict__.update(_EMPTY_REGISTRY.__dict__, client=client, _by_id={})
    return registry


def reading_target() -> Callable[[bytes], None]:
    """Return the check that flat readers read what fastavro reads, and that what is read survives writing."""
    records = [record for record in isotherm.schemas.records() if record != "CoapMessage"]
    known = [_Known(isotherm.schemas.schema(record, max(isotherm.schemas.versions(record)))) for record in records]

    def run(data: bytes) -> None:
        if data:
            known[data[0] % len(known)].check(_HEADER + data[1:])

    return run


class _Known:
    """One schema of the suite."""

    def __init__(self, schema: dict[str, Any]) -> None:
        client = _OneSchema()
        client.text = json.dumps(schema)
        registry = SchemaRegistry(RegistrySettings())
        registry.client = client  # type: ignore[assignment]  # it has what is used of a client
        self._decode = AvroDecoder(registry)
        self._plain = WriterSchema(7, schema, parse(_without_logical_types(schema)))
        self._encode = encoder(_without_logical_types(schema), 7)

    def check(self, data: bytes) -> None:
        try:
            by_fastavro = read_value(data, self._plain)
        except WireFormatError:
            try:
                self._decode(data)
            except WireFormatError:
                return
            raise
        found = self._decode(data).value
        expect(repr(found) == repr(by_fastavro), "fastavro reads it otherwise")
        again = read_value(self._encode(found), self._plain)
        expect(repr(again) == repr(found), "what is read changes when written")


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_logical_types(inner) for name, inner in schema.items() if name != "logicalType"}


def connect_json_target() -> Callable[[bytes], None]:
    """Return the check that an envelope of Connect's JsonConverter is a document or a bad record."""

    def run(data: bytes) -> None:
        try:
            to_json(EnvelopeReader()(data)[0])
        except BAD_RECORD:
            return

    return run


_WORDS = (
    b'{"type":"record","name":"R","fields":[]}',
    b'{"name":"a","type":',
    b'"items":"null"',
    b'"logicalType":"decimal"',
)
_ENVELOPE = (b'{"schema":', b'"payload":', b'"optional":true', b'"default":', b'"name":"org.apache.kafka.connect.data.')

TARGETS = (
    Target(
        name="avro-schema",
        make=schema_target,
        dictionary=(*_WORDS, *(f'"{name}"'.encode() for name in ("array", "map", "fixed", "enum", "null", "size"))),
        quick_inputs=60,
    ),
    Target(
        name="console-records",
        make=display_target,
        dictionary=(*_WORDS, b'{"type":"array","items":"R"}', b'["null","R"]', b"[[", b'{"a":'),
        quick_inputs=60,
    ),
    Target(name="avro-records", make=reading_target),
    Target(
        name="connect-json",
        make=connect_json_target,
        dictionary=(
            *_ENVELOPE,
            *(f'"{name}"'.encode() for name in ("struct", "array", "map", "bytes", "int32", "Decimal")),
        ),
    ),
)

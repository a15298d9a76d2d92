"""Kafka Connect's transforms between decoding and projection: the record that the statements see."""

from __future__ import annotations

from typing import Any, NamedTuple

from isotherm.connector.transforms.chain import Chain
from isotherm.connector.transforms.message import Message, Schema
from isotherm.connector.transforms.schemas import IDENTITY, REVISION, per_schema, resolved, shape
from isotherm.persisters.api.record import Record
from isotherm.persisters.records.decoded_value import DecodedValue
from isotherm.persisters.records.derived_schemas import derived_writer
from isotherm.servicekit import logs
from isotherm.servicekit.avro import WriterSchema

_log = logs.logger(__name__)

_MOST_TOLD = 1_000


class TransformedRecord(NamedTuple):
    """A record after the transforms."""

    record: Record
    """As it came, but with the topic and the headers of the transforms, and without the bytes of its value."""
    key: Any
    value: DecodedValue


class RecordTransforms:
    """The chain of a connector, applied to decoded records."""

    def __init__(self, chain: Chain) -> None:
        self._apply = chain.apply
        self.uses_key = chain.uses_key
        self._resolved = per_schema(resolved)
        self._writer = per_schema(_writer)
        self._told: set[int] = set()
        """The schemas after the transforms of which it was told what they lost."""

    def __call__(self, record: Record, key: DecodedValue, value: DecodedValue) -> TransformedRecord | None:
        """Return the transformed record; None if the transforms filter it. Raises TransformError."""
        message = self._apply(
            Message(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp_ms,
                self._schema(key.writer),
                key.value,
                self._schema(value.writer),
                value.value,
                tuple(record.headers),
            )
        )
        if message is None:
            return None
        changed = record._replace(topic=message.topic, headers=message.headers, value=None)
        writer = None if message.value_schema is None else self._writer(message.value_schema)
        if writer is not None and value.writer is not None:
            self._tell_lost(value.writer, writer)
        return TransformedRecord(changed, message.key, DecodedValue(message.value, writer))

    def _schema(self, writer: WriterSchema | None) -> Schema:
        return None if writer is None else self._resolved(writer.json)

    def _tell_lost(self, before: WriterSchema, after: WriterSchema) -> None:
        if after.schema_id in self._told:
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(after.schema_id)
        lost = [name for name in (IDENTITY, REVISION) if name in before.json and name not in after.json]
        if lost:
            _log.warning(
                "transforms change fields that the schema declares; rows without PK get ids of topic and offset",
                schema=before.schema_id,
                lost=lost,
            )


def _writer(schema: Schema) -> WriterSchema | None:
    """Return the schema of rows; None for data that are no record, which no statement can select fields of."""
    found = shape(schema)
    return derived_writer(found.core) if found.type == "struct" else None

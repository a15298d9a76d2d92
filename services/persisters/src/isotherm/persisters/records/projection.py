"""From a record to the rows that the connector's statements make of it, or to the reason why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from isotherm import kcql
from isotherm.kcql.model import Part, Statement
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.hotpath import ReadColumns
from isotherm.persisters.records.columns.columnar import ProjectColumns, project_columns
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoded_value import Decode, DecodedValue
from isotherm.persisters.records.decoding import BAD_RECORD, AvroDecoder
from isotherm.persisters.records.derived_schemas import is_avro, is_record
from isotherm.persisters.records.fast_path import ProjectBatch, ProjectRecord, project_whole_batches, raw_values
from isotherm.persisters.records.row_projection import TombstoneError, row_projection
from isotherm.persisters.records.transforming import RecordTransforms
from isotherm.servicekit.avro import RegistryUnavailableError, UnknownSchemaError, WireFormatError, WriterSchema

_NO_VALUE = DecodedValue(None)
_MOST_SCHEMAS = 1_000
_MOST_TOPICS = 10_000
"""Transforms make topics of what devices send; so many are remembered."""
_NO_CONVENTIONS = Conventions()


class _TopicProjections(NamedTuple):
    """The projections of one topic."""

    statements: Sequence[Statement]
    """The statements that read the topic."""
    by_schema: dict[int | None, list[ProjectRecord]]
    """Their projections, by the id of the writer schema; None for values without one."""
    of_batches: dict[int | None, ProjectBatch | None]
    """The projection of whole batches, if a single statement reads the topic and has one."""
    of_columns: dict[int | None, ProjectColumns | None]
    """The projection of columns, likewise."""


class Projector:
    """Applies every statement that reads a record's topic; compiles each once for each writer schema."""

    def __init__(
        self,
        statements: Sequence[Statement],
        decode_value: Decode,
        decode_key: Decode,
        conventions: Conventions = _NO_CONVENTIONS,
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
        transforms: RecordTransforms | None = None,
        read_columns: ReadColumns | None = None,
    ) -> None:
        """`clock_ms` returns the time now in epoch milliseconds; it decides which records are expired.

        With `read_columns` batches become ColumnarRows where they can.
        """
        self._read_columns = read_columns
        self._statements = statements
        self._decode_value = decode_value
        self._decode_key = decode_key
        self._conventions = conventions
        self._clock_ms = clock_ms
        self._transforms = transforms
        is_key_transformed = transforms is not None and transforms.uses_key
        self._needs_key = is_key_transformed or any(_uses_key(statement) for statement in statements)
        self._by_topic: dict[str, _TopicProjections] = {}

    def __call__(self, record: Record) -> ProjectedRecord:
        """Decode and project one record.

        Raises RegistryUnavailableError if its schema cannot be fetched now.
        """
        of_topic = self._by_topic.get(record.topic) or self._of(record.topic)
        if not of_topic.statements and self._transforms is None:
            return ProjectedRecord(filtered="no_statement")
        stage, reason, source = "VALUE_CONVERTER", "decode", record
        try:
            value = _NO_VALUE if record.value is None else self._decode_value(record.value)
            stage = "KEY_CONVERTER"
            decoded_key = self._decode_key(record.key) if self._needs_key and record.key is not None else None
            key: Any = record.key if decoded_key is None else decoded_key.value
            stage, reason = "TRANSFORMATION", "transform"
            if self._transforms is not None:
                transformed = self._transforms(record, decoded_key or DecodedValue(record.key), value)
                if transformed is None:
                    return ProjectedRecord(filtered="transform")
                source, key, value = transformed
                of_topic = self._of(source.topic)
            reason = "projection"
            rows, filtered = self._rows(of_topic, source, key, value)
        except RegistryUnavailableError:
            raise
        except BAD_RECORD as error:
            return ProjectedRecord(failed=FailedRecord(record, stage, _reason(error, reason), error))
        return ProjectedRecord(rows) if rows else ProjectedRecord(filtered=filtered)

    def _rows(
        self, of_topic: _TopicProjections, record: Record, key: Any, value: DecodedValue
    ) -> tuple[list[Row], str]:
        """Return the rows of a record, and why there are none."""
        if not of_topic.statements:
            return [], "no_statement"
        writer = value.writer
        projections = of_topic.by_schema.get(None if writer is None else writer.schema_id)
        if projections is None:
            if len(of_topic.by_schema) >= _MOST_SCHEMAS:
                of_topic.by_schema.clear()
            projections = self._compile(of_topic, writer)
        rows, filtered = [], ""
        for project in projections:
            made = project(record, key, value.value)
            if isinstance(made, str):
                filtered = filtered or made
            else:
                rows.append(made)
        return rows, filtered

    def _of(self, topic: str) -> _TopicProjections:
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            if len(self._by_topic) >= _MOST_TOPICS:
                self._by_topic.clear()
            statements = [statement for statement in self._statements if statement.matches(topic)]
            of_topic = self._by_topic[topic] = _TopicProjections(statements, {}, {}, {})
        return of_topic

    def try_project_batch(self, records: Sequence[Record]) -> Sequence[Row] | None:
        """Return the rows of records of one topic by the fast path; None if `__call__` has to look at each record.

        A record without a row is one that WHERE leaves out. It returns None for the first records of a schema, which is
        compiled with them.
        """
        of_topic = self._by_topic.get(records[0].topic)
        decode = self._decode_value
        if of_topic is None or not of_topic.of_batches or not isinstance(decode, AvroDecoder):
            return None
        if self._transforms is not None:
            return None
        values = raw_values(records)
        if self._read_columns is not None:
            found = decode.columns(values, self._read_columns)
            of_columns = None if found is None else of_topic.of_columns.get(found[0].schema_id)
            if found is not None and of_columns is not None:
                return of_columns(records, found[1])
        return self._flat_rows(records, of_topic, decode)

    def _flat_rows(
        self, records: Sequence[Record], of_topic: _TopicProjections, decode: AvroDecoder
    ) -> Sequence[Row] | None:
        batch = decode.flat_batch(raw_values(records))
        if batch is None:
            return None
        project = of_topic.of_batches.get(batch.writer.schema_id)
        try:
            return None if project is None else project(records, batch)
        except BAD_RECORD:
            # `__call__` reports which record is bad, and why.
            return None

    def _only_row(self, record: Record) -> Row:
        """Return the row of a record that has one."""
        (row,) = self(record).rows
        return row

    def _only_rows(self, records: Sequence[Record]) -> Sequence[Row]:
        """Return the rows of records of one topic that have one each."""
        of_topic, decode = self._by_topic.get(records[0].topic), self._decode_value
        if of_topic is not None and isinstance(decode, AvroDecoder):
            rows = self._flat_rows(records, of_topic, decode)
            if rows is not None:
                return rows
        return list(map(self._only_row, records))

    def _compile(self, of_topic: _TopicProjections, writer: WriterSchema | None) -> list[ProjectRecord]:
        conventions, clock_ms = self._conventions, self._clock_ms
        known = writer if writer is None or is_record(writer) else None
        plans = [compile_plan(one, known, conventions.pk_separator) for one in of_topic.statements]
        projections = [row_projection(plan, conventions, clock_ms) for plan in plans]
        schema_id = None if writer is None else writer.schema_id
        of_topic.by_schema[schema_id] = projections
        if len(plans) == 1:
            of_topic.of_batches[schema_id] = project_whole_batches(plans[0], conventions, clock_ms)
            if isinstance(self._decode_value, AvroDecoder) and known is not None and is_avro(known):
                kinds = self._decode_value.kinds(known.schema_id)
                of_topic.of_columns[known.schema_id] = (
                    None
                    if kinds is None
                    else project_columns(plans[0], kinds, conventions, self._only_row, self._only_rows)
                )
        return projections


def _uses_key(statement: Statement) -> bool:
    paths = [field.path for field in statement.fields] + list(statement.primary_key)
    paths += kcql.paths_of(statement.where)
    paths += [path for path in (statement.target_from, statement.timestamp) if path is not None]
    return any(path.part is Part.KEY for path in paths)


def _reason(error: Exception, default: str) -> str:
    if isinstance(error, UnknownSchemaError):
        return "unknown_schema"
    if isinstance(error, WireFormatError):
        return "wire_format"
    if isinstance(error, TombstoneError):
        return "tombstone"
    return default

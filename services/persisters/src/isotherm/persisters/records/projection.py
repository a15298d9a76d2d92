"""From a record to the rows that the connector's statements make of it, or to the reason why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from isotherm import kcql
from isotherm.kcql.model import SYS_TIME, Part, Statement
from isotherm.kcql.dates import epoch_ms
from isotherm.persisters.records.decoding import (
    BAD_RECORD,
    AvroDecoder,
    Decode,
    Decoded,
    WriterSchema,
)
from isotherm.persisters.records.fast_path import (
    UNREAD,
    MakeRows,
    identifier,
    is_its_own_row,
    raw_values,
    rows_maker,
)
from isotherm.persisters.records.plan import Plan, compile_plan
from isotherm.persisters.sinks.sink import Row
from isotherm.persisters.task.in_flight_batch import Prepared, Record, Refusal
from isotherm.servicekit.avro import RegistryUnavailableError, UnknownSchemaError, WireFormatError

NULL_VALUES = "behavior.on.null.values"
"""Statement property: what a record without a value does (IGNORE, DELETE, FAIL)."""


@dataclass(frozen=True)
class Conventions:
    """What differs between sinks in reading a statement."""

    pk_separator: str = "-"
    ttl_unit_ms: int | None = None
    """What one unit of TTL is; None when the sink has no TTL."""
    retention_ms: int | None = None
    """After which time dated targets (WITHINDEXSUFFIX) are dropped; None for never."""

    def lifetime_ms(self, statement: Statement) -> int | None:
        """How long after its event time a row of `statement` is of use; None for ever."""
        if statement.ttl is not None and self.ttl_unit_ms is not None:
            return statement.ttl * self.ttl_unit_ms
        is_dated = statement.index_suffix is not None and statement.target_from is None
        return self.retention_ms if is_dated else None


class TombstoneError(ValueError):
    """A record without a value, where the statement says that this is a failure or that it cannot be deleted."""


class Projector:
    """Applies every statement that reads a record's topic; compiled once for each statement and writer schema."""

    def __init__(
        self,
        statements: Sequence[Statement],
        decode_value: Decode,
        decode_key: Decode,
        conventions: Conventions = Conventions(),
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._statements = statements
        self._decode_value = decode_value
        self._decode_key = decode_key
        self._conventions = conventions
        self._clock_ms = clock_ms
        self._needs_key = any(_uses_key(statement) for statement in statements)
        self._by_topic: dict[str, _TopicMakers] = {}

    def __call__(self, record: Record) -> Prepared:
        """What becomes of `record`.

        Raises RegistryUnavailableError when its schema cannot be had now.
        """
        of_topic = self._by_topic.get(record.topic)
        if of_topic is None:
            of_topic = self._by_topic[record.topic] = _TopicMakers(
                [statement for statement in self._statements if statement.matches(record.topic)], {}, {}
            )
        if not of_topic.statements:
            return Prepared(filtered="no_statement")
        stage, reason = "VALUE_CONVERTER", "decode"
        try:
            value, writer = _NOTHING if record.value is None else self._decode_value(record.value)
            stage = "KEY_CONVERTER"
            key = self._decode_key(record.key).value if self._needs_key and record.key is not None else record.key
            stage, reason = "TRANSFORMATION", "projection"
            makers = of_topic.by_schema.get(None if writer is None else writer.schema_id)
            if makers is None:
                makers = self._makers(of_topic, writer)
            rows = []
            for make in makers:
                row = make(record, key, value)
                if row is not None:
                    rows.append(row)
        except RegistryUnavailableError:
            raise
        except BAD_RECORD as error:
            return Prepared(refusal=Refusal(record, stage, _reason(error, reason), error))
        if not rows:
            return Prepared(filtered="tombstone" if value is None else "expired")
        return Prepared(rows)

    def usual(self, records: Sequence[Record]) -> list[Row] | None:
        """The rows of records of one topic where each makes one in the usual way; None where `__call__` has to look.

        Never so for the first records of a schema.
        """
        of_topic = self._by_topic.get(records[0].topic)
        decode = self._decode_value
        if of_topic is None or not of_topic.of_batches or not isinstance(decode, AvroDecoder):
            return None
        batch = decode.flat_batch(raw_values(records))
        if batch is None:
            return None
        make = of_topic.of_batches.get(batch.writer.schema_id)
        try:
            return None if make is None else make(records, batch)
        except BAD_RECORD:
            # `__call__` says of which record, and why.
            return None

    def _makers(self, of_topic: _TopicMakers, writer: WriterSchema | None) -> list[_Make]:
        plans = [compile_plan(one, writer, self._conventions.pk_separator) for one in of_topic.statements]
        makers = [_row_maker(plan, self._conventions, self._clock_ms) for plan in plans]
        schema_id = None if writer is None else writer.schema_id
        of_topic.by_schema[schema_id] = makers
        if len(plans) == 1:
            conventions = self._conventions
            of_topic.of_batches[schema_id] = rows_maker(
                plans[0], conventions.lifetime_ms, conventions.pk_separator, self._clock_ms
            )
        return makers


_NOTHING = Decoded(None)
_Make = Callable[[Record, Any, Any], Row | None]
"""From a record as it came, its key and its value to its row; None where the statement makes none of it."""


class _TopicMakers(NamedTuple):
    statements: Sequence[Statement]
    """That read the topic."""
    by_schema: dict[int | None, list[_Make]]
    """Their makers by the id of the writer's schema; None for values without one."""
    of_batches: dict[int | None, MakeRows | None]
    """Where a single statement makes rows of whole batches, its maker."""


def _row_maker(plan: Plan, conventions: Conventions, clock_ms: Callable[[], float]) -> _Make:
    """Everything about a plan that is the same for all records is decided here and not for each of them."""
    statement, projection, revision = plan.statement, plan.projection, plan.revision
    target, project = projection.target, projection.row
    event_time_ms, identify = _event_time(plan), _identity(plan, conventions.pk_separator)
    lifetime_ms = conventions.lifetime_ms(statement)

    def make(record: Record, key: Any, value: Any) -> Row | None:
        source = kcql.Record(
            key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms
        )
        if value is None:
            return _deletion(plan, identify, record, source)
        time_ms = event_time_ms(source, record.timestamp_ms)
        if lifetime_ms is not None and time_ms + lifetime_ms <= clock_ms():
            return None
        return Row(
            record.offset,
            target(source, time_ms),
            identify(source),
            project(source),
            time_ms,
            None if revision is None else int(value[revision]),
            plan,
            record.value,
        )

    return _whole_row_maker(plan, make, conventions, clock_ms)


def _whole_row_maker(plan: Plan, otherwise: _Make, conventions: Conventions, clock_ms: Callable[[], float]) -> _Make:
    """Rows that are the records themselves, with what their schema declares: nothing of the statement is evaluated.

    For every other statement it is `otherwise`, which also gets whatever is not the usual case.
    """
    if not is_its_own_row(plan):
        return otherwise
    revision, event_time = plan.revision, plan.event_time
    identify = identifier(plan.identity, plan.fields, conventions.pk_separator)
    target, lifetime_ms = plan.projection.target, conventions.lifetime_ms(plan.statement)

    def make(record: Record, key: Any, value: Any) -> Row | None:
        try:
            time_ms = value[event_time]
            if type(time_ms) is int and (lifetime_ms is None or time_ms + lifetime_ms > clock_ms()):
                number = None if revision is None else int(value[revision])
                place = target(UNREAD, time_ms)
                return Row(record.offset, place, identify(value), value, time_ms, number, plan, record.value)
        except (TypeError, KeyError, ValueError, OverflowError):
            # For `otherwise` to say what is wrong.
            pass
        return otherwise(record, key, value)

    return make


def _deletion(plan: Plan, identify: _Identify, record: Record, source: kcql.Record) -> Row | None:
    behaviour = null_behaviour(plan.statement)
    if behaviour == "IGNORE":
        return None
    if behaviour == "FAIL":
        raise TombstoneError(f"no value, and {NULL_VALUES} is FAIL")
    if not plan.statement.primary_key:
        raise TombstoneError("no value, and without PK of the key (PK _key.f) it is not known what to delete")
    return Row(
        offset=record.offset,
        target=plan.projection.target(source, record.timestamp_ms),
        id=identify(source),
        values=None,
        event_time_ms=record.timestamp_ms,
        revision=None,
        plan=plan,
        pk=plan.projection.pk(source) or (),
    )


_Identify = Callable[[kcql.Record], str]


def _identity(plan: Plan, separator: str) -> _Identify:
    """The id of a row: the values of PK, else of the declared identity, else the record's place in its topic."""
    if plan.statement.primary_key:
        of_pk = plan.projection.id
        return lambda source: of_pk(source) or ""
    names = plan.identity
    if not names:
        return lambda source: f"{source.topic}-{source.partition}-{source.offset}"

    of_value = identifier(names, plan.fields, separator)
    return lambda source: of_value(source.value)


def _event_time(plan: Plan) -> Callable[[kcql.Record, int], int]:
    """When a record happened, from it and Kafka's timestamp: WITHTIMESTAMP, else as declared, else Kafka's."""
    if plan.statement.timestamp == SYS_TIME:
        return lambda source, kafka_ms: kafka_ms
    if plan.statement.timestamp is not None:
        of_clause = plan.projection.timestamp_ms
        return lambda source, kafka_ms: of_clause(source) or 0
    name = plan.event_time
    if name is None:
        return lambda source, kafka_ms: kafka_ms

    def declared(source: kcql.Record, kafka_ms: int) -> int:
        found = source.value.get(name)
        if type(found) is int:
            return found
        return kafka_ms if found is None else epoch_ms(found)

    return declared


def null_behaviour(statement: Statement) -> str:
    """What the statement does with a record without a value: IGNORE, DELETE or FAIL."""
    found = {name.lower(): value for name, value in statement.properties.items()}
    return str(found.get(NULL_VALUES, "IGNORE")).upper()


def _uses_key(statement: Statement) -> bool:
    paths = [field.path for field in statement.fields] + list(statement.primary_key)
    paths += [path for path in (statement.target_from, statement.timestamp) if path is not None]
    return any(path.part is Part.KEY for path in paths)


def _reason(error: Exception, otherwise: str) -> str:
    if isinstance(error, UnknownSchemaError):
        return "unknown_schema"
    if isinstance(error, WireFormatError):
        return "wire_format"
    if isinstance(error, TombstoneError):
        return "tombstone"
    return otherwise

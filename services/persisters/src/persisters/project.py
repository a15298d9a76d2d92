"""From a record to the rows that the connector's statements make of it, or to the reason why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kcql
from kcql.dates import epoch_ms
from kcql.model import SYS_TIME, Part, Statement
from persisters.decode import Decode, WriterSchema
from persisters.plan import Plan, compile_plan
from persisters.sink import Row
from persisters.work import Prepared, Record, Refusal
from servicekit.avro import RegistryUnavailableError, UnknownSchemaError, WireFormatError

NULL_VALUES = "behavior.on.null.values"
"""Statement property: what a record without a value does (IGNORE, DELETE, FAIL)."""


@dataclass(frozen=True)
class Conventions:
    """What differs between sinks in reading a statement."""

    pk_separator: str = "-"
    ttl_unit_ms: int | None = None
    """What one unit of TTL is; None when the sink has no TTL."""


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
        self._plans: dict[tuple[int, int | None], Plan] = {}
        self._by_topic: dict[str, list[int]] = {}

    def __call__(self, record: Record) -> Prepared:
        """What becomes of `record`.

        Raises RegistryUnavailableError when its schema cannot be had now.
        """
        matching = self._matching(record.topic)
        if not matching:
            return Prepared(filtered="no_statement")
        stage, reason = "VALUE_CONVERTER", "decode"
        try:
            value, writer = (None, None) if record.value is None else self._decode_value(record.value)
            stage = "KEY_CONVERTER"
            key = self._decode_key(record.key).value if self._needs_key and record.key is not None else record.key
            stage, reason = "TRANSFORMATION", "projection"
            rows = [row for index in matching if (row := self._row(index, record, key, value, writer)) is not None]
        except RegistryUnavailableError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            return Prepared(refusal=Refusal(record, stage, _reason(error, reason), error))
        if not rows:
            return Prepared(filtered="tombstone" if value is None else "expired")
        return Prepared(rows)

    def _matching(self, topic: str) -> list[int]:
        known = self._by_topic.get(topic)
        if known is None:
            known = [index for index, statement in enumerate(self._statements) if statement.matches(topic)]
            self._by_topic[topic] = known
        return known

    def _row(self, index: int, record: Record, key: Any, value: Any, writer: WriterSchema | None) -> Row | None:
        plan = self._plan(index, writer)
        source = kcql.Record(
            key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms
        )
        if value is None:
            return self._delete(plan, record, source)
        event_time_ms = _event_time_ms(plan, source, record.timestamp_ms)
        ttl, unit_ms = plan.statement.ttl, self._conventions.ttl_unit_ms
        if ttl is not None and unit_ms is not None and event_time_ms + ttl * unit_ms <= self._clock_ms():
            return None
        return Row(
            record.offset,
            plan.projection.target(source, event_time_ms),
            self._id(plan, record, source),
            plan.projection.row(source),
            event_time_ms,
            None if plan.revision is None else int(value[plan.revision]),
            plan,
            record.value,
        )

    def _delete(self, plan: Plan, record: Record, source: kcql.Record) -> Row | None:
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
            id=self._id(plan, record, source),
            values=None,
            event_time_ms=record.timestamp_ms,
            revision=None,
            plan=plan,
            pk=plan.projection.pk(source) or (),
        )

    def _id(self, plan: Plan, record: Record, source: kcql.Record) -> str:
        if plan.statement.primary_key:
            return plan.projection.id(source) or ""
        if plan.identity:
            # A field that may be absent (a polled response has no Observe) is part of the identity all the same.
            values = (source.value[name] for name in plan.identity)
            return self._conventions.pk_separator.join("" if value is None else str(value) for value in values)
        return f"{record.topic}-{record.partition}-{record.offset}"

    def _plan(self, index: int, writer: WriterSchema | None) -> Plan:
        place = (index, None if writer is None else writer.schema_id)
        plan = self._plans.get(place)
        if plan is None:
            plan = compile_plan(self._statements[index], writer, self._conventions.pk_separator)
            self._plans[place] = plan
        return plan


def null_behaviour(statement: Statement) -> str:
    """What the statement does with a record without a value: IGNORE, DELETE or FAIL."""
    found = {name.lower(): value for name, value in statement.properties.items()}
    return str(found.get(NULL_VALUES, "IGNORE")).upper()


def _uses_key(statement: Statement) -> bool:
    paths = [field.path for field in statement.fields] + list(statement.primary_key)
    paths += [path for path in (statement.target_from, statement.timestamp) if path is not None]
    return any(path.part is Part.KEY for path in paths)


def _event_time_ms(plan: Plan, source: kcql.Record, kafka_ms: int) -> int:
    if plan.statement.timestamp == SYS_TIME:
        return kafka_ms
    if plan.statement.timestamp is not None:
        return plan.projection.timestamp_ms(source) or 0
    found = None if plan.event_time is None else source.value.get(plan.event_time)
    return kafka_ms if found is None else epoch_ms(found)


def _reason(error: Exception, otherwise: str) -> str:
    if isinstance(error, UnknownSchemaError):
        return "unknown_schema"
    if isinstance(error, WireFormatError):
        return "wire_format"
    if isinstance(error, TombstoneError):
        return "tombstone"
    return otherwise

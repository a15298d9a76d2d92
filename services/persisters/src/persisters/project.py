"""From a record to the rows that the connector's statements make of it, or to the reason why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import kcql
from kcql.dates import epoch_ms
from kcql.model import SYS_TIME, Part, Statement
from persisters.decode import Decode, Decoded, WriterSchema
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
        self._makers: dict[tuple[int, int | None], _Make] = {}
        self._by_topic: dict[str, list[int]] = {}

    def __call__(self, record: Record) -> Prepared:
        """What becomes of `record`.

        Raises RegistryUnavailableError when its schema cannot be had now.
        """
        matching = self._by_topic.get(record.topic)
        if matching is None:
            matching = self._matching(record.topic)
        if not matching:
            return Prepared(filtered="no_statement")
        stage, reason = "VALUE_CONVERTER", "decode"
        try:
            value, writer = _NOTHING if record.value is None else self._decode_value(record.value)
            stage = "KEY_CONVERTER"
            key = self._decode_key(record.key).value if self._needs_key and record.key is not None else record.key
            stage, reason = "TRANSFORMATION", "projection"
            source = kcql.Record(
                key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms
            )
            rows = [row for index in matching if (row := self._maker(index, writer)(record, source)) is not None]
        except RegistryUnavailableError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            return Prepared(refusal=Refusal(record, stage, _reason(error, reason), error))
        if not rows:
            return Prepared(filtered="tombstone" if value is None else "expired")
        return Prepared(rows)

    def _matching(self, topic: str) -> list[int]:
        found = [index for index, statement in enumerate(self._statements) if statement.matches(topic)]
        self._by_topic[topic] = found
        return found

    def _maker(self, index: int, writer: WriterSchema | None) -> _Make:
        place = (index, None if writer is None else writer.schema_id)
        maker = self._makers.get(place)
        if maker is None:
            plan = compile_plan(self._statements[index], writer, self._conventions.pk_separator)
            maker = self._makers[place] = _row_maker(plan, self._conventions, self._clock_ms)
        return maker


_NOTHING = Decoded(None)
_Make = Callable[[Record, kcql.Record], Row | None]
"""From a record, as it came and decoded, to its row; None where the statement makes none of it."""


def _row_maker(plan: Plan, conventions: Conventions, clock_ms: Callable[[], float]) -> _Make:
    """Everything about a plan that is the same for all records is decided here and not for each of them."""
    statement, projection, revision = plan.statement, plan.projection, plan.revision
    target, project = projection.target, projection.row
    event_time_ms, identify = _event_time(plan), _identity(plan, conventions.pk_separator)
    unit_ms = conventions.ttl_unit_ms
    lifetime_ms = None if statement.ttl is None or unit_ms is None else statement.ttl * unit_ms

    def make(record: Record, source: kcql.Record) -> Row | None:
        value = source.value
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

    text = separator.replace("%", "%%").join(["%s"] * len(names))

    def identify(source: kcql.Record) -> str:
        value = source.value
        parts = tuple([value[name] for name in names])
        if None in parts:
            # A field that may be absent (a polled response has no Observe) is part of the identity all the same.
            parts = tuple(["" if part is None else part for part in parts])
        return text % parts

    return identify


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

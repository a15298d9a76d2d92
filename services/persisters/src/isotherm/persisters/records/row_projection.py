"""The general path: the row that one statement makes of one record, by evaluating the statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isotherm import kcql
from isotherm.kcql.dates import epoch_ms
from isotherm.kcql.model import SYS_TIME
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.statements import NULL_VALUES, null_behaviour
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.fast_path import ProjectRecord, project_whole_records
from isotherm.persisters.records.identity import record_id

TOMBSTONE, EXPIRED, UNWANTED = "tombstone", "expired", "where"
"""Why a statement makes no row of a record: it has no value, it is too old, the condition is not true of it."""


class TombstoneError(ValueError):
    """A record without a value that the statement calls a failure, or that names no row to delete."""


def row_projection(plan: Plan, conventions: Conventions, clock_ms: Callable[[], float]) -> ProjectRecord:
    """Return the projection of single records for a plan; it decides here what is the same for all records.

    `clock_ms` returns the time now in epoch milliseconds. The projection raises TombstoneError, kcql.ProjectionError
    and what reading a wrong value raises.
    """
    statement, projection, revision = plan.statement, plan.projection, plan.revision
    target, values_of = projection.target, projection.row
    event_time_ms, identify = _event_time(plan), _identity(plan, conventions.pk_separator)
    lifetime_ms = conventions.lifetime_ms(statement)

    def project(record: Record, key: Any, value: Any) -> Row | str:
        source = kcql.Record(
            key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms
        )
        if value is None:
            return _deletion(plan, identify, record, source)
        time_ms = event_time_ms(source, record.timestamp_ms)
        if lifetime_ms is not None and time_ms + lifetime_ms <= clock_ms():
            return EXPIRED
        return Row(
            record.offset,
            target(source, time_ms),
            identify(source),
            values_of(source),
            time_ms,
            None if revision is None else int(value[revision]),
            plan,
            record.value,
        )

    return _filtered(projection.accepts, project_whole_records(plan, project, conventions, clock_ms))


def _filtered(accepts: Callable[[kcql.Record], bool] | None, project: ProjectRecord) -> ProjectRecord:
    if accepts is None:
        return project

    def project_accepted(record: Record, key: Any, value: Any) -> Row | str:
        source = kcql.Record(
            key, value, record.headers, record.topic, record.partition, record.offset, record.timestamp_ms
        )
        return project(record, key, value) if accepts(source) else UNWANTED

    return project_accepted


_Identify = Callable[[kcql.Record], str]


def _deletion(plan: Plan, identify: _Identify, record: Record, source: kcql.Record) -> Row | str:
    behaviour = null_behaviour(plan.statement)
    if behaviour == "IGNORE":
        return TOMBSTONE
    if behaviour == "FAIL":
        raise TombstoneError(f"no value, and {NULL_VALUES} is FAIL")
    if not plan.statement.primary_key:
        raise TombstoneError("no value, and without PK of the key (PK _key.f) no row to delete is known")
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


def _identity(plan: Plan, separator: str) -> _Identify:
    """Return what makes a row's id: PK values, else the declared identity, else topic, partition and offset."""
    if plan.statement.primary_key:
        of_pk = plan.projection.id
        return lambda source: of_pk(source) or ""
    names = plan.identity
    if not names:
        return lambda source: f"{source.topic}-{source.partition}-{source.offset}"

    of_value = record_id(names, plan.fields, separator)
    return lambda source: of_value(source.value)


def _event_time(plan: Plan) -> Callable[[kcql.Record, int], int]:
    """Return what makes a record's event time, from it and Kafka's timestamp, in epoch milliseconds.

    It is WITHTIMESTAMP's field, else the declared one, else Kafka's timestamp.
    """
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

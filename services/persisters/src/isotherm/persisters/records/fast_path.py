"""The fast path: rows that are the records themselves, `SELECT *` of a schema that declares identity and event time.

Most connectors ask for nothing else. No part of the statement is evaluated for a record; the id, the event time and the
revision come from declared fields. Everything that is not this case takes the general path (`row_projection`), which
gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, repeat
from operator import attrgetter
from typing import Any

from isotherm import kcql
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.records.conventions import Conventions
from isotherm.persisters.records.decoding import FlatBatch
from isotherm.persisters.records.identity import batch_ids, has_batch_ids, record_id

ProjectRecord = Callable[[Record, Any, Any], Row | str]
"""From a record as it came, its key and its value to its row, or to one word why the statement makes no row of it."""
ProjectBatch = Callable[[Sequence[Record], FlatBatch], list[Row] | None]
"""From the records of a batch and their values to the rows of those that WHERE keeps; None if one of the records needs
the general path."""

_UNREAD = kcql.Record()
"""Stands for a record whose target is fixed, so that no part of the record is read."""

_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_offset_of: Callable[[Record], int] = attrgetter("offset")
_value_of: Callable[[Record], bytes | None] = attrgetter("value")


def raw_values(records: Sequence[Record]) -> list[bytes | None]:
    """Return the records' values as they came."""
    return list(map(_value_of, records))


def project_whole_records(
    plan: Plan, general: ProjectRecord, conventions: Conventions, clock_ms: Callable[[], float]
) -> ProjectRecord:
    """Return the fast projection of single records, which passes what it cannot do to `general`.

    Returns `general` itself if the plan has no fast path.
    """
    if not _has_fast_path(plan):
        return general
    revision, event_time = plan.revision, plan.event_time
    identify = record_id(plan.identity, plan.fields, conventions.pk_separator)
    target, lifetime_ms = plan.projection.target, conventions.lifetime_ms(plan.statement)

    def project(record: Record, key: Any, value: Any) -> Row | str:
        try:
            time_ms = value[event_time]
            if type(time_ms) is int and (lifetime_ms is None or time_ms + lifetime_ms > clock_ms()):
                number = None if revision is None else int(value[revision])
                name = target(_UNREAD, time_ms)
                return Row(record.offset, name, identify(value), value, time_ms, number, plan, record.value)
        except (TypeError, KeyError, ValueError, OverflowError):
            # `general` reports what is wrong.
            pass
        return general(record, key, value)

    return project


def project_whole_batches(plan: Plan, conventions: Conventions, clock_ms: Callable[[], float]) -> ProjectBatch | None:
    """Return the fast projection of batches; None if the plan has none."""
    event_time = plan.event_time
    if not _has_fast_path(plan) or event_time is None or not has_batch_ids(plan.identity, plan.fields):
        return None
    target, lifetime_ms = plan.projection.target, conventions.lifetime_ms(plan.statement)
    separator = conventions.pk_separator
    accepts = plan.projection.accepts
    if any(path.part is not kcql.Part.VALUE for path in kcql.paths_of(plan.statement.where)):
        return None

    def project(records: Sequence[Record], batch: FlatBatch) -> list[Row] | None:
        if accepts is not None:
            records, batch = _accepted(accepts, records, batch)
            if not records:
                return []
        times = batch.column(event_time)
        revisions = None if plan.revision is None else batch.column(plan.revision)
        if set(map(type, times)) != {int} or (revisions is not None and set(map(type, revisions)) != {int}):
            return None
        if lifetime_ms is not None and min(times) + lifetime_ms <= clock_ms():
            return None
        try:
            targets = {time_ms: target(_UNREAD, time_ms) for time_ms in set(times)}
        except kcql.ProjectionError:
            return None
        ids = batch_ids([batch.column(name) for name in plan.identity], separator)
        # Column by column: a call for each row takes three times as long.
        columns = (
            map(_offset_of, records),
            map(targets.__getitem__, times),
            ids,
            batch.values,
            times,
            repeat(None) if revisions is None else revisions,
            repeat(plan),
            map(_value_of, records),
            repeat(()),
        )
        return list(map(_row, zip(*columns, strict=False)))

    return project


def _accepted(
    accepts: Callable[[kcql.Record], bool], records: Sequence[Record], batch: FlatBatch
) -> tuple[Sequence[Record], FlatBatch]:
    """Return the records of which the condition is true, and their values; it reads nothing but values."""
    values = batch.values
    kept = [accepts(_value_only(value)) for value in values]
    return list(compress(records, kept)), FlatBatch(batch.writer, list(compress(values, kept)))


def _value_only(value: Any) -> kcql.Record:
    return tuple.__new__(kcql.Record, (None, value, (), None, None, None, None))


def _has_fast_path(plan: Plan) -> bool:
    """Whether a row is its record, in the target that the statement names, with the id that the schema declares."""
    statement = plan.statement
    is_named = statement.target_from is None and statement.dynamic_target is None
    is_declared = plan.identity and plan.event_time and not statement.primary_key and statement.timestamp is None
    return bool(plan.selects_whole_record and is_named and is_declared)

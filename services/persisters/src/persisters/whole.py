"""Batches of records that are their own rows, made at once: `SELECT *` of flat records that declare what they are.

That is what most connectors ask for. Nothing of the statement is evaluated for a record, and what is the same for all
rows is done once; a batch with anything else in it goes the way of single records (`project`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

import kcql
from kcql.model import Statement
from persisters.decode import FlatBatch
from persisters.plan import Plan
from persisters.sink import Row
from persisters.work import Record

MakeRows = Callable[[Sequence[Record], FlatBatch], list[Row] | None]
"""From the records of a batch and their values to the rows; None where one of them is not the usual case."""

UNREAD = kcql.Record()
"""Of the record a fixed target reads nothing."""

_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_offset_of: Callable[[Record], int] = attrgetter("offset")
_value_of: Callable[[Record], bytes | None] = attrgetter("value")


def raw_values(records: Sequence[Record]) -> list[bytes | None]:
    """The records' values as they came."""
    return list(map(_value_of, records))


def is_its_own_row(plan: Plan) -> bool:
    """Whether a record is its row, in the target that the statement names, with the id that its schema declares."""
    statement = plan.statement
    is_named = statement.target_from is None and statement.dynamic_target is None
    is_declared = plan.identity and plan.event_time and not statement.primary_key and statement.timestamp is None
    return bool(plan.is_whole and is_named and is_declared)


def rows_maker(
    plan: Plan, lifetime_ms: Callable[[Statement], int | None], separator: str, clock_ms: Callable[[], float]
) -> MakeRows | None:
    """The function that makes rows of batches for a plan; None when it takes single records."""
    fields = {field["name"]: field["type"] for field in plan.writer.json["fields"]} if plan.writer else {}
    event_time = plan.event_time
    # A declared field that may be null is looked at in every record.
    if not is_its_own_row(plan) or event_time is None or not all(_is_text_or_number(fields[n]) for n in plan.identity):
        return None
    text = _id_text(plan.identity, separator)
    target, most_ms = plan.projection.target, lifetime_ms(plan.statement)

    def make(records: Sequence[Record], batch: FlatBatch) -> list[Row] | None:
        times = batch.column(event_time)
        revisions = None if plan.revision is None else batch.column(plan.revision)
        if set(map(type, times)) != {int} or (revisions is not None and set(map(type, revisions)) != {int}):
            return None
        if most_ms is not None and min(times) + most_ms <= clock_ms():
            return None
        try:
            places = {time_ms: target(UNREAD, time_ms) for time_ms in set(times)}
        except kcql.ProjectionError:
            return None
        ids = map(text.__mod__, zip(*map(batch.column, plan.identity), strict=True))
        # By columns: a call for each row would take three times as long.
        columns = (
            map(_offset_of, records),
            map(places.__getitem__, times),
            ids,
            batch.values,
            times,
            repeat(None) if revisions is None else revisions,
            repeat(plan),
            map(_value_of, records),
            repeat(()),
        )
        return list(map(_row, zip(*columns, strict=False)))

    return make


def id_template(names: Sequence[str], separator: str) -> tuple[str, Callable[[Any], tuple[Any, ...]]]:
    """The text to fill, and the function that takes what fills it from a value."""
    # Of one name alone itemgetter would give the bare value.
    take = itemgetter(*names) if len(names) > 1 else lambda value: (value[names[0]],)
    return _id_text(names, separator), take


def _id_text(names: Sequence[str], separator: str) -> str:
    return separator.replace("%", "%%").join(["%s"] * len(names))


def _is_text_or_number(avro: Any) -> bool:
    kind = avro["type"] if isinstance(avro, dict) else avro
    return kind in ("string", "int", "long")

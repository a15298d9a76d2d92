"""Batches of records that are their own rows, made at once: `SELECT *` of flat records that declare what they are.

That is what most connectors ask for. Nothing of the statement is evaluated for a record, and what is the same for all
rows is done once; a batch with anything else in it goes the way of single records (`project`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import kcql
from kcql.model import Statement
from persisters.decode import AvroDecoder, WriterSchema
from persisters.plan import Plan
from persisters.sink import Row
from persisters.work import Record

MakeRows = Callable[[Sequence[Record], Sequence[Any]], list[Row] | None]
"""From the records of a batch and their values to the rows; None where one of them is not the usual case."""

UNREAD = kcql.Record()
"""Of the record a fixed target reads nothing."""

_value_of: Callable[[Record], bytes | None] = attrgetter("value")


def values_of(decode: AvroDecoder, records: Sequence[Record]) -> tuple[list[Any], WriterSchema] | None:
    """The values of records that have all been written with one flat schema, and that schema; None for others."""
    return decode.flat_values(list(map(_value_of, records)))


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
    text, take = id_template(plan.identity, separator)
    target, most_ms = plan.projection.target, lifetime_ms(plan.statement)
    time_of = itemgetter(event_time)
    revision_of = None if plan.revision is None else itemgetter(plan.revision)

    def make(records: Sequence[Record], values: Sequence[Any]) -> list[Row] | None:
        times = list(map(time_of, values))
        revisions = [None] * len(values) if revision_of is None else list(map(revision_of, values))
        if set(map(type, times)) != {int} or (revision_of is not None and set(map(type, revisions)) != {int}):
            return None
        if most_ms is not None and min(times) + most_ms <= clock_ms():
            return None
        try:
            places = {time_ms: target(UNREAD, time_ms) for time_ms in set(times)}
        except kcql.ProjectionError:
            return None
        return [
            Row(record.offset, places[time_ms], text % take(value), value, time_ms, revision, plan, record.value)
            for record, value, time_ms, revision in zip(records, values, times, revisions, strict=True)
        ]

    return make


def id_template(names: Sequence[str], separator: str) -> tuple[str, Callable[[Any], tuple[Any, ...]]]:
    """The text to fill, and the function that takes what fills it from a value."""
    # Of one name alone itemgetter would give the bare value.
    take = itemgetter(*names) if len(names) > 1 else lambda value: (value[names[0]],)
    return separator.replace("%", "%%").join(["%s"] * len(names)), take


def _is_text_or_number(avro: Any) -> bool:
    kind = avro["type"] if isinstance(avro, dict) else avro
    return kind in ("string", "int", "long")

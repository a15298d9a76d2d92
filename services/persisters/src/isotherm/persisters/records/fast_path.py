"""Batches of records that are their own rows, made at once: `SELECT *` of flat records that declare what they are.

That is what most connectors ask for. Nothing of the statement is evaluated for a record, and what is the same for all
rows is done once; a batch with anything else in it goes the way of single records (`project`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, eq, itemgetter
from typing import Any

from isotherm import kcql
from isotherm.kcql.model import Statement
from isotherm.kcql.projection.ids import EMPTY, nullable_first, part_encoder
from isotherm.persisters.records.decoding import FlatBatch
from isotherm.persisters.records.plan import Plan
from isotherm.persisters.sinks.sink import Row
from isotherm.persisters.task.in_flight_batch import Record

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
    fields = plan.fields
    event_time = plan.event_time
    # A declared field that may be null is looked at in every record.
    if not is_its_own_row(plan) or event_time is None or not all(_is_text_or_number(fields[n]) for n in plan.identity):
        return None
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
        ids = _ids([batch.column(name) for name in plan.identity], separator)
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


def identifier(names: Sequence[str], fields: Mapping[str, Any], separator: str) -> Callable[[Any], str]:
    """The function that makes the id of a record from the fields that its schema declares as identity.

    A field that may be absent (a polled response has no Observe) is part of the identity all the same: a null stands
    as nothing, a text of nothing as `%`. See `isotherm.kcql.projection.ids`.

    Args:
        names: the fields, one or more.
        fields: the Avro type of each field of the schema.
        separator: stands between the parts.
    """
    encode = part_encoder(separator)
    nullable = [_may_be_null(fields[name]) for name in names]
    if any(nullable):
        first_of = nullable_first if nullable[0] else str
        first, later = names[0], list(zip(names[1:], nullable[1:], strict=True))

        def of_nullable(value: Any) -> str:
            head = value[first]
            parts = [first_of(None if head is None else str(head))]
            for name, may_be_null in later:
                part = value[name]
                parts.append("" if part is None else encode(str(part)) or (EMPTY if may_be_null else ""))
            return separator.join(parts)

        return of_nullable
    first = names[0]
    if len(names) == 1:
        return lambda value: str(value[first])
    # Of one name alone itemgetter would give the bare value.
    take = itemgetter(*names[1:]) if len(names) > 2 else lambda value: (value[names[1]],)
    text, most = _id_text(len(names) - 1, separator), len(names) - 2
    is_single = len(separator) == 1

    def identify(value: Any) -> str:
        parts = take(value)
        tail = text % parts
        # As `isotherm.kcql.projection.ids.joiner`: counting takes less time than looking at each part.
        if not is_single or tail.count(separator) > most or "%" in tail:
            tail = text % tuple([encode(str(part)) for part in parts])
        return f"{value[first]}{separator}{tail}"

    return identify


def _id_text(parts: int, separator: str) -> str:
    return separator.join(["%s"] * parts)


def _ids(columns: Sequence[Sequence[Any]], separator: str) -> Iterator[str]:
    """The ids of records of which each column holds one field of the identity, a text or a whole number."""
    encode = part_encoder(separator)
    columns = [columns[0], *[_encoded(column, encode) for column in columns[1:]]]
    return map(_id_text(len(columns), separator).__mod__, zip(*columns, strict=True))


def _encoded(column: Sequence[Any], encode: Callable[[str], str]) -> Sequence[Any]:
    if type(column[0]) is str:
        texts = set(column)
        encoded = {text: encode(text) for text in texts}
        return column if all(map(eq, encoded, encoded.values())) else [encoded[text] for text in column]
    # Of a number only the sign may have to be encoded.
    return column if min(column) >= 0 else [encode(str(number)) for number in column]


def _may_be_null(avro: Any) -> bool:
    return avro == "null" or (isinstance(avro, list) and "null" in avro)


def _is_text_or_number(avro: Any) -> bool:
    kind = avro["type"] if isinstance(avro, dict) else avro
    return kind in ("string", "int", "long")

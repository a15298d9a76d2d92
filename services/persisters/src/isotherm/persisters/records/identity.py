"""Ids of rows from the fields that the writer schema declares as identity: for one record, and for a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq, itemgetter
from typing import Any

from isotherm.kcql.projection.ids import EMPTY, nullable_first, part_encoder


def record_id(names: Sequence[str], fields: Mapping[str, Any], separator: str) -> Callable[[Any], str]:
    """Return the function that makes the id of a record's value.

    A field that may be absent (a polled CoAP response has no Observe option) is part of the identity all the same: a
    null becomes the empty text, an empty text becomes `%`. See `isotherm.kcql.projection.ids`.

    Args:
        names: the fields of the identity, one or more.
        fields: the Avro type of each field of the schema.
        separator: is put between the parts.
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
    # With a single name itemgetter returns the bare value instead of a tuple.
    take = itemgetter(*names[1:]) if len(names) > 2 else lambda value: (value[names[1]],)
    text, max_separators = _format(len(names) - 1, separator), len(names) - 2
    is_single = len(separator) == 1

    def identify(value: Any) -> str:
        parts = take(value)
        tail = text % parts
        # As in `isotherm.kcql.projection.ids.joiner`: counting separators is quicker than looking at each part.
        if not is_single or tail.count(separator) > max_separators or "%" in tail:
            tail = text % tuple([encode(str(part)) for part in parts])
        return f"{value[first]}{separator}{tail}"

    return identify


def batch_ids(columns: Sequence[Sequence[Any]], separator: str) -> Iterator[str]:
    """Return the ids of a batch of records; each column holds one identity field, only texts or only whole numbers."""
    encode = part_encoder(separator)
    columns = [columns[0], *[_encoded(column, encode) for column in columns[1:]]]
    return map(_format(len(columns), separator).__mod__, zip(*columns, strict=True))


def has_batch_ids(names: Sequence[str], fields: Mapping[str, Any]) -> bool:
    """Whether `batch_ids` makes the ids: a field that may be null has to be looked at in every record."""
    return all(_is_text_or_number(fields[name]) for name in names)


def _format(parts: int, separator: str) -> str:
    return separator.join(["%s"] * parts)


def _encoded(column: Sequence[Any], encode: Callable[[str], str]) -> Sequence[Any]:
    if type(column[0]) is str:
        texts = set(column)
        encoded = {text: encode(text) for text in texts}
        return column if all(map(eq, encoded, encoded.values())) else [encoded[text] for text in column]
    # The only character of a number that may have to be encoded is its sign.
    return column if min(column) >= 0 else [encode(str(number)) for number in column]


def _may_be_null(avro: Any) -> bool:
    return avro == "null" or (isinstance(avro, list) and "null" in avro)


def _is_text_or_number(avro: Any) -> bool:
    kind = avro["type"] if isinstance(avro, dict) else avro
    return kind in ("string", "int", "long")

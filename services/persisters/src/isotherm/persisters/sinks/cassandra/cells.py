"""A row's values in CQL's binary form, without the driver's look at each column: a tenth of its time.

Only the usual case is serialized here. For whatever else a row may hold the driver binds the values, or says what is
wrong with them. Source: CQL binary protocol v4, section 6 (data types).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement

Cell = bytes | None | object
"""Serialized; None for a null, UNSET_VALUE for a column that stays as it is."""

pack_long: Callable[[int], bytes] = struct.Struct(">q").pack
pack_int: Callable[[int], bytes] = struct.Struct(">i").pack


def _pack_time(time_ms: Any) -> bytes:
    # The driver takes no truth value for a time, although it does for a number.
    if type(time_ms) is not int:
        raise TypeError(f"{type(time_ms).__name__} is no time")
    return pack_long(time_ms)


UNUSUAL = (struct.error, TypeError, ValueError, OverflowError)
"""What `Layout.cells` raises for values that it does not serialize."""

_SERIALIZERS: Mapping[str, Callable[[Any], bytes]] = {
    "text": str.encode,
    "bigint": pack_long,
    "timestamp": _pack_time,
    "int": pack_int,
    "double": struct.Struct(">d").pack,
}


class Layout(NamedTuple):
    """How rows with certain fields become the cells of a table, in the order of its columns."""

    take: Callable[[Mapping[str, Any]], Sequence[Any]]
    serializers: Sequence[Callable[[Any], bytes]]
    key: Callable[[Sequence[Any]], Sequence[Any]]
    """From what `take` gives, the values of the primary key."""
    unset: Sequence[int]
    """Places of columns that the rows have no field for."""

    def cells(self, values: Mapping[str, Any], absent: Cell) -> list[Any]:
        """The cells of a row, with `absent` for nulls.

        Raises one of UNUSUAL for values that are for the driver to bind or to refuse.
        """
        taken = self.take(values)
        if None in taken:
            if None in self.key(taken):
                raise ValueError("a part of the primary key is null")
            cells: list[Any] = [
                absent if value is None else serialize(value)
                for serialize, value in zip(self.serializers, taken, strict=True)
            ]
        else:
            cells = [serialize(value) for serialize, value in zip(self.serializers, taken, strict=True)]
        for place in self.unset:
            cells.insert(place, UNSET_VALUE)
        return cells


class Serialized(BoundStatement):  # type: ignore[misc]  # the driver is untyped
    """A prepared statement with cells as its values."""

    def __init__(self, prepared: PreparedStatement, cells: list[Any]) -> None:
        super().__init__(prepared)
        self.values = self.raw_values = cells


def layout(columns: Mapping[str, str], primary_key: Sequence[str], fields: Mapping[str, str]) -> Layout | None:
    """How to lay out rows with `fields` (by column) in a table with `columns` (CQL types); None for the driver to do.

    That is a row with types that are not serialized here, or without a part of the primary key.
    """
    places = [column for column in columns if column in fields]
    if not set(primary_key) <= fields.keys() or any(columns[column] not in _SERIALIZERS for column in places):
        return None
    return Layout(
        all_of([fields[column] for column in places]),
        [_SERIALIZERS[columns[column]] for column in places],
        all_of([places.index(column) for column in primary_key]),
        [place for place, column in enumerate(columns) if column not in fields],
    )


def size_bytes(cells: Sequence[Any]) -> int:
    """Bytes of the cells with the length before each."""
    return 4 * len(cells) + sum([len(cell) for cell in cells if isinstance(cell, bytes)])


def all_of(names: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """The function that takes what stands at all these names, or places."""
    # Of one name alone itemgetter would give the bare value.
    return itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],)

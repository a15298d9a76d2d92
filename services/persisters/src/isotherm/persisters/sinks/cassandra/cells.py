"""A row's values in CQL's binary form, without the driver's check of each column: a tenth of its time.

Only plain values are serialized here. The driver binds all others, or reports what is wrong with them. Source: CQL
binary protocol v4, section 6 (data types).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement

Cell = bytes | None | object
"""Serialized; None for a null, UNSET_VALUE for a column that stays as it is."""

_BESIDE_VALUE_BYTES = 16
"""Cassandra counts write time, time to live and time of deletion of each cell (`AbstractCell.dataSize`)."""

pack_long: Callable[[int], bytes] = struct.Struct(">q").pack
pack_int: Callable[[int], bytes] = struct.Struct(">i").pack


def _pack_time(time_ms: Any) -> bytes:
    # The driver accepts a boolean as a number, but not as a time.
    if type(time_ms) is not int:
        raise TypeError(f"{type(time_ms).__name__} is no time")
    return pack_long(time_ms)


FALLBACK_ERRORS = (struct.error, TypeError, ValueError, OverflowError)
"""What `Layout.cells` raises for values that the driver has to bind."""

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
    """From the result of `take`, the values of the primary key."""
    unset: Sequence[int]
    """Indices of columns that the rows have no field for."""

    def cells(self, values: Mapping[str, Any], absent: Cell) -> list[Any]:
        """Return the cells of a row, with `absent` for nulls.

        Raises one of FALLBACK_ERRORS for values that the driver has to bind or to refuse.
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
    """A prepared statement with serialized cells as its values."""

    def __init__(self, prepared: PreparedStatement, cells: list[Any]) -> None:
        super().__init__(prepared)
        self.values = self.raw_values = cells


def layout(columns: Mapping[str, str], primary_key: Sequence[str], fields: Mapping[str, str]) -> Layout | None:
    """Return the layout of rows with `fields` (by column) in a table with `columns` (CQL types).

    Returns None if the driver has to bind the rows: a type is not serialized here, or a part of the primary key is
    missing.
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
    """Return the size of the cells in bytes, with the length before each and what Cassandra counts beside each."""
    values = [len(cell) if isinstance(cell, bytes) else 0 for cell in cells if cell is not UNSET_VALUE]
    return 4 * len(cells) + _BESIDE_VALUE_BYTES * len(values) + sum(values)


def all_of(names: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """Return the function that takes the values under all these names, or indices."""
    # With a single name itemgetter returns the bare value.
    return itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],)

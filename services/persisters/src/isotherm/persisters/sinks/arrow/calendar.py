"""Times that a calendar has: Python's, in which libraries put the least and the greatest time of a column. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc

_DAYS = tuple((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_SECONDS = tuple((day - datetime(1970, 1, 1)).total_seconds() for day in (datetime.min, datetime.max))
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def in_calendar(array: pa.Array) -> pa.Array:
    """Return the array. Raises ValueError if it holds a time before the year 1 or after 9999, however deep."""
    for leaf in _leaves(array):
        if pa.types.is_date32(leaf.type):
            first, last = _DAYS
            numbers = leaf.cast(pa.int32())
        elif pa.types.is_timestamp(leaf.type):
            first, last = (int(bound) * _PER_SECOND[leaf.type.unit] for bound in _SECONDS)
            numbers = leaf.cast(pa.int64())
        else:
            continue
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and not first <= found["min"] <= found["max"] <= last:
            raise ValueError("a time is before the year 1 or after 9999")
    return array


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        for place in range(array.type.num_fields):
            yield from _leaves(array.field(place))
    elif pa.types.is_map(array.type):
        yield from _leaves(array.items)
    elif pa.types.is_list(array.type):
        yield from _leaves(array.values)
    else:
        yield array

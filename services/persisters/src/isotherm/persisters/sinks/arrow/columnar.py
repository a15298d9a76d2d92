"""Columns of flat records as an Arrow table, without a look at any of their values; see `ColumnarRows`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.hotpath import Buffers, Kind
from isotherm.persisters.sinks.arrow.tables import Columns

_TYPES: Mapping[Kind, tuple[pa.DataType, ...]] = {
    Kind.BOOLEAN: (pa.bool_(),),
    Kind.INT: (pa.int32(),),
    Kind.LONG: (pa.int64(), pa.timestamp("ms", tz="UTC"), pa.timestamp("ms")),
    Kind.FLOAT: (pa.float32(),),
    Kind.DOUBLE: (pa.float64(),),
    Kind.STRING: (pa.string(),),
    Kind.BYTES: (pa.binary(),),
    Kind.TEXT_MAP: (pa.map_(pa.string(), pa.string()),),
}
"""The types whose arrays have the buffers of a kind."""
_offset_of = attrgetter("offset")

Numbers = NDArray[np.int64]


def table_of(columns: Columns, rows: ColumnarRows, topic: str, partition: int, offsets: Numbers) -> pa.Table | None:
    """Return rows as `Columns.table` does; None if a column needs more than its buffers.

    `offsets` are those of the rows. Raises RowError as `Columns.of`.
    """
    types = columns.of(rows.plan)
    if list(types) != list(rows.columns) or any(
        one.convert is not None or one.stored is not None or one.arrow not in _TYPES[rows.kinds[name]]
        for name, one in types.items()
    ):
        return None
    count = len(rows)
    arrays = [_array(rows.kinds[name], rows.columns[name], one.arrow, count) for name, one in types.items()]
    coordinates = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets),
    ]
    return pa.Table.from_arrays([*arrays, *coordinates], schema=columns.schema(rows.plan))


def offsets_of(rows: ColumnarRows) -> Numbers:
    """Return the offsets of the records."""
    return np.fromiter(map(_offset_of, rows.records), np.int64, len(rows))


def event_times_of(rows: ColumnarRows) -> Numbers:
    """Return the event times in epoch milliseconds."""
    (values,) = rows.columns[rows.event_time][2:]
    assert isinstance(values, bytes)
    return np.frombuffer(values, np.int64)


def _array(kind: Kind, buffers: Buffers, type_: pa.DataType, count: int) -> pa.Array:
    nulls, *held = buffers
    validity, *values = [None if one is None else pa.py_buffer(one) for one in held]
    if kind is not Kind.TEXT_MAP:
        return pa.Array.from_buffers(type_, count, [validity, *values], nulls)
    entries, key_offsets, keys, item_offsets, items = values
    entry_count = int(key_offsets.size) // 4 - 1  # type: ignore[union-attr] # only the first may be None
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), count + 1, [None, entries]),
        pa.Array.from_buffers(pa.string(), entry_count, [None, key_offsets, keys]),
        pa.Array.from_buffers(pa.string(), entry_count, [None, item_offsets, items]),
    )

"""Batches of flat records, read field by field for all of them at once: half of what one record after another takes.

The bytes of the whole batch are one array: numpy follows the place in every record at the same time, and only texts
become Python's one by one. As `reading` it takes the usual case; one record that is unusual makes the batch so.
Needs numpy (the extra `columns`). Source: Avro specification 1.11, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from isotherm.flatavro.reading import INTEGERS, FallbackError, double_run

Records = list[dict[str, Any]]
ReadBatch = Callable[[Sequence[bytes]], tuple[Records, Mapping[str, list[Any]]]]
"""From the bytes of records, at least one, to the records, and the same by columns: each field's values."""

_Columns = list[list[Any]]
"""The values of each field, for all records of a batch."""

_Places = NDArray[np.int64]
_VARINT_BITS = 63
"""Where the tenth and last byte of a varint stands, which has a single bit."""


class _Batch(NamedTuple):
    data: bytes
    octets: NDArray[np.uint8]
    """The same, for numpy."""
    latin: str
    """The same as text of as many characters: those below 128 are what UTF-8 says."""


_Read = Callable[[_Batch, _Places], tuple[_Columns, _Places]]
"""The values of some fields that begin at the places, and the places after them."""


def flat_batch_reader(schema: Mapping[str, Any], start: int) -> ReadBatch | None:
    """A function that reads batches, whose records' bodies begin at `start`; None for a schema that is not flat.

    The function raises one of UNUSUAL when any of the records is not the usual case. `schema` as for `flat_reader`.
    """
    fields = schema.get("fields") if schema.get("type") == "record" else None
    if not fields:
        return None
    found = _readers([field["type"] for field in fields])
    if found is None:
        return None
    readers, names = found, [field["name"] for field in fields]
    records_of = _records_maker(names)

    def read(records: Sequence[bytes]) -> tuple[Records, Mapping[str, list[Any]]]:
        data = b"".join(records)
        batch = _Batch(data, np.frombuffer(data, np.uint8), data.decode("latin-1"))
        ends = np.fromiter(accumulate(map(len, records)), np.int64, len(records))
        at = np.empty_like(ends)
        at[0] = start
        at[1:] = ends[:-1] + start
        columns: _Columns = []
        for reader in readers:
            values, at = reader(batch, at)
            columns += values
        # Places only grow: one that ends where its record does never was in another.
        if not np.array_equal(at, ends):
            raise FallbackError
        return records_of(columns), dict(zip(names, columns, strict=True))

    return read


def _records_maker(names: Sequence[str]) -> Callable[[_Columns], Records]:
    values = [f"value{number}" for number in range(len(names))]
    record = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    source = f"lambda columns: [{{{record}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    made: Callable[[_Columns], Records] = eval(source)  # noqa: S307 -- of the schema it has names only, as literals
    return made


def _readers(types: Sequence[Any]) -> list[_Read] | None:
    readers: list[_Read] = []
    number = 0
    while number < len(types):
        run = double_run(types, number)
        reader = _doubles(run) if run else _reader(types[number])
        if reader is None:
            return None
        readers.append(reader)
        number += run or 1
    return readers


def _reader(type_: Any) -> _Read | None:
    if isinstance(type_, list):
        return _nullable(type_)
    if isinstance(type_, Mapping):
        if type_ == {"type": "map", "values": "string"}:
            return _text_maps
        return _reader(type_["type"]) if type_.keys() == {"type"} else None
    if type_ in INTEGERS:
        return _integers
    return {"string": _texts, "boolean": _booleans, "double": _doubles(1)}.get(type_)


def _texts(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
    first = batch.octets[at]
    # As for one record: lengths of one byte.
    if (first & 129).any():
        raise FallbackError
    starts = at + 1
    ends = starts + (first >> 1)
    same = _same_bytes(batch, starts, ends)
    if same is not None:
        return [[same.decode()] * at.size], ends
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    latin = batch.latin
    texts = [latin[start:end] for start, end in spans]
    if not all(map(str.isascii, texts)):
        texts = [text if text.isascii() else text.encode("latin-1").decode() for text in texts]
    return [texts], ends


def _same_bytes(batch: _Batch, starts: _Places, ends: _Places) -> bytes | None:
    """What stands at every place, as a unit or the name of a metric does; None when it is not the same throughout."""
    data = batch.data
    found = data[starts[0] : ends[0]]
    width = len(found)
    # The last one tells most columns whose texts differ from those whose texts do not.
    if not width or data[starts[-1] : ends[-1]] != found or ((ends - starts) != width).any():
        return None
    texts = sliding_window_view(batch.octets, width)[starts]
    return found if (texts == texts[0]).all() else None


def _integers(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
    octets = batch.octets[at]
    bits = (octets & 127).astype(np.uint64)
    ends = at + 1
    shift = 0
    longer = np.flatnonzero(octets > 127)
    while longer.size:
        shift += 7
        octets = batch.octets[ends[longer]]
        if shift > _VARINT_BITS or (shift == _VARINT_BITS and (octets > 1).any()):
            raise FallbackError
        bits[longer] |= (octets & 127).astype(np.uint64) << np.uint64(shift)
        ends[longer] += 1
        longer = longer[octets > 127]
    one = np.uint64(1)
    values = (bits >> one).astype(np.int64) ^ -(bits & one).astype(np.int64)
    return [values.tolist()], ends


def _doubles(run: int) -> _Read:
    width = 8 * run

    def read(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
        # With nothing after the last record a place may be too far for a window, which is an IndexError.
        if batch.octets.size < width:
            raise FallbackError
        values = sliding_window_view(batch.octets, width)[at].view("<f8")
        return values.T.tolist(), at + width

    return read


def _booleans(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
    octets = batch.octets[at]
    if (octets > 1).any():
        raise FallbackError
    return [(octets == 1).tolist()], at + 1


def _text_maps(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
    maps: list[dict[str, str]] = [{} for _ in range(at.size)]
    ends = at.copy()
    left = np.zeros(at.size, np.uint8)
    # All maps begin with the count of a block, entries follow, and a count of none ends them.
    counted = np.arange(at.size)
    while counted.size:
        counts = batch.octets[ends[counted]]
        # As for one record: counts of one byte, and none that is negative.
        if (counts & 129).any():
            raise FallbackError
        left[counted] = counts >> 1
        ends[counted] += 1
        places = counted[counts > 0]
        counted = places
        while places.size:
            (keys,), values_at = _texts(batch, ends[places])
            (values,), ends[places] = _texts(batch, values_at)
            for place, key, value in zip(places.tolist(), keys, values, strict=True):
                maps[place][key] = value
            left[places] -= 1
            places = places[left[places] > 0]
    return [maps], ends


def _nullable(branches: Sequence[Any]) -> _Read | None:
    if len(branches) != 2 or branches.count("null") != 1:
        return None
    null = branches.index("null")
    inner = _reader(branches[1 - null])
    if inner is None:
        return None
    read_value, null_byte, value_byte = inner, 2 * null, 2 - 2 * null

    def read(batch: _Batch, at: _Places) -> tuple[_Columns, _Places]:
        branch = batch.octets[at]
        is_value = branch == value_byte
        if not (is_value | (branch == null_byte)).all():
            raise FallbackError
        ends = at + 1
        places = np.flatnonzero(is_value)
        values: list[Any] = [None] * at.size
        if places.size:
            (found,), ends[places] = read_value(batch, ends[places])
            for place, value in zip(places.tolist(), found, strict=True):
                values[place] = value
        return [values], ends

    return read

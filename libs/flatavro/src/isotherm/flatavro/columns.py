"""Batches of flat records, read field by field for all records at once: half the time of reading one after another.

The bytes of the batch are one array. numpy follows the index in every record at the same time; only texts become Python
objects one by one. Like `reading` it reads short texts and plain maps only; a single other record makes the whole batch
fall back. Needs numpy (the extra `columns`). Source: Avro specification 1.11, "Binary Encoding".
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
"""From the bytes of records, at least one, to the records, and to the values of each field by its name."""

_Columns = list[list[Any]]
"""The values of each field, for all records of a batch."""

_Indices = NDArray[np.int64]
_VARINT_BITS = 63
"""Shift of the tenth and last byte of a varint, which has a single bit."""


class _Batch(NamedTuple):
    data: bytes
    octets: NDArray[np.uint8]
    """The bytes as a numpy array."""
    latin: str
    """The bytes as a text of as many characters; characters below 128 are the same in UTF-8."""


_Read = Callable[[_Batch, _Indices], tuple[_Columns, _Indices]]
"""The values of some fields that begin at these indices, and the indices after them."""


def flat_batch_reader(schema: Mapping[str, Any], start: int) -> ReadBatch | None:
    """Return a function that reads batches whose records' bodies begin at index `start`; None if the schema is not
    flat.

    The function raises one of FALLBACK_ERRORS if fastavro has to read one of the records. `schema` is as for
    `flat_reader`.
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
        # Indices only grow, so a reader whose last index is right in every record never left its record.
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


def _texts(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
    first = batch.octets[at]
    # As in `reading`: only lengths of one byte.
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


def _same_bytes(batch: _Batch, starts: _Indices, ends: _Indices) -> bytes | None:
    """Return the text that every record has, as for a unit or a metric's name; None if the records differ."""
    data = batch.data
    found = data[starts[0] : ends[0]]
    width = len(found)
    # Comparing with the last text first excludes most columns whose texts differ.
    if not width or data[starts[-1] : ends[-1]] != found or ((ends - starts) != width).any():
        return None
    texts = sliding_window_view(batch.octets, width)[starts]
    return found if (texts == texts[0]).all() else None


def _integers(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
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

    def read(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
        # If nothing follows the last record, an index may be too large for a window, which raises IndexError.
        if batch.octets.size < width:
            raise FallbackError
        values = sliding_window_view(batch.octets, width)[at].view("<f8")
        return values.T.tolist(), at + width

    return read


def _booleans(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
    octets = batch.octets[at]
    if (octets > 1).any():
        raise FallbackError
    return [(octets == 1).tolist()], at + 1


def _text_maps(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
    maps: list[dict[str, str]] = [{} for _ in range(at.size)]
    ends = at.copy()
    left = np.zeros(at.size, np.uint8)
    # Every map begins with the count of a block; entries follow, and the count 0 ends the map.
    counted = np.arange(at.size)
    while counted.size:
        counts = batch.octets[ends[counted]]
        # As in `reading`: only counts of one byte that are not negative.
        if (counts & 129).any():
            raise FallbackError
        left[counted] = counts >> 1
        ends[counted] += 1
        indices = counted[counts > 0]
        counted = indices
        while indices.size:
            (keys,), values_at = _texts(batch, ends[indices])
            (values,), ends[indices] = _texts(batch, values_at)
            for index, key, value in zip(indices.tolist(), keys, values, strict=True):
                maps[index][key] = value
            left[indices] -= 1
            indices = indices[left[indices] > 0]
    return [maps], ends


def _nullable(branches: Sequence[Any]) -> _Read | None:
    if len(branches) != 2 or branches.count("null") != 1:
        return None
    null = branches.index("null")
    inner = _reader(branches[1 - null])
    if inner is None:
        return None
    read_value, null_byte, value_byte = inner, 2 * null, 2 - 2 * null

    def read(batch: _Batch, at: _Indices) -> tuple[_Columns, _Indices]:
        branch = batch.octets[at]
        is_value = branch == value_byte
        if not (is_value | (branch == null_byte)).all():
            raise FallbackError
        ends = at + 1
        indices = np.flatnonzero(is_value)
        values: list[Any] = [None] * at.size
        if indices.size:
            (found,), ends[indices] = read_value(batch, ends[indices])
            for index, value in zip(indices.tolist(), found, strict=True):
                values[index] = value
        return [values], ends

    return read

"""Rows as items of Hazelcast structures: JSON that Hazelcast can query, Avro bytes, text."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import orjson
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.data import DATA_OFFSET, Data
from hazelcast.serialization.serialization_const import JAVASCRIPT_JSON_SERIALIZATION_TYPE

from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError
from isotherm.persisters.records.decoded_value import Decode
from isotherm.persisters.records.derived_schemas import is_avro
from isotherm.persisters.records.documents import to_json

FORMATS = ("JSON", "AVRO", "TEXT")
_CONTAINER = b"Obj\x01"
"""The first bytes of an Avro object container (Avro specification, "Object Container Files")."""

_SYNC_MARKER = b"isotherm-a-row-0"
"""Of 16 bytes, the same in every item, so that equal rows are equal items: sets and readbacks compare bytes."""
_NO_PARTITION_HASH = 0
_LENGTH_BYTES = 4
_CONTENT_OFFSET: int = DATA_OFFSET + _LENGTH_BYTES
_json_header = struct.Struct(">iii").pack
"""Partition hash, type and length, big-endian, as the client writes them before the text's UTF-8."""

Item = Data | HazelcastJsonValue | bytearray | str
Encode = Callable[[Row], Item]


def encoder(format_: str) -> Encode:
    """Return the function that makes items of a WITHFORMAT (one of FORMATS). It raises ValueError for a bad row."""
    return {"JSON": _json, "AVRO": _avro, "TEXT": _text}[format_]


def content(item: Any) -> bytes:
    """Return the bytes of an item, to compare items, whether the item is to be written or was read."""
    if isinstance(item, Data):
        return bytes(item.buffer[_CONTENT_OFFSET:])
    if isinstance(item, HazelcastJsonValue):
        return item.to_string().encode()
    if isinstance(item, str):
        return item.encode()
    return bytes(item)


def checksum(item: Any) -> int:
    """Return the CRC-32 of an item's bytes."""
    # Nearly every item is such a value, and thousands come at once.
    return zlib.crc32(item.buffer[_CONTENT_OFFSET:] if type(item) is Data else content(item))


_JSON_TEXTS = (Data, HazelcastJsonValue, str)
"""Items that are JSON texts, in the forms that are written and read."""


def values_of(item: Any, decode: Decode) -> Any:
    """Return what a stored item says, decoded.

    Raises ValueError, StopIteration, and what `decode` raises, for an item that this sink has not made.
    """
    if isinstance(item, _JSON_TEXTS):
        return orjson.loads(content(item))
    if is_container(item):
        return next(iter(fastavro.reader(io.BytesIO(bytes(item)))))
    return decode(bytes(item)).value


def revision_of(item: Any, plan: Plan, decode: Decode) -> int | None:
    """Return the revision in a stored item; None if it holds none that can be read."""
    # The record's own bytes have the fields of the record, all other items those of the row.
    is_row = isinstance(item, _JSON_TEXTS) or is_container(item)
    try:
        return int(values_of(item, decode)[plan.revision_column if is_row else plan.revision])
    except (ValueError, KeyError, TypeError, StopIteration):
        return None


def is_container(item: Any) -> bool:
    """Whether a stored item is an Avro object container."""
    return bytes(item[:4]) == _CONTAINER


def _json(row: Row) -> Item:
    """Return a serialized JSON value: the client's serializer takes nine times as long for the same bytes."""
    text = to_json(row.values)
    header = _json_header(_NO_PARTITION_HASH, JAVASCRIPT_JSON_SERIALIZATION_TYPE, len(text))
    return Data(header + text)  # type: ignore[no-untyped-call]  # the client leaves its constructor untyped


def _text(row: Row) -> Item:
    return to_json(row.values).decode()


def _avro(row: Row) -> Item:
    """Return the record's own bytes if all of it is selected, else an Avro object container, which carries its schema.

    The item is a bytearray: the client pickles `bytes`, which no other client can read.
    """
    if row.plan.writer is None:
        raise RowError("document", "WITHFORMAT AVRO needs values with an Avro schema, this one has none")
    if row.plan.selects_whole_record and row.raw is not None and is_avro(row.plan.writer):
        return bytearray(row.raw)
    buffer = io.BytesIO()
    fastavro.writer(buffer, container_schema(row.plan.columns), [row.values or {}], sync_marker=_SYNC_MARKER)
    return bytearray(buffer.getvalue())


def container_schema(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Avro schema of a row with fields of these types."""
    numbers = iter(range(1_000_000))
    fields = [{"name": name, "type": _nullable(_renamed(avro, numbers))} for name, avro in columns.items()]
    return {"type": "record", "name": "row", "fields": fields}


def _renamed(avro: Any, numbers: Any) -> Any:
    """Return the type with a name of its own for every nested record, enum and fixed: a type may occur in several
    fields.
    """
    if isinstance(avro, list):
        return [_renamed(branch, numbers) for branch in avro]
    if not isinstance(avro, dict):
        return avro
    if avro.get("type") == "record":
        fields = [{"name": one["name"], "type": _nullable(_renamed(one["type"], numbers))} for one in avro["fields"]]
        return {"type": "record", "name": f"nested_{next(numbers)}", "fields": fields}
    if avro.get("type") in ("enum", "fixed"):
        return avro | {"name": f"nested_{next(numbers)}"}
    return {
        name: _renamed(inner, numbers) if name in ("items", "values", "type") else inner for name, inner in avro.items()
    }


def _nullable(avro: Any) -> Any:
    if isinstance(avro, list):
        return avro if "null" in avro else ["null", *avro]
    return ["null", avro]

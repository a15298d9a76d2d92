"""Binary COPY of columns says what the general way makes of the same rows, and leaves to it what it cannot say."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from persisters_columns import SELECT, Both, schema_of

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.row import Row
from isotherm.persisters.hotpath import copy_writer
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.columnar import binary_copy
from isotherm.persisters.sinks.postgresql.direct_copies import DirectCopies
from isotherm.persisters.sinks.postgresql.sql import Table
from isotherm.persisters.sinks.postgresql.values import converter

_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
_YEARS_1_TO_9999 = st.integers(-62_135_596_800_000, 253_402_300_799_999)
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": _TEXTS,
    "bytes": st.binary(max_size=20),
    "map": st.dictionaries(_TEXTS, _TEXTS, max_size=4),
    "time": _YEARS_1_TO_9999,
    "maybe int": st.none() | st.integers(-(2**31), 2**31 - 1),
    "maybe boolean": st.none() | st.booleans(),
    "maybe text": st.none() | _TEXTS,
    "maybe double": st.none() | st.floats(allow_nan=False),
}
_KINDS = sorted(_VALUES)
_ALL = Both(schema_of(_KINDS), SELECT)
_RECORD = st.fixed_dictionaries(
    {"device": _TEXTS, "at": _YEARS_1_TO_9999} | {f"f{number}": _VALUES[kind] for number, kind in enumerate(_KINDS)}
)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def table_of(rows: Sequence[Row], **more: Any) -> Table:
    columns = {name: sql.sql_type(avro) for name, avro in rows[0].plan.columns.items()}
    return Table("public", "t", columns | more.pop("types", {}), ["device", "at"], **more)


def copied(rows: Any, table: Table) -> bytes | None:
    write = copy_writer()
    assert write is not None
    assert isinstance(rows, ColumnarRows)
    return binary_copy(rows, table, write)


def read_binary(body: bytes, types: Sequence[str]) -> Iterator[list[Any]]:
    """Read the format as PostgreSQL documents it."""
    assert body.startswith(b"PGCOPY\n\xff\r\n\0" + bytes(8))
    at = 19
    while (count := struct.unpack_from(">h", body, at)[0]) != -1:
        at += 2
        assert count == len(types)
        row = []
        for type_ in types:
            (size,) = struct.unpack_from(">i", body, at)
            at += 4
            row.append(None if size == -1 else value_of(body[at : at + size], type_))
            at += max(0, size)
        yield row
    assert at + 2 == len(body)


def value_of(data: bytes, type_: str) -> Any:
    if type_ in _PACKED:
        return struct.unpack(_PACKED[type_], data)[0]
    if type_ == sql.TIMESTAMP:
        return _EPOCH + timedelta(microseconds=struct.unpack(">q", data)[0])
    if type_ == "jsonb":
        assert data[0] == 1
        return orjson.loads(data[1:])
    return data.decode() if type_ == "text" else data


_PACKED = {"boolean": ">?", "integer": ">i", "bigint": ">q", "real": ">f", "double precision": ">d"}


@given(st.lists(_RECORD, min_size=1, max_size=8))
def test_binary_copy_says_what_the_general_way_makes(records: list[dict[str, Any]]) -> None:
    rows, general = _ALL.rows([_ALL.encode(record) for record in records])
    assert general is not None
    table = table_of(general)
    types = list(table.columns.values())
    body = copied(rows, table)
    assert body is not None
    convert = [converter(type_) for type_ in types]
    wanted = [
        [
            None if value is None else (orjson.loads(one(value)) if type_ == "jsonb" else one(value))
            for one, value, type_ in zip(convert, (row.values or {}).values(), types, strict=True)
        ]
        for row in general
    ]
    assert list(read_binary(body, types)) == wanted


_PLAIN = {"device": "d", "at": 5, "f0": {"a": "b"}}


@pytest.mark.parametrize(
    "bad",
    [
        {"device": "a\0"},
        {"at": 253_402_300_800_000},
        {"at": -62_135_596_800_001},
        {"f0": {"a\0": "b"}},
        {"f0": {"a": "\0"}},
    ],
)
def test_a_value_that_the_type_has_not_is_left_to_the_general_way(bad: dict[str, Any]) -> None:
    both = Both(schema_of(["map"]), SELECT)
    rows, _ = both.rows([both.encode(_PLAIN), both.encode(_PLAIN | bad)])
    assert rows is not None
    assert copied(rows, table_of(rows)) is None
    assert copied(both.rows([both.encode(_PLAIN)])[0], table_of(rows)) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"takes_copy": False},
        {"day_column": "at"},
        {"types": {"device": "uuid"}},
        {"types": {"at": "timestamp without time zone"}},
    ],
)
def test_a_table_of_another_kind_is_left_to_the_general_way(more: dict[str, Any]) -> None:
    both = Both(schema_of([]), SELECT)
    rows, _ = both.rows([both.encode({"device": "d", "at": 5})])
    assert rows is not None
    assert copied(rows, table_of(rows, **more)) is None


def test_a_key_that_the_record_has_not_is_left_to_the_general_way() -> None:
    both = Both(schema_of([]), SELECT)
    rows, _ = both.rows([both.encode({"device": "d", "at": 5})])
    assert rows is not None
    assert copied(rows, Table("public", "t", dict(table_of(rows).columns), [sql.ROW_ID])) is None


def test_tries_become_rare_while_keys_are_there_and_usual_when_they_are_new() -> None:
    copies, merged = DirectCopies(), []
    for _ in range(9):
        count = 0
        while not copies.is_worth_a_try(["t"]):
            copies.note_merged(["t"])
            count += 1
        merged.append(count)
        assert copies.is_worth_a_try(["u"]), "each table has its own"
        copies.note_refused(["t"])
    assert merged == [0, 2, 4, 8, 16, 32, 64, 64, 64]
    assert not copies.is_worth_a_try(["u", "t"])
    copies.note_new(["t"])
    assert copies.is_worth_a_try(["t"])
    copies.note_merged(["t"])
    assert copies.is_worth_a_try(["t"])

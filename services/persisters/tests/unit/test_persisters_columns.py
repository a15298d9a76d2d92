"""Batches read into columns by compiled code are what the general path makes of their records, whatever the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from persisters_columns import FIXED, SCHEMA_ID, SELECT, Both, schema_of

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.hotpath import NO_NULL, Kind, column_reader
from isotherm.persisters.hotpath.compiled import read_columns
from isotherm.persisters.sinks.arrow.columnar import event_times_of, offsets_of, table_of
from isotherm.persisters.sinks.arrow.tables import Columns, Placed
from isotherm.servicekit.avro import encoder

HEADER = b"\0\0\0\0\x07"
_TEXTS = st.text(max_size=70)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": _TEXTS,
    "bytes": st.binary(max_size=70),
    "map": st.dictionaries(_TEXTS, _TEXTS, max_size=4),
    "time": st.integers(-(2**63), 2**63 - 1),
    "maybe int": st.none() | st.integers(-(2**31), 2**31 - 1),
    "maybe boolean": st.none() | st.booleans(),
    "maybe text": st.none() | _TEXTS,
    "maybe double": st.none() | st.floats(allow_nan=False),
}
_FIELDS = st.lists(st.sampled_from(sorted(_VALUES)), max_size=6)


def check(both: Both, values: Sequence[bytes | None], *, expected: bool | None = None) -> None:
    """Compare rows and tables; whether there are columns is compared with `expected`."""
    rows, general = both.rows(values)
    is_columnar = isinstance(rows, ColumnarRows)
    assert expected in (None, is_columnar)
    if not isinstance(rows, ColumnarRows):
        return
    assert general is not None, "the general path refuses one of the records"
    assert [row._replace(plan=rows.plan) for row in general] == [row._replace(plan=rows.plan) for row in rows]
    assert [row.event_time_ms for row in general] == event_times_of(rows).tolist()
    assert [row.offset for row in general] == offsets_of(rows).tolist()
    columns, failed = Columns(), []  # type: ignore[var-annotated] # of FailedRow
    placed = [Placed(number, row, "t", 3) for number, row in enumerate(general)]
    wanted = columns.table(placed, failed)
    table = table_of(columns, rows, "t", 3, offsets_of(rows))
    assert failed == []
    assert table is not None
    table.validate(full=True)
    assert table.schema.equals(wanted.schema, check_metadata=True)
    assert table.equals(wanted)


@given(st.data())
def test_columns_are_what_the_general_path_makes(data: st.DataObject) -> None:
    kinds = data.draw(_FIELDS)
    both = Both(schema_of(kinds))
    fixed = {"device": _TEXTS, "at": st.integers(0, 2**45)}
    own = {f"f{number}": _VALUES[kind] for number, kind in enumerate(kinds)}
    records = data.draw(st.lists(st.fixed_dictionaries(fixed | own), min_size=1, max_size=12))
    check(both, [both.encode(record) for record in records], expected=True)


ALL = Both(schema_of(sorted(_VALUES)))
_RECORD = st.fixed_dictionaries(
    {"device": _TEXTS, "at": st.integers(0, 2**45)}
    | {f"f{number}": _VALUES[kind] for number, kind in enumerate(sorted(_VALUES))}
)


@given(_RECORD, st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from("xid"), st.integers(0, 255)), max_size=4))
def test_damaged_records_have_no_columns_unless_the_general_path_reads_the_same(
    record: dict[str, Any], changes: list[tuple[int, str, int]]
) -> None:
    good = ALL.encode(record)
    damaged = bytearray(good)
    for place, how, octet in changes:
        at = place % (len(damaged) + 1)
        if how == "x" and at < len(damaged):
            damaged[at] = octet
        elif how == "i":
            damaged.insert(at, octet)
        elif how == "d":
            del damaged[at:]
    check(ALL, [good, bytes(damaged), good])


@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-16-le", "surrogatepass")))
def test_texts_are_those_that_python_reads(data: bytes) -> None:
    try:
        data.decode()
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    found = read_columns([(Kind.STRING, NO_NULL)], [HEADER + bytes((2 * len(data),)) + data], HEADER)
    assert (found is not None) is is_text


NARROW = Both(schema_of(["map", "int"]))
ONE = {"device": "d", "at": 5, "f0": {"a": "b"}, "f1": 1}


def _body(map_: bytes, number: bytes = b"\x02", rest: bytes = b"") -> bytes:
    return HEADER + b"\x02d\x0a" + map_ + number + rest


@pytest.mark.parametrize(
    ("value", "is_columnar"),
    [
        (_body(b"\x02\x02a\x02b\x00"), True),
        (_body(b"\x02\x02a\x02b\x02\x02c\x02d\x00"), True),
        (_body(b"\x04\x02a\x02b\x02a\x02c\x00"), False),
        (_body(b"\x01\x08\x02a\x02b\x00"), False),
        (_body(b"\x02\x02a\x02b\x00", b"\x80\x80\x80\x80\x20"), False),
        (_body(b"\x02\x02a\x02b\x00", b"\x02", b"\x00"), False),
        (_body(b"\x02\x02a\x01b\x00"), False),
        (_body(b"\x80\x01" + b"".join(b"\x02%c\x00" % (48 + number) for number in range(64)) + b"\x00"), True),
        (_body(b"\x82\x01" + b"".join(b"\x02%c\x00" % (48 + number) for number in range(65)) + b"\x00"), False),
        (_body(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), False),
        (_body(b"\x02\x02a\x02\xff\x00"), False),
        (HEADER, False),
        (b"\0\0\0\0\x08" + _body(b"\x00")[5:], False),
        (b"", False),
        (None, False),
    ],
)
def test_what_the_compiled_reader_leaves_to_others(value: bytes | None, is_columnar: bool) -> None:
    check(NARROW, [NARROW.encode(ONE), value], expected=is_columnar)


@pytest.mark.parametrize(
    ("statement", "more"),
    [
        ("INSERT INTO lake SELECT device, at FROM t", {}),
        ("INSERT INTO lake SELECT * FROM t IGNORE f0", {}),
        ("INSERT INTO lake SELECT * FROM t WHERE f0 > 1", {}),
        ("INSERT INTO lake SELECT * FROM t PK device", {}),
        ("INSERT INTO lake SELECT * FROM t WITHTIMESTAMP f0", {}),
        ("INSERT INTO _value.device SELECT * FROM t", {}),
        (f"{SELECT}; {SELECT}", {}),
        (SELECT, {"isotherm.identity": []}),
        (SELECT, {"isotherm.revision": "f1"}),
    ],
)
def test_statements_that_need_the_records(statement: str, more: dict[str, Any]) -> None:
    both = Both(schema_of(["long", "maybe int"], **more), statement)
    check(both, [both.encode({"device": "d", "at": 5, "f0": 2, "f1": 1})] * 3, expected=False)


@pytest.mark.parametrize(
    "type_",
    [
        ["null", {"type": "map", "values": "string"}],
        {"type": "map", "values": "long"},
        {"type": "array", "items": "int"},
        ["int", "string"],
        {"type": "int", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        {"type": "enum", "name": "E", "symbols": ["A"]},
    ],
)
def test_types_that_need_the_records(type_: Any) -> None:
    schema = schema_of([])
    schema["fields"] = [*FIXED, {"name": "f", "type": type_}]
    both = Both(schema)
    example: Any = {"array": [1], "map": {"a": 1}, "enum": "A"}.get(type_["type"]) if isinstance(type_, dict) else None
    if isinstance(type_, list):
        example = 1 if "int" in type_ else {"a": "b"}
    if isinstance(type_, dict) and "logicalType" in type_:
        example = b"\x01" if type_["type"] == "bytes" else 3
    registry = encoder({**schema, "fields": [*FIXED, {"name": "f", "type": _plain(type_)}]}, SCHEMA_ID)
    check(both, [registry({"device": "d", "at": 5, "f": example})] * 3, expected=False)


def _plain(type_: Any) -> Any:
    return {key: one for key, one in type_.items() if key != "logicalType"} if isinstance(type_, dict) else type_


def test_without_the_compiled_module_rows_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
    assert column_reader() is None
    both = Both(schema_of([]))
    rows, _ = both.rows([both.encode({"device": "d", "at": 5})] * 3)
    assert isinstance(rows, list)


def test_parts_of_the_rows_are_made_on_demand() -> None:
    both = Both(schema_of([]))
    rows, general = both.rows([both.encode({"device": f"d{number}", "at": number}) for number in range(5)])
    assert isinstance(rows, ColumnarRows)
    assert general is not None
    assert len(rows) == 5
    assert [row.id for row in rows[1:3]] == [row.id for row in general[1:3]]
    assert rows[-1].id == general[-1].id
    assert pa.table({"n": offsets_of(rows)}).num_rows == 5

"""Values serialized by the sink are what the driver makes of them, and whatever is unusual is left to the driver."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from cassandra import cqltypes
from cassandra.query import UNSET_VALUE, PreparedStatement
from hypothesis import given
from hypothesis import strategies as st

import kcql
from persisters.plan import compile_plan
from persisters.sink import Row
from persisters.sinks import cells, cql
from persisters.sinks.binding import Binder

COLUMNS = {"id": "text", "at": "timestamp", "count": "bigint", "mean": "double", "small": "int", "tags": "list<text>"}
PLAIN = {name: type_ for name, type_ in COLUMNS.items() if name != "tags"}
KEY = ("id", "at")
PROTOCOL = 4

longs = st.integers(-(2**63), 2**63 - 1)
usual = {
    "id": st.text(),
    "at": longs,
    "count": st.none() | longs,
    "mean": st.none() | st.floats(allow_nan=False),
    "small": st.none() | st.integers(-(2**31), 2**31 - 1),
}
anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.text())


class Column(NamedTuple):
    """A column as the driver describes it."""

    keyspace_name: str
    table_name: str
    name: str
    type: Any


def prepared(query: str, columns: dict[str, str]) -> PreparedStatement:
    """A statement as if a server had prepared it."""
    described = [Column("k", "t", name, cqltypes.lookup_casstype(_class_of(type_))) for name, type_ in columns.items()]
    return PreparedStatement(described, query.encode(), [0], query, "k", PROTOCOL, None, None, None)


def _class_of(type_: str) -> str:
    known = {"text": "UTF8Type", "timestamp": "TimestampType", "bigint": "LongType", "double": "DoubleType"}
    return known.get(type_) or ("Int32Type" if type_ == "int" else "ListType(UTF8Type)")


def binder(columns: dict[str, str]) -> Binder:
    written = {"[timestamp]": "bigint"}
    return Binder(
        cql.Table("k", "t", columns, ["id"], ["at"]),
        insert=prepared("insert", columns | written),
        insert_with_ttl=prepared("ttl", columns | written | {"[ttl]": "int"}),
        delete=prepared("delete", written | {name: columns[name] for name in KEY}),
    )


def row(values: dict[str, Any] | None, *, revision: int | None = None, clauses: str = "", pk: Any = ()) -> Row:
    (statement,) = kcql.parse(f"INSERT INTO t SELECT * FROM topic {clauses}")
    return Row(7, "t", "id", values, 5_000, revision, compile_plan(statement, None, "-"), pk=pk)


@given(values=st.fixed_dictionaries(usual), absent=st.sampled_from([None, UNSET_VALUE]))
def test_the_usual_case_is_what_the_driver_makes_of_it(values: dict[str, Any], absent: Any) -> None:
    layout = cells.layout(PLAIN, KEY, {name: name for name in PLAIN})
    assert layout is not None
    bound = [absent if values[name] is None else values[name] for name in PLAIN]
    expected = prepared("q", PLAIN).bind(bound).values
    assert layout.cells(values, absent) == expected


@given(values=st.fixed_dictionaries(dict.fromkeys(PLAIN, anything)))
def test_values_of_other_types_are_what_the_driver_makes_of_them_or_left_to_it(values: dict[str, Any]) -> None:
    layout = cells.layout(PLAIN, KEY, {name: name for name in PLAIN})
    assert layout is not None
    try:
        found = layout.cells(values, None)
    except cells.UNUSUAL:
        return
    assert found == prepared("q", PLAIN).bind([values[name] for name in PLAIN]).values


def test_fields_go_to_their_columns_and_other_columns_stay_as_they_are() -> None:
    layout = cells.layout(COLUMNS, KEY, {"count": "n", "at": "time", "id": "device"})
    assert layout is not None
    found = layout.cells({"n": 3, "device": "a", "time": 4}, None)
    assert found == [b"a", cells.pack_long(4), cells.pack_long(3), UNSET_VALUE, UNSET_VALUE, UNSET_VALUE]


@pytest.mark.parametrize(
    "fields", [{"id": "id"}, {"id": "id", "at": "at", "tags": "tags"}], ids=["no whole key", "a list"]
)
def test_rows_that_the_driver_binds(fields: dict[str, str]) -> None:
    assert cells.layout(COLUMNS, KEY, fields) is None


@pytest.mark.parametrize("extra", [{}, {"tags": ["x"]}], ids=["serialized here", "bound by the driver"])
@pytest.mark.parametrize(("revision", "absent"), [(None, UNSET_VALUE), (9, None)])
def test_a_row_becomes_one_statement(extra: dict[str, Any], revision: int | None, absent: Any) -> None:
    values = {"id": "a", "at": 3, "COUNT": None, "mean": 1.5, **extra}
    write = binder(COLUMNS).bind(4, row(values, revision=revision))
    written_us = 5_000_007 if revision is None else 9_000
    tags = [b"\x00\x00\x00\x01\x00\x00\x00\x01x" if extra else UNSET_VALUE]
    mean, time_ms = b"\x3f\xf8" + bytes(6), cells.pack_long(3)
    assert write.statement.values == [b"a", time_ms, absent, mean, UNSET_VALUE, *tags, cells.pack_long(written_us)]
    assert (write.place, write.partition) == (4, (b"insert", b"a"))
    assert "insert" in str(write.statement)
    assert write.size_bytes > sum(len(cell) for cell in write.statement.values if isinstance(cell, bytes))


def test_times_to_live_and_deletions_are_statements_of_their_own() -> None:
    table = binder(PLAIN)
    lasting = table.bind(0, row({"id": "a", "at": 3}, clauses="TTL=60"))
    assert lasting.partition == (b"ttl", b"a")
    # Its event was long ago: what is left of it is the least that CQL takes.
    assert lasting.statement.values[-1] == cells.pack_int(1)
    deletion = table.bind(0, row(None, pk=("a", 3)))
    assert deletion.partition == (b"delete", b"a")
    assert deletion.statement.values == [cells.pack_long(5_000_999), b"a", cells.pack_long(3)]


@pytest.mark.parametrize(
    ("values", "pk", "error", "words"),
    [
        ({"id": "a", "at": None}, (), cql.NotAColumnError, "no value for 'at'"),
        ({"id": "a"}, (), cql.NotAColumnError, "no value for 'at'"),
        ({"id": "a", "at": 3, "cuont": 1}, (), cql.NotAColumnError, "did you mean count"),
        ({"id": "a", "at": 3, "count": "one"}, (), TypeError, "count"),
        (None, ("a",), cql.NotAColumnError, "PK has 1 parts"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    values: dict[str, Any] | None, pk: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        binder(PLAIN).bind(0, row(values, pk=pk))

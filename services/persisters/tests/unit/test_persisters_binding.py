"""The sink serializes values exactly as the driver does, and leaves all other values to the driver."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from cassandra import cqltypes
from cassandra.query import UNSET_VALUE, PreparedStatement
from hypothesis import given
from hypothesis import strategies as st

from isotherm import kcql
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.cassandra import cells, cql
from isotherm.persisters.sinks.cassandra.binding import Binder, null_problems
from isotherm.persisters.sinks.cassandra.write_times import WriteTimes

COLUMNS = {"id": "text", "at": "timestamp", "count": "bigint", "mean": "double", "small": "int", "tags": "list<text>"}
PLAIN = {name: type_ for name, type_ in COLUMNS.items() if name != "tags"}
KEY = ("id", "at")
BY_KEY = "PK _key.id, _key.at"
PROTOCOL = 4

longs = st.integers(-(2**63), 2**63 - 1)
plain = {
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
    """A statement as the server returns it when it is prepared."""
    described = [Column("k", "t", name, cqltypes.lookup_casstype(CLASSES[type_])) for name, type_ in columns.items()]
    return PreparedStatement(described, query.encode(), [0], query, "k", PROTOCOL, None, None, None)


CLASSES = {
    "text": "UTF8Type",
    "ascii": "AsciiType",
    "timestamp": "TimestampType",
    "bigint": "LongType",
    "double": "DoubleType",
    "int": "Int32Type",
    "smallint": "ShortType",
    "tinyint": "ByteType",
    "varint": "IntegerType",
    "float": "FloatType",
    "decimal": "DecimalType",
    "boolean": "BooleanType",
    "blob": "BytesType",
    "date": "SimpleDateType",
    "time": "TimeType",
    "duration": "DurationType",
    "inet": "InetAddressType",
    "uuid": "UUIDType",
    "timeuuid": "TimeUUIDType",
    "list<text>": "ListType(UTF8Type)",
    "list<int>": "ListType(Int32Type)",
    "set<double>": "SetType(DoubleType)",
    "map<text, text>": "MapType(UTF8Type, UTF8Type)",
    "map<text, double>": "MapType(UTF8Type, DoubleType)",
    "frozen<list<frozen<map<text, text>>>>": "FrozenType(ListType(FrozenType(MapType(UTF8Type, UTF8Type))))",
    "tuple<text, list<text>>": "TupleType(UTF8Type, ListType(UTF8Type))",
}
"""The driver's classes of CQL's types."""


def binder(columns: dict[str, str]) -> Binder:
    written = {"[timestamp]": "bigint"}
    return Binder(
        cql.Table("k", "t", columns, ["id"], ["at"]),
        insert=prepared("insert", columns | written),
        insert_with_ttl=prepared("ttl", columns | written | {"[ttl]": "int"}),
        delete=prepared("delete", written | {name: columns[name] for name in KEY}),
        times=WriteTimes(),
    )


def row(
    values: dict[str, Any] | None,
    *,
    revision: int | None = None,
    fields: str = "*",
    clauses: str = "",
    pk: Any = (),
    offset: int = 7,
    event_ms: int = 5_000,
) -> Row:
    (statement,) = kcql.parse(f"INSERT INTO t SELECT {fields} FROM topic {clauses}")
    return Row(offset, "t", "id", values, event_ms, revision, compile_plan(statement, None, "-"), pk=pk)


@given(values=st.fixed_dictionaries(plain), absent=st.sampled_from([None, UNSET_VALUE]))
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
    except cells.FALLBACK_ERRORS:
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
    assert (write.row_index, write.partition) == (4, (b"insert", b"a"))
    assert "insert" in str(write.statement)
    assert write.size_bytes > sum(len(cell) for cell in write.statement.values if isinstance(cell, bytes))


def test_size_of_a_row_of_small_values_is_not_below_what_cassandra_counts() -> None:
    """It adds 16 bytes to each value, also to one that hides an earlier one; a cell that stays as it is counts not."""
    assert cells.size_bytes([b"x"] * 34) >= 34 * 17
    assert cells.size_bytes([None] * 34) >= 34 * 16
    assert cells.size_bytes([UNSET_VALUE] * 34) < 34 * 16


def test_times_to_live_and_deletions_are_statements_of_their_own() -> None:
    table = binder(PLAIN)
    lasting = table.bind(0, row({"id": "a", "at": 3}, clauses="TTL=60"))
    assert lasting.partition == (b"ttl", b"a")
    # Its event was long ago: what is left of it is the least that CQL takes.
    assert lasting.statement.values[-1] == cells.pack_int(1)
    deletion = table.bind(0, row(None, clauses=BY_KEY, pk=("a", 3)))
    assert deletion.partition == (b"delete", b"a")
    assert deletion.statement.values == [cells.pack_long(5_000_007), b"a", cells.pack_long(3)]


@pytest.mark.parametrize("extra", [{}, {"tags": ["x"]}], ids=["serialized here", "bound by the driver"])
def test_what_becomes_of_a_key_in_one_millisecond_is_written_in_its_order(extra: dict[str, Any]) -> None:
    table = binder(COLUMNS)
    values = {"id": "a", "at": 3, **extra}

    def written_us(offset: int, values: dict[str, Any] | None, source: Any = ("t", 0), **more: Any) -> int:
        one = row(values, offset=offset, clauses=BY_KEY, pk=("a", 3), **more)
        cell = table.bind(0, one, source).statement.values[-1 if values else 0]
        return int.from_bytes(cell, "big")

    expected = {998: values, 999: None, 1_000: values, 1_001: None, 1_002: values, 1_003: values | {"at": 4}}
    times = {offset: written_us(offset, written) for offset, written in expected.items()}
    assert list(times.values()) == [5_000_998, 5_000_999, 5_001_000, 5_001_001, 5_001_002, 5_000_003]
    assert {offset: written_us(offset, written) for offset, written in expected.items()} == times, "written again"
    assert written_us(2_000, values, ("t", 1)) == 5_000_000, "offsets of two partitions say nothing of an order"
    assert written_us(2_000, values, revision=4) == 4_000
    assert written_us(2_000, values | {"message_internal_timestamp": 6}) == 6


@pytest.mark.parametrize(
    ("fields", "clauses", "pk"),
    [
        ("*", "PK _key.id, _key.at", ("a", 3)),
        ("*", "PK _key.at, _key.id", (3, "a")),
        ("*", "PK _key.AT, _value.x.ID", (3, "a")),
        ("_key.moment AS at, _key.device AS id", "PK _key.moment, _key.device", (3, "a")),
        ("*", "PK _key.device, _key.moment", ("a", 3)),
        ("*", "PK _key, _topic", ("a", 3)),
    ],
    ids=["in order", "turned round", "other case", "aliases", "by position", "no names"],
)
def test_a_deletion_names_the_row_by_the_names_of_its_key(fields: str, clauses: str, pk: tuple[Any, ...]) -> None:
    found = binder(PLAIN).bind(0, row(None, fields=fields, clauses=clauses, pk=pk)).statement.values
    assert found[1:] == [b"a", cells.pack_long(3)]


@pytest.mark.parametrize(
    ("clauses", "words"),
    [
        ("PK _key.id, _key.when", "no part is named at, as the primary key of k.t"),
        ("PK _key.x.id, _key.y.id", "no part is named at"),
        ("PK _key.id", r"PK has 1 parts, the primary key of k.t has \('id', 'at'\)"),
    ],
)
def test_a_key_that_is_named_in_part_is_refused_at_the_start(clauses: str, words: str) -> None:
    delete = f"{clauses} PROPERTIES('behavior.on.null.values'='DELETE')"
    with pytest.raises(SinkConfigError, match=words):
        binder(PLAIN).check(row(None, clauses=delete).plan.statement)
    binder(PLAIN).check(row(None, clauses=clauses).plan.statement)
    with pytest.raises(cql.NotAColumnError, match=words):
        binder(PLAIN).bind(0, row(None, clauses=delete, pk=("a", 3)))


DEEP: Any = []
for _ in range(2_000):
    DEEP = [DEEP]
VALUES = [5, 2**70, -1, 1.5, float("nan"), 1e300, True, "x", "", "\ud800", b"x", Decimal("1.10"), UUID(int=1)]
VALUES += [date(2026, 1, 1), time(1, 2, 3), datetime(2026, 1, 1, tzinfo=UTC), [], ["a"], [1], [None], [[1]], DEEP]
VALUES += [{}, {"a": 1}, {"a": None}, {"a": "b"}, [{"a": 1}], ["a", ["b"]], ["a", 5], ("a", "b")]


@pytest.mark.parametrize("type_", CLASSES)
def test_a_value_of_any_type_is_bound_or_refused_by_a_column_of_any_type(type_: str) -> None:
    table = binder(PLAIN | {"v": type_})
    for value in VALUES:
        try:
            write = table.bind(0, row({"id": "a", "at": 3, "v": value}))
        except (ValueError, TypeError, OverflowError):
            continue
        assert isinstance(write.statement.values[5], bytes)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("text", 5, b"5"),
        ("text", 2**70, str(2**70).encode()),
        ("text", 1.5, b"1.5"),
        ("text", True, b"true"),
        ("text", b"\x00", b"AA=="),
        ("text", Decimal("1.10"), b"1.10"),
        ("text", UUID(int=1), str(UUID(int=1)).encode()),
        ("text", time(1, 2, 3, 4_000), b"01:02:03.004000"),
        ("ascii", 5, b"5"),
        ("list<text>", ["a", 1], b"\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x011"),
        ("map<text, text>", {"a": False}, b"\x00\x00\x00\x01\x00\x00\x00\x01a\x00\x00\x00\x05false"),
        ("time", time(1, 2, 3, 4_000), cells.pack_long(3_723_004_000_000)),
    ],
)
def test_texts_take_scalars_and_times_of_day_are_kept(type_: str, value: Any, expected: bytes) -> None:
    write = binder(PLAIN | {"v": type_}).bind(0, row({"id": "a", "at": 3, "v": value}))
    assert write.statement.values[5] == expected


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("list<text>", "abc"),
        ("list<text>", {"a": 1}),
        ("list<int>", {"a": 1}),
        ("set<double>", 5),
        ("map<text, text>", "abc"),
        ("map<text, double>", ["a"]),
        ("tuple<text, list<text>>", [1, 2]),
        ("text", "\ud800"),
        ("text", DEEP),
        ("bigint", "5"),
        ("int", 2**31),
        ("decimal", "abc"),
    ],
)
def test_a_value_that_its_column_does_not_take_is_refused(type_: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        binder(PLAIN | {"v": type_}).bind(0, row({"id": "a", "at": 3, "v": value}))


@pytest.mark.parametrize(
    ("values", "pk", "error", "words"),
    [
        ({"id": "a", "at": None}, (), cql.NotAColumnError, "no value for 'at'"),
        ({"id": "a"}, (), cql.NotAColumnError, "no value for 'at'"),
        ({"id": "a", "at": 3, "cuont": 1}, (), cql.NotAColumnError, "did you mean count"),
        ({"id": "a", "at": 3, "count": "one"}, (), TypeError, "count"),
        (None, ("a", "no time"), TypeError, "at"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    values: dict[str, Any] | None, pk: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        binder(PLAIN).bind(0, row(values, clauses=BY_KEY, pk=pk))


def test_a_choice_that_is_neither_true_nor_false_is_refused() -> None:
    (wrong,) = kcql.parse("INSERT INTO t SELECT * FROM t PROPERTIES('NullToUnset'='maybe')")
    assert null_problems(wrong) == ["nullToUnset=maybe is not allowed; expected true or false"]
    (right,) = kcql.parse("INSERT INTO t SELECT * FROM t PROPERTIES('nullToUnset'='TRUE')")
    assert null_problems(right) == []


def test_columns_that_a_table_lacks_are_added_with_the_types_of_the_fields() -> None:
    table = cql.Table("k", "t", {"id": "text", "lower": "int"}, ["id"], [])
    missing = cql.missing_columns(table, {"id": "string", "Lower": "int", "New": ["null", "long"], "tags": TAGS})
    assert cql.add_columns(table, missing) == 'ALTER TABLE k.t ADD "New" bigint, tags map<text, double>'


TAGS = {"type": "map", "values": "double"}

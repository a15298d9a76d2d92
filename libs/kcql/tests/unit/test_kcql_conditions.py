"""WHERE: which records a condition keeps, and SQL's logic of three values."""

import operator
import re
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.kcql import Part, Path, ProjectionError, Record, compile_projection, parse, paths_of
from isotherm.kcql.model import And, Comparison, Condition, Constant, Like, Membership, Not, NullTest, Or
from isotherm.kcql.projection.patterns import like_matcher

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 500, UTC)
VALUE: dict[str, Any] = {
    "t": 21.5,
    "n": 7,
    "price": Decimal("0.1"),
    "room": "kitchen",
    "on": True,
    "off": False,
    "at": MOMENT,
    "ms": 1769860800000,
    "iso": "2026-01-31T13:00:00+01:00",
    "day": date(2026, 1, 31),
    "clock": time(12, 30),
    "uuid": UUID(int=5),
    "nan": float("nan"),
    "nothing": None,
    "inner": {"deep": 3, "none": None},
    "list": [1],
    "bytes": b"\xff",
    "and": 1,
    "25": 2,
}
RECORD = Record(
    key={"id": "k"},
    value=VALUE,
    headers=[("mqtt.qos", b"1"), ("plain", b"a")],
    topic="a/b",
    partition=3,
    offset=9,
    timestamp_ms=1769860800000,
)


def kept(condition: str, *, schema: Any = None, record: Record = RECORD) -> bool:
    (statement,) = parse(f"SELECT * FROM s WHERE {condition}")
    accepts = compile_projection(statement, schema=schema).accepts
    assert accepts is not None
    found = accepts(record)
    assert type(found) is bool
    return found


@pytest.mark.parametrize(
    "condition",
    [
        "t > 21", "t >= 21.5", "t <= 21.5", "t < 22", "t = 21.5", "t <> 21", "t != 1e3", "21 < t", "n = 7.0",
        "n <> 7.5",
        "price = 0.1", "price < 0.2", "price IN (0.1)", "n < 9007199254740993.0",
        "room = 'kitchen'", "room > 'bath'", "room IN ('bath', 'kitchen')", "room NOT IN ('bath')", "room <> 'it''s'",
        "room LIKE 'kit%'", "room LIKE '%chen'", "room LIKE 'k_tc%n'", "room NOT LIKE 'K%'", "room LIKE 'kitchen'",
        "on = TRUE", "off = false", "on <> FALSE", "on IN (TRUE)", "TRUE = on",
        "at > TIMESTAMP '2026-01-31T12:00:00Z'", "at <= timestamp '2026-01-31T13:00:00.000500+01:00'",
        "ms = TIMESTAMP '2026-01-31T12:00:00'", "iso = TIMESTAMP '2026-01-31 12:00:00'",
        "ms IN (TIMESTAMP '2026-01-31T12:00:00Z')", "TIMESTAMP '2026-02-01' > _.timestamp", "at > ms", "at > iso",
        "day = '2026-01-31'", "clock < '12:31:00'", "uuid LIKE '%5'",
        "nothing IS NULL", "missing IS NULL", "inner IS NOT NULL", "inner.none IS NULL", "inner.none.below IS NULL",
        "inner.deep = 3", "`and` = 1", "`25` = 2", "_value.t > 21", "_value IS NOT NULL",
        "_key.id = 'k'", "_.topic LIKE 'a/%'", "_.partition = 3", "_.offset IN (8, 9)", "_.timestamp > 0",
        "_header.plain = 'a'", "_header.`mqtt.qos` = '1'", "_header.none IS NULL", "t > n", "room = room",
        "t > 30 OR n = 7", "t > 20 AND (n = 1 OR n = 7)", "NOT t > 30", "NOT (t > 30 OR n = 1)",
        "NOT nothing IS NOT NULL",
        "t > 30 OR nothing = 1 OR n = 7", "NOT room LIKE 'x%'", "NOT room IN ('x')", "NOT NOT t > 20",
        "missing IS NULL OR missing.x = 1",
    ],
)  # fmt: skip
def test_the_condition_is_true(condition: str) -> None:
    assert kept(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "t > 22", "t = 21", "room = 'Kitchen'", "room LIKE 'kitch'", "room IN ('bath')", "on = FALSE", "t IS NULL",
        "nothing = 1", "nothing <> 1", "NOT nothing = 1", "missing = 'x'", "NOT missing = 'x'", "missing > t",
        "nothing IN (1)", "nothing NOT IN (1)", "nothing LIKE '%'", "nothing NOT LIKE '%'", "inner.none < 5",
        "nothing = TIMESTAMP '2026-01-31'", "nan = 5", "nan <> 5", "nan < 5", "NOT nan < 5", "nan IN (5)",
        "nan NOT IN (5)",
        "nan = nan", "t > 20 AND nothing = 1", "nothing = 1 OR t > 30", "NOT (nothing = 1 AND t > 20)",
        "inner.none.x = 1",
    ],
)  # fmt: skip
def test_the_condition_is_false_or_unknown(condition: str) -> None:
    assert not kept(condition)


@pytest.mark.parametrize(
    ("condition", "path", "reason"),
    [
        ("room > 5", "room", "is a text, and WHERE compares it with a number"),
        ("t = 'x'", "t", "is a number, and WHERE compares it with a text"),
        ("on = 1", "on", "is a boolean, and WHERE compares it with a number"),
        ("n = TRUE", "n", "is a number, and WHERE compares it with a boolean"),
        ("n LIKE '7'", "n", "is a number, and WHERE compares it with a text"),
        ("n IN ('7')", "n", "is a number, and WHERE compares it with a text"),
        ("inner = 'x'", "inner", "is a record, and WHERE compares it with a text"),
        ("list = 1", "list", "is an array, and WHERE compares it with a number"),
        ("bytes = 'x'", "bytes", "is a byte string, and WHERE compares it with a text"),
        ("at > 5", "at", "is a time, and WHERE compares it with a number; write TIMESTAMP '..'"),
        ("t > room", "room", "is a text, and WHERE compares it with a number"),
        ("on = TIMESTAMP '2026-01-31'", "on", "is a boolean, and WHERE compares it with a time"),
        ("room = TIMESTAMP '2026-01-31'", "room", "'kitchen' is no time in ISO 8601"),
        ("list.x = 1", "list.x", "leads through an array, which only fields of a statement WITHSTRUCTURE may do"),
        ("room.x = 1", "room.x", 'leads through "room", which has no fields'),
    ],
)
def test_a_value_of_another_kind_makes_the_record_bad(condition: str, path: str, reason: str) -> None:
    with pytest.raises(ProjectionError) as caught:
        kept(condition)
    assert (caught.value.path, caught.value.reason) == (path, reason)


SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "temperature", "type": ["null", "double"]}]}


def test_a_field_that_the_schema_lacks_makes_every_record_bad() -> None:
    with pytest.raises(ProjectionError) as caught:
        kept("temprature > 5", schema=SCHEMA, record=Record(value={"temperature": 5.0}))
    assert caught.value.suggestion == "temperature"
    assert kept("temperature > 4", schema=SCHEMA, record=Record(value={"temperature": 5.0}))


def test_conditions_are_looked_at_from_the_left_and_not_further_than_they_must() -> None:
    assert not kept("t > 30 AND room > 5")
    assert kept("t > 20 OR room > 5 OR room > 6")
    assert not kept("t > 30 AND room > 5 AND room > 6")


def test_without_where_there_is_no_condition() -> None:
    (statement,) = parse("SELECT * FROM s")
    assert statement.where is None
    assert compile_projection(statement).accepts is None


def test_the_paths_of_a_condition() -> None:
    (statement,) = parse("SELECT * FROM s WHERE _key.a = b AND (c IN (1) OR NOT d LIKE 'x' OR 5 < e OR f IS NULL)")
    found = [(path.part, path.segments) for path in paths_of(statement.where)]
    assert found == [(Part.KEY, ("a",)), *((Part.VALUE, (name,)) for name in "bcdef")]
    assert list(paths_of(None)) == []


COLUMNS = ("a", "b", "c")
ROWS = st.fixed_dictionaries({name: st.none() | st.integers(0, 3) for name in COLUMNS})
PATHS = st.sampled_from(COLUMNS).map(lambda name: Path(Part.VALUE, (name,)))
NUMBERS = st.integers(0, 3).map(Constant)
SIGNS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
ATOMS = st.one_of(
    st.builds(Comparison, st.sampled_from(list(SIGNS)), PATHS, NUMBERS | PATHS),
    st.builds(Comparison, st.sampled_from(list(SIGNS)), NUMBERS, PATHS),
    st.builds(NullTest, PATHS, st.booleans()),
    st.builds(Membership, PATHS, st.lists(NUMBERS, min_size=1, max_size=2).map(tuple), st.booleans()),
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


def three_valued(condition: Condition, row: dict[str, Any]) -> bool | None:
    """The truth of a condition as the SQL standard's tables have it; None is unknown."""

    def of(operand: Path | Constant) -> Any:
        return row[operand.segments[0]] if isinstance(operand, Path) else operand.value

    match condition:
        case Not(inner):
            found = three_valued(inner, row)
            return None if found is None else not found
        case And(parts) | Or(parts):
            truths = [three_valued(part, row) for part in parts]
            decisive = isinstance(condition, Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        case Comparison(sign, left, right):
            return None if of(left) is None or of(right) is None else bool(SIGNS[sign](of(left), of(right)))
        case NullTest(path, negated):
            return (of(path) is None) is not negated
        case Membership(path, values, negated):
            return None if of(path) is None else (of(path) in [one.value for one in values]) is not negated
    raise AssertionError(condition)


@given(CONDITIONS, ROWS)
@settings(max_examples=300)
def test_a_record_is_kept_if_the_condition_is_true_in_the_logic_of_three_values(
    condition: Condition, row: dict[str, Any]
) -> None:
    (plain,) = parse("SELECT * FROM s")
    accepts = compile_projection(replace(plain, where=condition)).accepts
    assert accepts is not None
    assert accepts(Record(value=row)) is (three_valued(condition, row) is True)


@given(
    st.text("ab%_!", max_size=8).filter(lambda text: not re.search(r"(?:^|[^!])(?:!!)*!(?![%_!])", text)),
    st.text("ab%_\n", max_size=8),
)
@settings(max_examples=300)
def test_like_is_what_the_regular_expression_says(pattern: str, text: str) -> None:
    pieces = re.findall(r"!.|.", pattern)
    signs = {"%": ".*", "_": "."}
    expression = "".join(re.escape(piece[-1]) if len(piece) > 1 else signs.get(piece, piece) for piece in pieces)
    assert like_matcher(pattern, "!")(text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_like_takes_no_power_of_the_length() -> None:
    assert not like_matcher("%a" * 30 + "%b", None)("a" * 20_000)


def test_like_without_escape_takes_every_character_as_it_is() -> None:
    assert like_matcher(r"a\%", None)(r"a\b")
    assert Like(Path(Part.VALUE, ("a",)), "x").escape is None

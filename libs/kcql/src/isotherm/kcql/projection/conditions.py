"""Compiles the condition of WHERE to a function from a record to whether the condition is true of it.

SQL's logic has three values, and WHERE keeps a record only when its condition is true. So NOT is moved inwards to the
comparisons first, where it only chooses the opposite one; what is left of the logic, AND and OR, is true exactly if so
many of its parts are true. No function has to tell false from unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from isotherm.kcql.dates import EPOCH, utc
from isotherm.kcql.errors import ProjectionError
from isotherm.kcql.model import (
    And,
    Comparison,
    Condition,
    Constant,
    Like,
    Membership,
    Not,
    NullTest,
    Operand,
    Or,
    Path,
)
from isotherm.kcql.projection.paths import MISSING, Fetch, fetcher, shape_at
from isotherm.kcql.projection.patterns import like_matcher
from isotherm.kcql.projection.record import Record
from isotherm.kcql.projection.shapes import SchemaShapes
from isotherm.kcql.syntax.names import write_path

Test = Callable[[Record], bool]
Compare = Callable[[Any, Any], bool]

_COMPARE: Mapping[str, Compare] = {
    "=": operator.eq,
    # Not a number is like null: neither equal nor unequal to anything.
    "<>": lambda left, right: left != right and left == left and right == right,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_EXACT_DOUBLE = 2**53
_MICROSECONDS = 1_000
"""In a millisecond."""


def compile_condition(condition: Condition, schema: SchemaShapes) -> Test:
    """The function that tells whether a condition is true of a record.

    It raises ProjectionError when a value is of another kind than what it is compared with, or a path leads through
    an array or a scalar. It looks at the parts of AND and OR from left to right, and not further than it must.

    Args:
        condition: the condition of WHERE.
        schema: the writer schema of the value.

    Raises:
        ProjectionError: the schema has no such field.
    """
    return _compile(condition, schema, is_negated=False)


def _compile(condition: Condition, schema: SchemaShapes, *, is_negated: bool) -> Test:
    match condition:
        case Not(inner):
            return _compile(inner, schema, is_negated=not is_negated)
        case And(parts) | Or(parts):
            tests = [_compile(part, schema, is_negated=is_negated) for part in parts]
            return _all(tests) if isinstance(condition, And) is not is_negated else _any(tests)
        case Comparison(sign, left, right):
            return _comparison(_OPPOSITE[sign] if is_negated else sign, left, right, schema)
        case NullTest(path, negated):
            return _null_test(_fetch(path, schema), wants_null=negated is is_negated)
        case Membership(path, values, negated):
            return _membership(path, values, schema, wants_member=negated is is_negated)
        case Like(path, pattern, escape, negated):
            return _like(path, like_matcher(pattern, escape), schema, wants_match=negated is is_negated)


def _all(tests: list[Test]) -> Test:
    """The test that all tests hold, as a tree of pairs, which is quicker than a loop over them."""
    if len(tests) == 1:
        return tests[0]
    half = len(tests) // 2
    first, second = _all(tests[:half]), _all(tests[half:])
    return lambda record: first(record) and second(record)


def _any(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    half = len(tests) // 2
    first, second = _any(tests[:half]), _any(tests[half:])
    return lambda record: first(record) or second(record)


def _fetch(path: Path, schema: SchemaShapes) -> Fetch:
    shape_at(schema, path, arrays=False)
    return fetcher(path, {})


def _null_test(fetch: Fetch, *, wants_null: bool) -> Test:
    if wants_null:
        return lambda record: (value := fetch(record)) is None or value is MISSING
    return lambda record: (value := fetch(record)) is not None and value is not MISSING


def _comparison(sign: str, left: Operand, right: Operand, schema: SchemaShapes) -> Test:
    if isinstance(left, Path) and isinstance(right, Path):
        return _comparison_of_fields(_COMPARE[sign], left, right, schema)
    if isinstance(left, Constant):
        return _comparison(_MIRRORED[sign], right, left, schema)
    assert isinstance(right, Constant)
    fetch, compare, constant = _fetch(left, schema), _COMPARE[sign], right.value
    if isinstance(constant, datetime):
        return _comparison_of_times(fetch, compare, _epoch_us(constant), left)
    if isinstance(constant, int | Decimal) and not isinstance(constant, bool):
        return _comparison_of_numbers(fetch, compare, constant, left)
    kind = type(constant)
    expected = "text" if kind is str else "boolean"

    def test(record: Record) -> bool:
        value = fetch(record)
        if type(value) is kind:
            return compare(value, constant)
        if value is None or value is MISSING:
            return False
        return compare(_comparable(value, expected, left), constant)

    return test


def _comparison_of_numbers(fetch: Fetch, compare: Compare, constant: int | Decimal, path: Path) -> Test:
    number = _quick(constant)

    def test(record: Record) -> bool:
        value = fetch(record)
        kind = type(value)
        if kind is float or kind is int:
            return compare(value, number)
        if value is None or value is MISSING:
            return False
        return compare(_comparable(value, "number", path), constant)

    return test


def _quick(constant: int | Decimal) -> int | float:
    """The constant as the number that compares most quickly with whole numbers and doubles."""
    if isinstance(constant, int):
        return constant
    is_whole = abs(constant) < _EXACT_DOUBLE and constant == int(constant)
    return int(constant) if is_whole else float(constant)


def _comparison_of_times(fetch: Fetch, compare: Compare, time_us: int, path: Path) -> Test:
    def test(record: Record) -> bool:
        value = fetch(record)
        if type(value) is int:
            return compare(value * _MICROSECONDS, time_us)
        if value is None or value is MISSING:
            return False
        return compare(_time_us(value, path), time_us)

    return test


def _comparison_of_fields(compare: Compare, left: Path, right: Path, schema: SchemaShapes) -> Test:
    fetch_left, fetch_right = _fetch(left, schema), _fetch(right, schema)

    def test(record: Record) -> bool:
        one, other = fetch_left(record), fetch_right(record)
        if one is None or one is MISSING or other is None or other is MISSING:
            return False
        if isinstance(one, datetime) or isinstance(other, datetime):
            return compare(_time_us(one, left), _time_us(other, right))
        kind = _kind(one)
        return compare(_comparable(one, kind, left), _comparable(other, kind, right))

    return test


def _membership(path: Path, constants: tuple[Constant, ...], schema: SchemaShapes, *, wants_member: bool) -> Test:
    fetch = _fetch(path, schema)
    first = constants[0].value
    convert: Callable[[Any], Any]
    values: frozenset[Any]
    if isinstance(first, datetime):
        values = frozenset(_epoch_us(one.value) for one in constants if isinstance(one.value, datetime))
        convert = lambda value: _time_us(value, path)  # noqa: E731  # a closure over one name
    else:
        kind = _kind(first)
        exact = [one.value for one in constants]
        # A double and a decimal of the same text have different hashes: the set has both.
        quick = [_quick(value) for value in exact if isinstance(value, int | Decimal)]
        values = frozenset(exact) | frozenset(quick if kind == "number" else ())
        convert = lambda value: _comparable(value, kind, path)  # noqa: E731  # a closure over two names
    plain = str if isinstance(first, str) else None

    def test(record: Record) -> bool:
        value = fetch(record)
        if type(value) is plain:
            return (value in values) is wants_member
        if value is None or value is MISSING:
            return False
        comparable = convert(value)
        # Not a number is like null: neither a member nor none.
        return (comparable in values) is wants_member and comparable == comparable

    return test


def _like(path: Path, matches: Callable[[str], bool], schema: SchemaShapes, *, wants_match: bool) -> Test:
    fetch = _fetch(path, schema)

    def test(record: Record) -> bool:
        value = fetch(record)
        if type(value) is str:
            return matches(value) is wants_match
        if value is None or value is MISSING:
            return False
        return matches(_comparable(value, "text", path)) is wants_match

    return test


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float | Decimal):
        return "number"
    if isinstance(value, str | time | UUID) or (isinstance(value, date) and not isinstance(value, datetime)):
        return "text"
    if isinstance(value, datetime):
        return "time"
    if isinstance(value, Mapping):
        return "record"
    if isinstance(value, list | tuple):
        return "array"
    return "byte string" if isinstance(value, bytes | bytearray) else type(value).__name__


def _wrong_kind(found: str, wanted: str, path: Path, advice: str = "") -> ProjectionError:
    article = "an" if found == "array" else "a"
    return ProjectionError(write_path(path), f"is {article} {found}, and WHERE compares it with a {wanted}{advice}")


def _comparable(value: Any, kind: str, path: Path) -> Any:
    """A value that is not null, in the form in which its kind is compared; dates, times of day and UUIDs are texts.

    Raises:
        ProjectionError: the value is of another kind.
    """
    found = _kind(value)
    if found != kind:
        raise _wrong_kind(found, kind, path, "; write TIMESTAMP '..'" if found == "time" else "")
    if kind != "text" or isinstance(value, str):
        return value
    return str(value) if isinstance(value, UUID) else value.isoformat()


def _epoch_us(moment: datetime) -> int:
    since = utc(moment) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _time_us(value: Any, path: Path) -> int | float:
    """A time in epoch microseconds, from a datetime, a number of epoch milliseconds, or a text in ISO 8601.

    Raises:
        ProjectionError: the value is none of these.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ProjectionError(write_path(path), f"{value[:40]!r} is no time in ISO 8601") from None
    if isinstance(value, datetime):
        return _epoch_us(value)
    if _kind(value) != "number":
        raise _wrong_kind(_kind(value), "time", path)
    return value * _MICROSECONDS  # type: ignore[no-any-return]  # a number

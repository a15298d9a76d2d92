"""KCQL: statements that survive rendering, and projections of records."""

from __future__ import annotations

from collections.abc import Callable

from isotherm import kcql
from isotherm.kcql.syntax.expectations import CLAUSES
from isotherm.proofs.fuzzing.target import Target, expect, split

_RECORDS = (
    kcql.Record(key={"id": 1, "k": "x"}, value={"a": 1, "b": {"c": [1, {"d": 2}], "e": "t"}, "id": "x", "t": 2**60}),
    kcql.Record(key="k", value=None, headers=[("h", b"\xff"), ("h", "2")], topic="t", partition=1, offset=2),
    kcql.Record(key=None, value=[{"a": 1}, 2, None]),
)


def statement_target() -> Callable[[bytes], None]:
    """Return the check that what is parsed reads the same after rendering, and can be explained and applied."""

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            statements = kcql.parse(text)
        except kcql.KcqlError as error:
            expect(str(error).startswith("KCQL: line "), "an error names its place")
            return
        rendered = kcql.render(statements)
        expect(kcql.parse(rendered) == statements, f"rendered otherwise: {rendered!r}")
        for statement in statements:
            kcql.explain_words(statement)
            kcql.explain_json(statement)
            _project(statement)

    return run


def _project(statement: kcql.Statement) -> None:
    try:
        projection = kcql.compile_projection(statement)
    except kcql.KcqlError:
        return
    for record in _RECORDS:
        if projection.accepts is not None:
            try:
                projection.accepts(record)
            except kcql.ProjectionError:
                continue
        for part in (projection.row, projection.id, projection.pk, projection.timestamp_ms):
            try:
                part(record)
            except kcql.ProjectionError:
                continue
        try:
            projection.target(record, 1_790_000_000_000)
        except (kcql.ProjectionError, OverflowError):
            # OverflowError: an event time beyond the year 9999, as documented.
            continue


def date_target() -> Callable[[bytes], None]:
    """Return the check that a suffix with dates is formatted or refused."""

    def run(data: bytes) -> None:
        pattern, time = split(data, 2)
        try:
            kcql.format_suffix(pattern.decode("utf-8", "replace"), int.from_bytes(time[:9], "big", signed=True))
        except (kcql.BadPattern, OverflowError):
            return

    return run


_WORDS = (
    "INSERT INTO",
    "UPSERT INTO",
    "SELECT",
    "FROM",
    "AS",
    "_key.",
    "_value.",
    "_header.",
    "_.key.",
    "`",
    "'",
    ".*",
)

_CONDITION_WORDS = (
    "SELECT * FROM a WHERE ",
    " AND ",
    " OR ",
    "NOT ",
    " IN (",
    " LIKE '",
    " IS NULL",
    "TIMESTAMP '",
    " <> ",
)

TARGETS = (
    Target(
        name="kcql",
        make=statement_target,
        dictionary=tuple(
            word.encode() for word in (*_WORDS, *CLAUSES, "sys_time()", "SELECT * FROM a ", *_CONDITION_WORDS)
        ),
        max_bytes=1_024,
        quick_inputs=40,
    ),
    Target(
        name="kcql-dates",
        make=date_target,
        dictionary=(b"{YYYY.MM.DD}", b"{", b"}", b"HH", b"mm"),
        max_bytes=256,
    ),
)

"""Ids: different parts never give the same text, and plain parts stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.kcql import Record, compile_projection, parse
from isotherm.kcql.projection.ids import joiner, nullable_first, separator_problem

SEPARATORS = st.sampled_from(["-", "|", ".", "--", "-.", "^", "]", " ", "ä", "\\"])
PARTS = st.text(alphabet="a-%.|^] 2DäA\\", max_size=4)


@given(st.integers(1, 4).flatmap(lambda count: st.lists(PARTS, min_size=count, max_size=count)), st.data(), SEPARATORS)
def test_different_parts_give_different_ids(one: list[str], data: st.DataObject, separator: str) -> None:
    other = data.draw(st.lists(PARTS, min_size=len(one), max_size=len(one)))
    join = joiner(separator)
    assert (join(one) == join(other)) == (one == other)


@pytest.mark.parametrize(
    ("parts", "id_"),
    [
        (["room-1"], "room-1"),
        (["a%"], "a%"),
        (["dev-1", "temperature", "5"], "dev-1-temperature-5"),
        (["room", "inside-temp"], "room-inside%2Dtemp"),
        (["room-inside", "temp"], "room-inside-temp"),
        (["a", "50%"], "a-50%25"),
        (["a", ""], "a-"),
        (["a", "-5"], "a-%2D5"),
    ],
)
def test_only_what_could_be_taken_for_something_else_is_encoded(parts: list[str], id_: str) -> None:
    assert joiner("-")(parts) == id_


def test_the_values_of_a_pk_are_told_apart() -> None:
    (statement,) = parse("INSERT INTO t SELECT * FROM s PK device, metric")
    id_of = compile_projection(statement).id
    ids = [
        id_of(Record(value={"device": device, "metric": metric}))
        for device, metric in (("room", "inside-temp"), ("room-inside", "temp"))
    ]
    assert ids == ["room-inside%2Dtemp", "room-inside-temp"]


@given(st.none() | PARTS, st.none() | PARTS)
def test_a_null_is_no_text(one: str | None, other: str | None) -> None:
    assert (nullable_first(one) == nullable_first(other)) == (one == other)


@pytest.mark.parametrize("separator", ["", "%", "0", "A", "-2"])
def test_a_separator_that_encodes_is_refused(separator: str) -> None:
    assert separator_problem(separator) is not None
    (statement,) = parse("INSERT INTO t SELECT * FROM s PK a, b")
    with pytest.raises(ValueError, match="0-9 and A-F"):
        compile_projection(statement, pk_separator=separator)

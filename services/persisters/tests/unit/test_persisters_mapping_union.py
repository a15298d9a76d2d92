"""Fields of several schemas in one mapping."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.elasticsearch.indices.mapping_union import additions, union

LONG, DATE, KEYWORD = {"type": "long"}, {"type": "date"}, {"type": "keyword"}

leaves = st.sampled_from([LONG, DATE, KEYWORD])
mappings = st.recursive(
    st.dictionaries(st.sampled_from("abc"), leaves, max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from("abc"), leaves | inner.map(lambda fields: {"type": "object", "properties": fields}), max_size=3
    ),
)


def names(fields: Any, under: str = "") -> set[str]:
    found = {under + name for name in fields}
    return found.union(*(names(field.get("properties", {}), f"{under}{name}.") for name, field in fields.items()))


def test_a_later_schema_adds_its_fields_and_changes_none() -> None:
    first = {"a": KEYWORD, "place": {"type": "object", "properties": {"x": LONG}}}
    later = {"a": LONG, "seen": DATE, "place": {"type": "object", "properties": {"x": DATE, "y": LONG}}}
    assert additions(first, later) == {"seen": DATE, "place": {"properties": {"y": LONG}}}
    assert union(first, later) == {
        "a": KEYWORD,
        "seen": DATE,
        "place": {"type": "object", "properties": {"x": LONG, "y": LONG}},
    }
    assert first == {"a": KEYWORD, "place": {"type": "object", "properties": {"x": LONG}}}, (
        "nothing is changed in place"
    )


def test_an_old_schema_behind_a_new_one_takes_nothing_away() -> None:
    assert union({"a": KEYWORD, "seen": DATE}, {"a": KEYWORD}) == {"a": KEYWORD, "seen": DATE}


def test_an_object_where_the_index_has_a_value_is_left_to_it() -> None:
    assert additions({"a": KEYWORD}, {"a": {"type": "object", "properties": {"x": LONG}}}) == {}


@given(mappings, mappings)
def test_a_union_has_what_was_known_and_misses_nothing(known: Any, required: Any) -> None:
    both = union(known, required)
    assert additions(both, required) == {}
    assert additions(both, known) == {}
    assert union(both, required) == both
    assert names(known) <= names(both) <= names(known) | names(required)

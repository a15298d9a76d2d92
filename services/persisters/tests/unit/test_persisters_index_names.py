"""Names of indices: which ones a record may name, and which ones it must never reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm import kcql
from isotherm.kcql.dates import format_suffix
from isotherm.persisters.sinks.elasticsearch.indices.index_names import (
    BadIndexNameError,
    dated_series,
    example,
    index_name,
    pattern,
)

DAY_MS = 86_400_000
names = st.text(st.sampled_from("abcXYZ019-_."), min_size=1, max_size=8).filter(lambda text: text[0] not in "-_.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("temperatures", "temperatures"), ("indexA", "indexa"), ("Größe", "größe"), ("a.b-c_d", "a.b-c_d"), ("7", "7")],
)
def test_names(text: str, expected: str) -> None:
    assert index_name(text) == expected


@pytest.mark.parametrize("bad", list('\\/*?"<>| ,#:'))
def test_characters_that_stand_for_other_indices_or_are_not_allowed(bad: str) -> None:
    for text in (bad, f"a{bad}", f"{bad}a", f"a{bad}b"):
        with pytest.raises(BadIndexNameError, match="is not allowed in it"):
            index_name(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("-a", "begin with"),
        ("_all", "begin with"),
        ("+a", "begin with"),
        (".", "begin with"),
        ("..", "begin with"),
        (".security", "begin with"),
        ("a" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("a\ud800", "not Unicode"),
    ],
)
def test_other_names_that_are_none(text: str, words: str) -> None:
    with pytest.raises(BadIndexNameError, match=words):
        index_name(text)


@given(st.text(max_size=300))
def test_what_is_taken_names_one_index(text: str) -> None:
    try:
        name = index_name(text)
    except BadIndexNameError:
        return
    assert name == name.lower()
    assert not set(name) & set('\\/*?"<>| ,#:')
    assert name[0] not in "-_+."
    assert len(name.encode()) <= 255


@given(names, st.sampled_from(["-{YYYY.MM.DD}", "-Day{YYYY-MM-dd}", "{YYYY}"]), st.integers(0, 40_000 * DAY_MS))
def test_a_dated_index_is_of_its_family_and_its_pattern(base: str, suffix: str, time_ms: int) -> None:
    (statement,) = kcql.parse(f"INSERT INTO `{base}` SELECT * FROM t WITHINDEXSUFFIX={suffix}")
    name = index_name("P-" + base + format_suffix(suffix, time_ms))
    series = dated_series("P-", statement)
    assert series is not None
    assert series.end_ms(name) is not None
    before, after = pattern("P-", statement, name).split("*", 1)
    assert name.startswith(before)
    assert name.endswith(after.rpartition("*")[2])


def test_a_name_of_a_record_is_its_own_pattern() -> None:
    (statement,) = kcql.parse("INSERT INTO _header.place SELECT * FROM t WITHINDEXSUFFIX=-{YYYY}")
    assert dated_series("", statement) is None
    assert pattern("", statement, "kitchen-2026") == "kitchen-2026"
    assert example("Home-", statement) == "Home-x-1970"

"""The automaton, against Python's `re`, and patterns for which `re` takes exponential time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.linear_pattern import MAX_STEPS, LinearPattern

_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", "é", "(?i:A)", "()"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "*?", "{1,}"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        )
    ),
    max_leaves=8,
)


@given(
    _PATTERNS, st.lists(st.text("abAé1", max_size=8), min_size=1, max_size=5), st.sampled_from([re.NOFLAG, re.ASCII])
)
def test_it_matches_what_re_matches(pattern: str, texts: list[str], flags: re.RegexFlag) -> None:
    linear, expected = LinearPattern(pattern, flags), re.compile(pattern, flags)
    for text in texts:
        assert linear.fullmatch(text) == (expected.fullmatch(text) is not None), text


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*.*.*.*.*)b", "((a?){30}a{30})c"])
def test_nested_repetitions_take_linear_time(pattern: str) -> None:
    # With `re` each of them takes longer than the universe is old.
    assert not LinearPattern(pattern).fullmatch("a" * 249)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        "(?=a)a",
        "(?<!a)b",
        r"\ba",
        "(?>a)",
        "a*+",
        "(?m)^a",
        "(",
        "a{99999999999999}",
        "(" * 3_000 + ")" * 3_000,
    ],
    ids=range(10),
)
def test_what_an_automaton_cannot_match_is_an_error(pattern: str) -> None:
    with pytest.raises(re.error):
        LinearPattern(pattern)


def test_the_size_of_a_pattern_is_bounded() -> None:
    with pytest.raises(re.error, match=str(MAX_STEPS)):
        LinearPattern("((a{50}){50}){50}")
    assert LinearPattern("[a-z]{1,249}").fullmatch("t" * 249)


def test_many_different_texts_take_bounded_memory() -> None:
    pattern = LinearPattern("(a|b)*a(a|b){12}")
    for number in range(3_000):
        text = f"{number:016b}".replace("0", "a").replace("1", "b")
        assert pattern.fullmatch(text) == (text[-13] == "a")
    assert len(pattern._states) <= 1_001

"""`topics.regex` with Java's meaning; an expression with another meaning in Python is an error."""

from __future__ import annotations

import contextlib
import re

import pytest

from isotherm.connector.config.topic_patterns import matching
from isotherm.connector.java_patterns import JavaPattern, SlowPatternError


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "(?u)t",
        "t{99999999999999}",
        "[a-z&&[^b]]",
        "[a-z&&b]",
        "[s[t]]",
        "[s[^a]]",
        r"\p{Alpha}",
        "(" * 3_000 + ")" * 3_000,
        "t{e<=1}",
        "t{",
        "t{1001}",
        "t{2000000}",
        "(){8000}t",
        "(?:(?:a{10}){10}){10}",
        "(a{30}b{30}){20}",
        "a{500}" * 3,
        "t" * 8_193,
    ],
    ids=range(18),
)
def test_a_pattern_that_is_none_or_means_something_else_in_java(pattern: str) -> None:
    with pytest.raises(re.error):
        JavaPattern(pattern)


def test_look_around_as_users_of_connect_write_it() -> None:
    assert matching(r"(?!.*-raw$)t.*", ["t-raw", "t-clean", "u"]) == ["t-clean"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"[{t]",
        r"\{?t",
        "t{1}",
        "t{1,1}",
        "t{0,1}[{9999}]{0}",
        "t{0,1}",
        r"[\[t]",
        "[^a]",
        "t&&|t",
        r"[s\]t]",
        r"\[?t",
    ],
)
def test_brackets_that_mean_the_same_in_java(pattern: str) -> None:
    assert matching(pattern, ["t", "tt", "__t"]) == ["t"]


@pytest.mark.parametrize("pattern", ["(a+)+$^", "(a|a)+(?!a|$)", "(.?)*$^", ".*.*.*.*x"])
def test_every_match_ends(pattern: str) -> None:
    with contextlib.suppress(SlowPatternError):
        assert matching(pattern, ["a" * 249]) == []


def test_an_expression_that_tries_every_way_says_so() -> None:
    with pytest.raises(SlowPatternError, match=r"'\(a\|a\)\+\(\?!a\|\$\)' takes more than 20 ms on 'aaaaa"):
        matching("(a|a)+(?!a|$)", ["a" * 249])

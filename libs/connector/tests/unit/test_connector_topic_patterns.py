"""`topics.regex` with Java's meaning; an expression with another meaning in Python is an error."""

from __future__ import annotations

import re

import pytest

from isotherm.connector.config.topic_patterns import matching
from isotherm.connector.java_patterns import compiled


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
    ],
    ids=range(9),
)
def test_a_pattern_that_is_none_or_means_something_else_in_java(pattern: str) -> None:
    with pytest.raises(re.error):
        compiled(pattern)


def test_look_around_as_users_of_connect_write_it() -> None:
    assert matching(r"(?!.*-raw$)t.*", ["t-raw", "t-clean", "u"]) == ["t-clean"]


@pytest.mark.parametrize("pattern", [r"[\[t]", "[^a]", "t&&|t", r"[s\]t]", r"\[?t"])
def test_brackets_that_mean_the_same_in_java(pattern: str) -> None:
    assert matching(pattern, ["t", "tt", "__t"]) == ["t"]

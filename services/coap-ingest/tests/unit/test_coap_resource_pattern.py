"""Patterns of resource paths, against a regular expression of the same meaning."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.ingest.resource_pattern import ResourcePattern


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_star_matches_any_part_of_a_segment(pattern: str, segment: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert ResourcePattern("x/" + pattern).matches(("x", segment)) == bool(re.fullmatch(expression, segment))


@pytest.mark.parametrize(("pattern", "segment"), [("%2A", "*"), ("%C3%A9*", "éa"), ("*%2F", "a/")])
def test_a_pattern_is_percent_decoded(pattern: str, segment: str) -> None:
    assert ResourcePattern("x/" + pattern).matches(("x", segment))


def test_many_stars_take_linear_time() -> None:
    # With a regular expression this takes years.
    assert not ResourcePattern("x/" + "*a" * 12 + "*b").matches(("x", "a" * 254))

"""Rates in the form `n:seconds`, and the token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.servicekit.throttling.rates import Rate, TokenBucket, parse_optional_rate, parse_rate


@pytest.mark.parametrize("text", ["", "5", "0:1", "1:0", "-1:1", "1:1:1", "1.5:1", "a:b", ":", "100:1 s"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected n:seconds"):
        parse_rate(text)


def test_a_rate_is_an_amount_and_seconds() -> None:
    assert parse_rate(" 100:60 ") == Rate(100, 60)
    assert parse_optional_rate("100:60") == Rate(100, 60)
    assert parse_optional_rate(" ") is None


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(0, 5), max_size=100))
def test_a_bucket_never_admits_more_than_its_amount_and_the_rate(
    amount: int, seconds: int, pauses: list[float]
) -> None:
    bucket, now_s, admitted = TokenBucket(Rate(amount, seconds), 0.0), 0.0, 0
    for pause_s in pauses:
        now_s += pause_s
        if bucket.wait_s(now_s) == 0:
            bucket.take(1)
            admitted += 1
        assert admitted <= amount + now_s * amount / seconds + 1e-6


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 100_000))
def test_the_stated_wait_pays_a_debt(amount: int, seconds: int, taken: int) -> None:
    bucket = TokenBucket(Rate(amount, seconds), 0.0)
    bucket.take(taken)
    wait_s = bucket.wait_s(0.0)
    assert bucket.wait_s(wait_s * (1 + 1e-9) + 1e-6) == 0.0

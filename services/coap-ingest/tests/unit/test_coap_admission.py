"""How much one device may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.listener.rate_limits import Admission, Rate, parse_rate


def test_a_rate_is_written_as_the_documents_do() -> None:
    assert parse_rate(" 100:1 ") == Rate(100, 1)
    for text in ("", "100", "0:1", "1:0", "a:b", "-1:1"):
        with pytest.raises(ValueError, match="expected n:seconds"):
            parse_rate(text)


def test_a_full_bucket_may_be_spent_at_once_and_then_it_says_how_long_to_wait() -> None:
    admission = Admission(Rate(2, 4))
    assert [admission.wait_s("a", 0) for _ in range(3)] == [0, 0, 2]
    assert admission.wait_s("b", 0) == 0
    assert admission.wait_s("a", 1) == 1
    assert admission.wait_s("a", 2) == 0


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(0, 5), max_size=100))
def test_never_more_than_the_bucket_and_its_rate(requests: int, seconds: int, pauses: list[float]) -> None:
    admission, now, admitted = Admission(Rate(requests, seconds)), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += admission.wait_s("a", now) == 0
        assert admitted <= requests + now * requests / seconds + 1e-6


def test_only_so_many_clients_are_remembered() -> None:
    admission = Admission(Rate(1, 60), max_clients=2)
    assert admission.wait_s("a", 0) == 0
    assert admission.wait_s("b", 0) == 0
    assert admission.wait_s("a", 0) > 0
    assert admission.wait_s("c", 0) == 0
    assert admission.wait_s("a", 0) > 0
    assert admission.wait_s("b", 0) == 0

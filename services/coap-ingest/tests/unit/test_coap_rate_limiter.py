"""The rate limit of each client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.listener.rate_limiter import RateLimiter
from isotherm.servicekit.throttling.rates import Rate


def test_a_burst_may_empty_the_bucket_and_the_next_request_has_a_wait() -> None:
    limiter = RateLimiter(Rate(2, 4))
    assert [limiter.take("a", 0) for _ in range(3)] == [0, 0, 2]
    assert limiter.take("b", 0) == 0
    assert limiter.take("a", 1) == 1
    assert limiter.take("a", 2) == 0


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(0, 5), max_size=100))
def test_a_client_never_sends_more_than_the_bucket_and_the_rate(
    requests: int, seconds: int, pauses: list[float]
) -> None:
    limiter, now, admitted = RateLimiter(Rate(requests, seconds)), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += limiter.take("a", now) == 0
        assert admitted <= requests + now * requests / seconds + 1e-6


def test_what_continues_a_transfer_is_made_up_for_afterwards() -> None:
    limiter = RateLimiter(Rate(2, 2))
    assert [limiter.take("a", 0, continues=True) for _ in range(10)] == 10 * [0]
    assert limiter.take("a", 0, continues=True) == 9, "it owes four full buckets"
    assert limiter.take("a", 8) == 1
    assert limiter.take("a", 9) == 0


def test_the_number_of_clients_is_limited() -> None:
    limiter = RateLimiter(Rate(1, 60), max_clients=2)
    assert limiter.take("a", 0) == 0
    assert limiter.take("b", 0) == 0
    assert limiter.take("a", 0) > 0
    assert limiter.take("c", 0) == 0
    assert limiter.take("a", 0) > 0
    assert limiter.take("b", 0) == 0

"""The rates of one client: messages and bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.access.connection_limits import RateMeter, rate_meters
from isotherm.servicekit.throttling.rates import Rate


def test_two_empty_settings_need_no_meter() -> None:
    assert rate_meters("", "", 0.0) == ()


@given(
    amount=st.integers(1, 50),
    seconds=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 5), max_size=60),
    sizes=st.lists(st.integers(0, 200), min_size=60, max_size=60),
)
def test_never_more_than_the_rate_and_one_burst(
    amount: int, seconds: int, pauses: list[float], sizes: list[int]
) -> None:
    """A sender that keeps the waits never exceeds the rate times the time, plus one full bucket and one message."""
    measured = RateMeter(Rate(amount, seconds), Rate(100 * amount, seconds), 0.0)
    now_s, messages, payload_bytes = 0.0, 0, 0
    for pause_s, size in zip(pauses, sizes, strict=False):
        now_s += pause_s
        if measured.wait_s(now_s) == 0:
            measured.count(size)
            messages += 1
            payload_bytes += size
        assert messages <= amount + now_s * amount / seconds + 1e-6
        assert payload_bytes <= 100 * amount + 100 * now_s * amount / seconds + max(sizes) + 1e-6


@given(amount=st.integers(1, 50), seconds=st.integers(1, 20), size=st.integers(0, 100_000))
def test_the_wait_is_long_enough(amount: int, seconds: int, size: int) -> None:
    measured = RateMeter(None, Rate(amount, seconds), 0.0)
    measured.count(size)
    wait_s = measured.wait_s(0.0)
    assert measured.wait_s(wait_s * (1 + 1e-9) + 1e-6) == 0.0

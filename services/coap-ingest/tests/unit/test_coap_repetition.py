"""What the listener remembers of requests: repeated ones are known, and memory has a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.listener.message_id_cache import RememberedRequests


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def test_a_request_is_known_with_its_last_answer_until_its_lifetime_has_passed() -> None:
    remembered = RememberedRequests(1_000, lifetime_s=80)
    remembered.add(key(1), 0.0)
    assert key(1) in remembered
    assert remembered.answer_of(key(1)) is None
    remembered.answer(key(1), b"empty acknowledgement")
    remembered.answer(key(1), b"2.04")
    assert remembered.answer_of(key(1)) == b"2.04"
    remembered.expire(79.9)
    assert key(1) in remembered
    remembered.expire(80 + 10)
    assert key(1) not in remembered
    assert len(remembered) == 0
    remembered.answer(key(1), b"late")
    assert key(1) not in remembered
    assert remembered.forgotten_early == 0


def test_a_request_of_which_the_lifetime_is_over_is_forgotten_by_the_next_ones() -> None:
    remembered = RememberedRequests(1_000, lifetime_s=80)
    for second in range(500):
        remembered.add(key(second), float(second))
        assert len(remembered) <= 80 + 10 + 1
    assert remembered.forgotten_early == 0


def test_the_oldest_requests_make_room_and_that_is_counted() -> None:
    remembered = RememberedRequests(1_000)
    for number in range(10_000):
        remembered.add(key(number), 1.0)
        assert len(remembered) <= 1_000
    assert remembered.forgotten_early == 10_000 - len(remembered)
    assert all(key(number) in remembered for number in range(10_000 - 875, 10_000))


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 20)), max_size=200))
def test_whatever_comes_the_newest_are_known_and_nothing_older_than_its_lifetime(
    requests: list[tuple[int, float]],
) -> None:
    limit, lifetime_s = 16, 80.0
    remembered = RememberedRequests(limit, lifetime_s)
    now, seen = 0.0, {}
    for number, pause in requests:
        now += pause
        remembered.expire(now)
        if key(number) not in remembered:
            remembered.add(key(number), now)
            seen[number] = now
        assert len(remembered) <= limit
        newest = sorted(seen, key=lambda found: seen[found])[-(limit - limit // 8) :]
        assert all(key(found) in remembered for found in newest if seen[found] > now - lifetime_s)
        assert not any(key(found) in remembered for found in seen if seen[found] < now - lifetime_s * 9 / 8)

"""The message id cache recognises duplicates, within its limit."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def test_a_request_stays_with_its_last_answer_until_the_end_of_its_lifetime() -> None:
    cache = MessageIdCache(1_000, lifetime_s=80)
    cache.add(key(1), 0.0)
    assert key(1) in cache
    assert cache.answer_to(key(1)) is None
    cache.set_answer(key(1), b"empty acknowledgement")
    cache.set_answer(key(1), b"2.04")
    assert cache.answer_to(key(1)) == b"2.04"
    cache.expire(79.9)
    assert key(1) in cache
    cache.expire(80 + 10)
    assert key(1) not in cache
    assert len(cache) == 0
    cache.set_answer(key(1), b"late")
    assert key(1) not in cache
    assert cache.evictions == 0


def test_later_requests_drop_one_whose_lifetime_is_over() -> None:
    cache = MessageIdCache(1_000, lifetime_s=80)
    for second in range(500):
        cache.add(key(second), float(second))
        assert len(cache) <= 80 + 10 + 1
    assert cache.evictions == 0


def test_evictions_of_the_oldest_requests_are_counted() -> None:
    cache = MessageIdCache(1_000)
    for number in range(10_000):
        cache.add(key(number), 1.0)
        assert len(cache) <= 1_000
    assert cache.evictions == 10_000 - len(cache)
    assert all(key(number) in cache for number in range(10_000 - 875, 10_000))


@pytest.mark.parametrize(("limit", "left"), [(1, 1), (16, 15), (20, 19)])
def test_room_is_made_by_dropping_an_eighth_of_the_limit(limit: int, left: int) -> None:
    cache = MessageIdCache(limit)
    for number in range(limit):
        cache.add(key(number), 1_000.0)
    assert (len(cache), cache.evictions) == (limit, 0)
    cache.add(key(limit), 1_000.0)
    assert (len(cache), cache.evictions) == (left, limit + 1 - left)
    assert key(limit) in cache


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 20)), max_size=200))
def test_any_sequence_keeps_the_newest_requests_and_none_beyond_its_lifetime(
    requests: list[tuple[int, float]],
) -> None:
    limit, lifetime_s = 16, 80.0
    cache = MessageIdCache(limit, lifetime_s)
    now, seen = 0.0, {}
    for number, pause in requests:
        now += pause
        cache.expire(now)
        if key(number) not in cache:
            cache.add(key(number), now)
            seen[number] = now
        assert len(cache) <= limit
        newest = sorted(seen, key=lambda found: seen[found])[-(limit - limit // 8) :]
        assert all(key(found) in cache for found in newest if seen[found] > now - lifetime_s)
        assert not any(key(found) in cache for found in seen if seen[found] < now - lifetime_s * 9 / 8)


@pytest.mark.parametrize("answer_bytes", [12, 48, 49, 200, 1_050])
def test_long_answers_take_no_more_memory_than_short_ones(answer_bytes: int) -> None:
    cache = MessageIdCache(8_000)
    tracemalloc.start()
    try:
        for number in range(20_000):
            request = number.to_bytes(26, "big")
            cache.add(request, 1.0)
            cache.set_answer(request, bytes(answer_bytes))
            assert request in cache
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / 8_000 < 220
    assert cache.evictions == 20_000 - len(cache)


def test_a_single_generation_keeps_what_was_just_added() -> None:
    cache = MessageIdCache(8)
    cache.add(key(1), 0.0)
    cache.set_answer(key(1), bytes(60_000))
    assert cache.answer_to(key(1)) == bytes(60_000)
    cache.add(key(2), 0.0)
    assert (key(1) in cache, key(2) in cache) == (False, True)

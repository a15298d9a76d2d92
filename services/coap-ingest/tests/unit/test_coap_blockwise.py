"""Payloads in blocks: whole when their last block came, bounded while they are under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.blockwise import Assemblies, IncompleteError, TooManyTransfersError


def test_a_finished_transfer_takes_nothing_any_more() -> None:
    assemblies = Assemblies(max_transfers=4)
    for number in range(1_000):
        assemblies.add(number, "a", 0, b"x" * 16, 0.0)
        assert assemblies.complete(number, 16, b"y") == b"x" * 16 + b"y"
    assert (len(assemblies), assemblies.size) == (0, 0)
    with pytest.raises(IncompleteError):
        assemblies.complete(1, 16, b"y")


def test_one_sender_of_first_blocks_takes_its_share_and_nothing_of_the_others() -> None:
    assemblies = Assemblies()
    taken = 0
    for path in range(10_000):
        try:
            assemblies.add(("noisy", path), "noisy", 0, b"x" * 1024, 0.0)
        except TooManyTransfersError:
            continue
        taken += 1
    assert taken == len(assemblies) == 16
    for number in range(100):
        assemblies.add(number, f"device {number}", 0, b"x", 0.0)
    assert assemblies.complete(99, 1, b"y") == b"xy"


def test_a_silent_transfer_makes_room_and_its_next_block_is_incomplete() -> None:
    assemblies = Assemblies(max_transfers=2)
    assemblies.add("old", "a", 0, b"x", 0.0)
    assemblies.add("new", "b", 0, b"x", 4.0)
    with pytest.raises(TooManyTransfersError):
        assemblies.add("third", "c", 0, b"x", 4.9)
    assemblies.add("third", "c", 0, b"x", 5.1)
    with pytest.raises(IncompleteError):
        assemblies.add("old", "a", 1, b"x", 5.2)
    assemblies.expire(4.0 + 93)
    assert not assemblies.expects("new", 1)
    assert assemblies.expects("third", 1)


def test_bytes_are_bounded_for_all_and_for_each_sender() -> None:
    assemblies = Assemblies(max_bytes=400)
    assemblies.add(1, "a", 0, b"x" * 90, 0.0)
    with pytest.raises(TooManyTransfersError):
        assemblies.add(1, "a", 90, b"x" * 20, 0.0)
    assert assemblies.size == 0
    for number in range(4):
        assemblies.add(number, f"s{number}", 0, b"x" * 99, 0.0)
    with pytest.raises(TooManyTransfersError):
        assemblies.add(9, "s9", 0, b"x" * 9, 0.0)
    assert assemblies.size == 4 * 99


def test_a_first_block_begins_anew_and_a_wrong_one_is_incomplete() -> None:
    assemblies = Assemblies()
    assemblies.add(1, "a", 0, b"old", 0.0)
    assemblies.add(1, "a", 0, b"new", 0.0)
    for start in (2, 4, 6):
        with pytest.raises(IncompleteError):
            assemblies.add(1, "a", start, b"x", 0.0)
    assert assemblies.complete(1, 3, b"!") == b"new!"
    assert assemblies.complete(2, 0, b"alone") == b"alone"


Step = st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), st.booleans())


@given(st.lists(Step, max_size=200))
def test_whatever_comes_the_bounds_hold_and_what_is_whole_is_right(steps: list[tuple[int, int, bool, bool]]) -> None:
    assemblies = Assemblies(max_transfers=4, max_of_a_source=2, max_bytes=200)
    sent: dict[tuple[int, int], bytes] = {}
    for now, (path, source, begins, ends) in enumerate(steps):
        key, block = (source, path), bytes([now % 256]) * 10
        before = b"" if begins else sent.get(key, b"")
        try:
            if ends:
                assert assemblies.complete(key, len(before), block) == before + block
                sent.pop(key, None)
            else:
                assemblies.add(key, str(source), len(before), block, float(now))
                sent[key] = before + block
        except (IncompleteError, TooManyTransfersError):
            sent.pop(key, None)
        assert len(assemblies) <= 4
        assert assemblies.size <= 200

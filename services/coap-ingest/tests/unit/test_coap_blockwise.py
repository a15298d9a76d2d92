"""Reassembly of block-wise payloads, and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.blockwise import BlockwiseTransfers, IncompleteError, TooManyTransfersError


def test_a_finished_transfer_takes_no_room() -> None:
    transfers = BlockwiseTransfers(max_transfers=4)
    for number in range(1_000):
        transfers.add(number, "a", 0, b"x" * 16, 0.0)
        assert transfers.complete(number, 16, b"y") == b"x" * 16 + b"y"
    assert (len(transfers), transfers.size) == (0, 0)
    with pytest.raises(IncompleteError):
        transfers.complete(1, 16, b"y")


def test_a_sender_of_first_blocks_only_takes_its_own_share() -> None:
    transfers = BlockwiseTransfers()
    taken = 0
    for path in range(10_000):
        try:
            transfers.add(("noisy", path), "noisy", 0, b"x" * 1024, 0.0)
        except TooManyTransfersError:
            continue
        taken += 1
    assert taken == len(transfers) == 16
    for number in range(100):
        transfers.add(number, f"device {number}", 0, b"x", 0.0)
    assert transfers.complete(99, 1, b"y") == b"xy"


def test_a_new_transfer_evicts_a_silent_one_whose_next_block_is_then_incomplete() -> None:
    transfers = BlockwiseTransfers(max_transfers=2)
    transfers.add("old", "a", 0, b"x", 0.0)
    transfers.add("new", "b", 0, b"x", 4.0)
    with pytest.raises(TooManyTransfersError):
        transfers.add("third", "c", 0, b"x", 4.9)
    transfers.add("third", "c", 0, b"x", 5.1)
    with pytest.raises(IncompleteError):
        transfers.add("old", "a", 1, b"x", 5.2)
    transfers.expire(4.0 + 93)
    assert not transfers.expects("new", 1)
    assert transfers.expects("third", 1)


def test_bytes_are_bounded_in_total_and_for_each_sender() -> None:
    transfers = BlockwiseTransfers(max_bytes=400)
    transfers.add(1, "a", 0, b"x" * 90, 0.0)
    with pytest.raises(TooManyTransfersError):
        transfers.add(1, "a", 90, b"x" * 20, 0.0)
    assert transfers.size == 0
    for number in range(4):
        transfers.add(number, f"s{number}", 0, b"x" * 99, 0.0)
    with pytest.raises(TooManyTransfersError):
        transfers.add(9, "s9", 0, b"x" * 9, 0.0)
    assert transfers.size == 4 * 99


def test_a_first_block_restarts_a_transfer_and_a_wrong_one_is_incomplete() -> None:
    transfers = BlockwiseTransfers()
    transfers.add(1, "a", 0, b"old", 0.0)
    transfers.add(1, "a", 0, b"new", 0.0)
    for start in (2, 4, 6):
        with pytest.raises(IncompleteError):
            transfers.add(1, "a", start, b"x", 0.0)
    assert transfers.complete(1, 3, b"!") == b"new!"
    assert transfers.complete(2, 0, b"alone") == b"alone"


Step = st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), st.booleans())


@given(st.lists(Step, max_size=200))
def test_any_sequence_of_blocks_stays_within_the_limits(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    transfers = BlockwiseTransfers(max_transfers=4, max_per_source=2, max_bytes=200)
    sent: dict[tuple[int, int], bytes] = {}
    for now, (path, source, begins, ends) in enumerate(steps):
        key, block = (source, path), bytes([now % 256]) * 10
        before = b"" if begins else sent.get(key, b"")
        try:
            if ends:
                assert transfers.complete(key, len(before), block) == before + block
                sent.pop(key, None)
            else:
                transfers.add(key, str(source), len(before), block, float(now))
                sent[key] = before + block
        except (IncompleteError, TooManyTransfersError):
            sent.pop(key, None)
        assert len(transfers) <= 4
        assert transfers.size <= 200

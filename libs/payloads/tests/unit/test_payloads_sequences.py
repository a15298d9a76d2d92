"""(arrival, sequence) never repeats, whatever the clock does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.payloads import SequenceGenerator


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=60))
@example([(5, 1), (4, 1), (5, 1)])
@example([(5, 3), (4, 1), (6, 1), (5, 2)])
def test_no_identity_repeats_when_the_clock_is_stepped(arrivals: list[tuple[int, int]]) -> None:
    sequences, seen = SequenceGenerator(), set()
    for now_ms, count in arrivals:
        first = sequences.take(now_ms, count)
        for sequence in range(first, first + count):
            assert (now_ms, sequence) not in seen
            seen.add((now_ms, sequence))


def test_each_new_millisecond_begins_at_0_also_after_a_step_back_is_made_good() -> None:
    sequences = SequenceGenerator()
    assert [sequences.take(now_ms, 2) for now_ms in (1, 1, 2, 1, 2, 3)] == [0, 2, 0, 4, 4, 0]


def test_processes_that_share_the_devices_have_different_numbers() -> None:
    assert SequenceGenerator(0).take(1, 1) != SequenceGenerator(1).take(1, 1)

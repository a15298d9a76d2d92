"""How far the late topic is merged, and what waits."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.recompute.window_backlog import WindowBacklog

P0, P1 = ("late", 0), ("late", 1)


def test_the_position_stays_before_the_first_window_that_waits() -> None:
    backlog = WindowBacklog({P0: 3, P1: 0})
    backlog.add({P0: 5, P1: 1}, {60_000: 2, 120_000: 1})
    backlog.add({P0: 9, P1: 1}, {60_000: 4})
    assert (backlog.read_to, backlog.position) == ({P0: 9, P1: 1}, {P0: 3, P1: 0})
    assert backlog.waiting() == {60_000, 120_000}
    assert backlog.remove([60_000]) == 6
    assert backlog.position == {P0: 3, P1: 0}
    assert backlog.remove([120_000]) == 1
    assert (backlog.position, backlog.waiting()) == ({P0: 9, P1: 1}, frozenset())


def test_a_stretch_without_late_windows_is_done_at_once() -> None:
    backlog = WindowBacklog({P0: 0})
    backlog.add({P0: 5}, {})
    assert backlog.position == {P0: 5}


steps = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=3), st.sets(st.integers(0, 5), max_size=3)
    ),
    max_size=12,
)


@given(steps=steps)
def test_every_reading_is_taken_once_and_the_position_passes_none_that_waits(
    steps: list[tuple[Mapping[int, int], set[int]]],
) -> None:
    backlog, offset, taken, waiting_since = WindowBacklog({P0: 0}), 0, 0, dict[int, int]()
    for added, removed in steps:
        for start in added:
            waiting_since.setdefault(start, offset)
        offset += 1 + sum(added.values())
        backlog.add({P0: offset}, added)
        taken += backlog.remove(removed)
        for start in removed:
            waiting_since.pop(start, None)
        assert backlog.waiting() == waiting_since.keys()
        assert backlog.position[P0] == min(waiting_since.values(), default=offset)
    taken += backlog.remove(backlog.waiting())
    assert taken == sum(sum(added.values()) for added, _ in steps)
    assert backlog.position == backlog.read_to

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.clock import Ticks, Unread, reached_ms

times = st.integers(0, 10_000)


def test_the_wall_clock_counts_only_when_everything_is_read() -> None:
    assert reached_ms(1_000, [], 400, idle_flush=True) == 1_000
    assert reached_ms(1_000, [Unread(700)], 400, idle_flush=True) == 700


def test_without_idle_flush_readings_alone_move_time() -> None:
    assert reached_ms(1_000, [], 400, idle_flush=False) == 400
    assert reached_ms(1_000, [], None, idle_flush=False) is None


def test_an_unreadable_first_record_stops_time() -> None:
    assert reached_ms(1_000, [Unread(700), Unread(None)], 400, idle_flush=True) is None


@given(asked_at=times, firsts=st.lists(times, min_size=1), newest=times, idle_flush=st.booleans())
def test_time_never_passes_an_unread_record_nor_the_wall_clock(
    asked_at: int, firsts: list[int], newest: int, idle_flush: bool
) -> None:
    reached = reached_ms(asked_at, [Unread(first) for first in firsts], newest, idle_flush=idle_flush)
    assert reached == min(asked_at, *firsts)


@given(ingest=times, reached=times, lateness=times, skew=times, slack=times, held_ms=times)
def test_no_reading_on_time_falls_behind_the_watermark(
    ingest: int, reached: int, lateness: int, skew: int, slack: int, held_ms: int
) -> None:
    """A record that is unread when time has come to `reached` was taken in then or, held by a door, `slack` before."""
    ingest = max(ingest, reached - min(held_ms, slack))
    earliest_event_ms = ingest - lateness
    ticks = Ticks(window_ms=1_000, slide_ms=1_000, max_skew_ms=skew, delay_ms=lateness + skew + slack)
    assert earliest_event_ms >= ticks.watermark_ms(reached)


@pytest.mark.parametrize(
    ("reached", "watermark", "due"),
    [(19_999, 9_000, False), (20_000, 9_000, True), (29_000, 10_000, False), (30_000, 19_000, True)],
)
def test_a_tick_is_due_when_a_window_ends(reached: int, watermark: int, due: bool) -> None:
    ticks = Ticks(window_ms=10_000, slide_ms=10_000, max_skew_ms=5_000, delay_ms=15_000)
    assert ticks.is_due(reached, watermark) is due


def test_windows_that_overlap_end_at_the_common_step() -> None:
    ticks = Ticks(window_ms=25_000, slide_ms=10_000, max_skew_ms=0, delay_ms=0)
    assert ticks.is_due(25_000, 24_000)

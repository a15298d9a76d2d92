from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.aggregator.watermark.clock import (
    BrokerClock,
    TickSchedule,
    UnreadPartition,
    read_until_ms,
)

times = st.integers(0, 10_000)


@dataclass
class Monotonic:
    """The clock that BrokerClock counts by."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def reached(
    now_ms: int | None, unread: list[UnreadPartition], newest_ms: int | None = None, *, advance_when_idle: bool = True
) -> int | None:
    return read_until_ms(now_ms, unread, newest_ms, advance_when_idle=advance_when_idle)


def test_the_brokers_time_counts_only_for_partitions_that_are_read() -> None:
    assert reached(1_000, [], 400) == 1_000
    assert reached(1_000, [UnreadPartition(700)], 400) == 700
    assert reached(700, [UnreadPartition(900)], 400) == 700


def test_without_advance_when_idle_only_records_move_time() -> None:
    assert reached(1_000, [], 400, advance_when_idle=False) == 400
    assert reached(1_000, [UnreadPartition(2_000)], 400, advance_when_idle=False) == 2_000
    assert reached(1_000, [UnreadPartition(2_000), UnreadPartition(700)], 400, advance_when_idle=False) == 700
    assert reached(1_000, [], None, advance_when_idle=False) is None


def test_a_partition_that_does_not_answer_stops_time() -> None:
    assert reached(1_000, [UnreadPartition(700), UnreadPartition(None)], 400) is None
    assert reached(None, [UnreadPartition(700)], 400) is None


@given(
    now=times,
    firsts=st.lists(
        st.builds(UnreadPartition, times, st.none() | st.integers(-(10**12), 10**12)), min_size=1, max_size=128
    ),
)
def test_what_is_in_a_record_never_stops_time(now: int, firsts: list[UnreadPartition]) -> None:
    """An unreadable value, or one with an absurd ingest time, in any number of partitions."""
    appended = [first.appended_ms for first in firsts if first.appended_ms is not None]
    assert reached(now, firsts) == min([*appended, now])


@given(ingest=times, held=times, lateness=times, skew=times, delay=times, margin=times, hidden=times, behind=times)
def test_no_reading_on_time_falls_behind_the_watermark(
    ingest: int, held: int, lateness: int, skew: int, delay: int, margin: int, hidden: int, behind: int
) -> None:
    """It was appended within the publish delay and became readable within the margin, after time reached this point."""
    appended = ingest + min(held, delay)
    read_until_ms = appended + min(hidden, margin)
    earliest_event_ms = ingest - min(behind, lateness)
    ticks = TickSchedule(window_ms=1_000, slide_ms=1_000, max_skew_ms=skew, delay_ms=lateness + skew + delay + margin)
    assert earliest_event_ms >= ticks.watermark_ms(read_until_ms)


def test_the_brokers_time_goes_on_by_what_has_passed_since() -> None:
    passed = Monotonic()
    broker = BrokerClock(passed)
    assert broker.now_ms() is None
    broker.observe(1_000_000)
    passed.seconds += 10
    assert broker.now_ms() == 1_009_990
    broker.observe(1_005_000)
    assert broker.now_ms() == 1_009_990
    broker.observe(1_010_000)
    assert broker.now_ms() == 1_010_000


@given(
    rate=st.floats(0.999, 1.001),
    steps=st.lists(st.tuples(st.floats(0, 3_600), st.integers(0, 5_000)), min_size=1, max_size=30),
)
def test_the_brokers_time_is_never_ahead_of_them(rate: float, steps: list[tuple[float, int]]) -> None:
    """With any wall clock of the driver, and with clocks of different speeds."""
    passed = Monotonic()
    broker, true_ms = BrokerClock(passed), 1_800_000_000_000.0
    for seconds, old_ms in steps:
        passed.seconds += seconds
        true_ms += seconds * 1000 * rate
        broker.observe(int(true_ms) - old_ms)
        now_ms = broker.now_ms()
        assert now_ms is not None
        assert now_ms <= true_ms + 1


@pytest.mark.parametrize(
    ("first", "plausible"),
    [
        (UnreadPartition(10_000, 7_000), True),
        (UnreadPartition(10_000, 6_999), False),
        (UnreadPartition(3_610_000, 10_000), False),
        (UnreadPartition(10_000, None), False),
        (UnreadPartition(None, 10_000), False),
    ],
)
def test_a_broker_ahead_is_not_believed_alone(first: UnreadPartition, plausible: bool) -> None:
    assert first.is_plausible(3_000) is plausible


@given(
    traffic=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=5, max_size=60),
    ahead=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    ahead_ms=st.integers(0, 3_600_000),
)
@example(traffic=[(2, 1)] * 20, ahead=(5, 8), ahead_ms=3_600_000)
def test_a_broker_that_is_ahead_for_a_while_loses_no_reading_on_time_after_it(
    traffic: list[tuple[int, int]], ahead: tuple[int, int], ahead_ms: int
) -> None:
    """One partition, one broker: what it appends with a wrong time is late; then its clock is corrected.

    The query is at most as far behind as the delays allow: among wrong times nothing says how old the unread are.
    """
    delay_ms, lateness_ms, margin_ms = 40_000, 60_000, 5_000
    passed, true_ms = Monotonic(), 1_800_000_000_000
    broker, log, read_to, watermark_ms = BrokerClock(passed), [UnreadPartition(true_ms, true_ms)], 1, 0
    broker.observe(true_ms)
    come_until = [1]
    ticks = TickSchedule(60_000, 60_000, 0, lateness_ms + delay_ms + margin_ms)
    for step, (come, read) in enumerate(traffic):
        passed.seconds += 10
        true_ms += 10_000
        wrong_ms = ahead_ms if ahead[0] <= step < ahead[1] else 0
        # Up to the slack it is believed, and only the margin is between it and itself as it was before.
        wrong_ms = min(wrong_ms, margin_ms) if wrong_ms <= delay_ms else wrong_ms
        log += [UnreadPartition(true_ms + wrong_ms, true_ms)] * come
        asked_at_ms, ends = broker.now_ms(), len(log)
        # Ten seconds a step.
        read_to, begun = max(min(ends, read_to + read), come_until[max(0, step - 4)]), read_to
        come_until.append(ends)
        for record in log[begun:read_to]:
            if record.appended_ms is not None and record.is_plausible(delay_ms):
                assert (record.ingest_time_ms or 0) - lateness_ms >= watermark_ms
                broker.observe(record.appended_ms)
        unread = log[read_to : read_to + 1]
        for first in unread:
            if first.appended_ms is not None and first.is_plausible(delay_ms):
                broker.observe(first.appended_ms)
        found = reached(asked_at_ms, unread)
        assert found is not None
        watermark_ms = max(watermark_ms, ticks.watermark_ms(found))


@pytest.mark.parametrize(
    ("reached", "watermark", "due"),
    [(19_999, 9_000, False), (20_000, 9_000, True), (29_000, 10_000, False), (30_000, 19_000, True)],
)
def test_a_tick_is_due_when_a_window_ends(reached: int, watermark: int, due: bool) -> None:
    ticks = TickSchedule(window_ms=10_000, slide_ms=10_000, max_skew_ms=5_000, delay_ms=15_000)
    assert ticks.is_due(reached, watermark) is due


def test_windows_that_overlap_end_at_the_common_step() -> None:
    ticks = TickSchedule(window_ms=25_000, slide_ms=10_000, max_skew_ms=0, delay_ms=0)
    assert ticks.is_due(25_000, 24_000)

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from isotherm.aggregator.supervision.batch_pacer import BatchPacer, hold_ms

HOUR_MS = 3_600_000
JOIN_S = 60.0


class Clock:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def pacer(reads_backlog: Callable[[int], bool] = lambda _: False) -> BatchPacer:
    """A pacer whose query has been started and has run its first batch."""
    made = BatchPacer(HOUR_MS, reads_backlog)
    made.begin()
    made.paced(nothing_to_write)("rows", 0)
    return made


def nothing_to_write(_rows: object, _batch_id: int) -> bool:
    return False


def run(made: BatchPacer, batch_id: int, write: Callable[[str, int], bool] = nothing_to_write) -> threading.Thread:
    """Run a batch in a thread of its own, as Spark does."""
    thread = threading.Thread(target=made.paced(write), args=("rows", batch_id), daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(JOIN_S)
    return not thread.is_alive()


def test_the_first_batch_of_a_start_is_not_held() -> None:
    made = pacer()
    made.begin()
    assert ends(run(made, 1))


def test_a_batch_that_wrote_records_is_committed_at_once() -> None:
    assert ends(run(pacer(), 1, lambda _rows, _batch_id: True))


def test_a_batch_that_may_have_left_records_behind_is_not_held() -> None:
    assert ends(run(pacer(lambda batch_id: batch_id == 1), 1))


def test_urgency_ends_the_hold() -> None:
    made = pacer()
    thread = run(made, 1)
    made.hurry(1)
    assert ends(thread)
    assert not made.is_holding


def test_what_was_urgent_before_a_batch_ended_is_urgent_still() -> None:
    made = pacer()
    made.hurry(2)
    assert ends(run(made, 1))
    assert ends(run(made, 2))
    held = run(made, 3)
    made.release()
    assert ends(held)


def test_a_query_that_is_to_stop_holds_nothing_until_it_is_started_again() -> None:
    made = pacer()
    held = run(made, 1)
    made.release()
    assert ends(held)
    assert ends(run(made, 2))
    made.begin()
    assert ends(run(made, 3))
    again = run(made, 4)
    made.hurry(4)
    assert ends(again)


def test_a_failure_is_not_held() -> None:
    def fail(_rows: str, _batch_id: int) -> bool:
        raise ConnectionError("Kafka is gone")

    with pytest.raises(ConnectionError):
        pacer().paced(fail)("rows", 1)


def test_a_hold_ends_by_itself_and_is_no_part_of_the_work() -> None:
    made = BatchPacer(1_500, lambda _: False, Clock())
    made.begin()
    write = made.paced(nothing_to_write)
    write("rows", 0)
    write("rows", 1)
    # The clock was read when the batch began, when the hold began, when the hold was over, and at the end.
    assert (made.held_ms(0), made.held_ms(1)) == (0, 2_000)
    assert not made.is_holding


@pytest.mark.parametrize(("trigger_ms", "expected_ms"), [(0, 0), (50, 300), (500, 3_000), (5_000, 3_000)])
def test_a_long_trigger_interval_makes_no_longer_hold(trigger_ms: int, expected_ms: int) -> None:
    assert hold_ms(trigger_ms) == expected_ms

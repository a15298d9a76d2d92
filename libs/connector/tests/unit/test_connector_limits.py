"""Failure limits: failed records in a row, and their percentage among the last records."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.validation import Validated
from isotherm.connector.errors.failure_limits import FailureLimitError, FailureLimits, FailureWatch, failure_limits

batches = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40)


def stops(watch: FailureWatch) -> bool:
    try:
        watch.check()
    except FailureLimitError:
        return True
    return False


def after(limits: FailureLimits, *outcomes: tuple[int, int]) -> FailureWatch:
    watch = FailureWatch(limits)
    for good, failed in outcomes:
        watch.settled(good, failed)
    return watch


def test_a_run_of_failures_stops_and_one_good_record_ends_the_run() -> None:
    limits = FailureLimits(consecutive=5)
    assert not stops(after(limits, (0, 4)))
    assert not stops(after(limits, (0, 4), (1, 0), (0, 4)))
    with pytest.raises(FailureLimitError, match=r"errors\.limit\.consecutive=5: 6 records in a row"):
        after(limits, (3, 1), (0, 3), (0, 2)).check()


def test_filtered_records_neither_end_a_run_nor_lengthen_it() -> None:
    assert stops(after(FailureLimits(consecutive=4), (0, 2), (0, 0), (0, 2)))


def test_a_share_of_the_last_records_stops() -> None:
    limits = FailureLimits(consecutive=0, percent=50, window_records=100)
    assert not stops(after(limits, (0, 99))), "too few to judge"
    assert not stops(after(limits, (51, 49)))
    with pytest.raises(FailureLimitError, match=r"errors\.limit\.percent=50: 50 of the last 100"):
        after(limits, (50, 50)).check()
    assert not stops(after(limits, (0, 30), (100, 0))), "what is further back than the window is forgotten"


def test_the_window_is_the_last_batches_that_hold_as_many_records() -> None:
    limits = FailureLimits(consecutive=0, percent=50, window_records=100)
    assert not stops(after(limits, (0, 100), (100, 0))), "the second batch alone fills the window"
    assert stops(after(limits, (0, 100), (99, 0)))
    assert not stops(after(FailureLimits(0, 50, 1_000), (501, 499)))


def test_limits_come_from_the_configuration() -> None:
    given: dict[str, Any] = {
        "errors.limit.consecutive": 7,
        "errors.limit.percent": "2.5",
        "errors.limit.window.records": 90,
    }
    config = cast(Validated, type("Config", (), {"integer": given.get, "text": given.get})())
    assert failure_limits(config) == FailureLimits(7, 2.5, 90)


@given(batches)
def test_without_limits_nothing_stops(outcomes: list[tuple[int, int]]) -> None:
    assert not stops(after(FailureLimits(consecutive=0), *outcomes))


@given(batches, st.integers(1, 200), st.integers(1, 100))
def test_a_task_without_failures_never_stops_and_one_without_success_always(
    outcomes: list[tuple[int, int]], limit: int, window: int
) -> None:
    limits = FailureLimits(limit, 100, window)
    assert not stops(after(limits, *((good, 0) for good, _ in outcomes)))
    assert stops(after(limits, *outcomes, (0, max(limit, 2 * window))))

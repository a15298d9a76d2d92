from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.progress import READINGS_OBSERVED, Progress
from isotherm.aggregator.supervision.rejected_ranges import OffsetRange, Passed, RejectedRanges

P, Q = ("t", 0), ("t", 1)
JOIN_S = 60.0


def batch(
    begins: Mapping[tuple[str, int], int] | None,
    ends: Mapping[tuple[str, int], int],
    rejected: int | None = 0,
    on_time: int = 1,
) -> Progress:
    """A batch of the windowed query."""
    observed = {} if rejected is None else {READINGS_OBSERVED: {"on_time": on_time, "rejected": rejected}}
    return Progress(0, "", 1, 1, 0, ends, 0, 0, observed, read_from=begins)


def must_read(
    known: RejectedRanges, begins: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]
) -> bool:
    return known.may_hold_rejects(0, OffsetRange(begins, ends))


def test_a_range_in_which_nothing_was_rejected_is_passed_over() -> None:
    known = RejectedRanges(lambda: 0.0)
    known.add(batch({P: 0, Q: 5}, {P: 10, Q: 5}))
    known.add(batch({P: 10, Q: 5}, {P: 20, Q: 30}))
    assert not must_read(known, {P: 0, Q: 5}, {P: 15, Q: 20})
    assert known.passed(0) == Passed(30, 0)


def test_a_range_is_read_if_a_batch_that_touches_it_rejected_something() -> None:
    known = RejectedRanges()
    known.add(batch({P: 0, Q: 0}, {P: 10, Q: 10}))
    known.add(batch({P: 10, Q: 10}, {P: 20, Q: 10}, rejected=1))
    known.add(batch({P: 20, Q: 10}, {P: 30, Q: 20}))
    assert must_read(known, {P: 9, Q: 0}, {P: 11, Q: 1})
    assert must_read(known, {P: 19, Q: 0}, {P: 25, Q: 20})
    assert not must_read(known, {P: 20, Q: 10}, {P: 30, Q: 20})
    assert known.passed(0).records == 20


@pytest.mark.parametrize(
    "unknown",
    [
        batch({P: 0}, {P: 10}, rejected=None),
        # Spark tells zeros of a batch whose records nobody has read.
        batch({P: 0}, {P: 10}, rejected=0, on_time=0),
        batch(None, {P: 10}),
        batch({P: 0}, {P: 9}),
        batch({P: 1}, {P: 10}),
        batch({Q: 0}, {Q: 10}),
    ],
)
def test_what_the_windowed_query_does_not_tell_is_read(unknown: Progress) -> None:
    known = RejectedRanges(lambda: 0.0)
    known.add(unknown)
    assert must_read(known, {P: 0}, {P: 10})
    assert known.passed(0) == Passed(0, 0)


def test_a_partition_that_joins_is_read_until_its_begin_is_known() -> None:
    known = RejectedRanges()
    known.add(batch({P: 0}, {P: 10, Q: 7}))
    assert must_read(known, {P: 0}, {P: 10, Q: 7})
    known.add(batch({P: 10, Q: 7}, {P: 20, Q: 9}))
    assert must_read(known, {P: 10, Q: 6}, {P: 20, Q: 9})
    assert not must_read(known, {P: 10, Q: 7}, {P: 20, Q: 9})


def test_nothing_is_said_across_a_batch_that_was_not_reported() -> None:
    known = RejectedRanges()
    known.add(batch({P: 0}, {P: 10}))
    known.add(batch({P: 20}, {P: 30}))
    assert must_read(known, {P: 5}, {P: 25})
    assert not must_read(known, {P: 20}, {P: 30})


def ask_in_thread(known: RejectedRanges, answers: list[bool]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(must_read(known, {P: 5}, {P: 15})), daemon=True)
    thread.start()
    return thread


def test_the_query_of_rejects_waits_for_the_windowed_one() -> None:
    known, answers = RejectedRanges(), list[bool]()
    known.begin()
    known.add(batch({P: 0}, {P: 10}))
    thread = ask_in_thread(known, answers)
    known.add(batch({P: 10}, {P: 20}))
    thread.join(JOIN_S)
    assert answers == [False]


def test_nobody_waits_for_a_windowed_query_that_does_not_run() -> None:
    known, answers = RejectedRanges(), list[bool]()
    known.begin()
    known.add(batch({P: 0}, {P: 10}))
    thread = ask_in_thread(known, answers)
    known.release()
    thread.join(JOIN_S)
    assert answers == [True]


def test_nobody_waits_for_a_batch_that_was_committed_and_never_told_of() -> None:
    known = RejectedRanges()
    known.begin()
    known.add(batch({P: 0}, {P: 10}))
    known.release()
    # The batch from 10 to 20 was committed while the query was stopped.
    known.begin()
    assert must_read(known, {P: 15}, {P: 20})
    known.add(batch({P: 20}, {P: 30}))
    assert not must_read(known, {P: 20}, {P: 30})


def test_a_batch_of_which_nothing_is_known_is_read() -> None:
    known = RejectedRanges()
    known.add(batch({P: 0}, {P: 10}))
    assert must_read(known, {P: 5}, {})


def test_nobody_waits_for_what_the_windowed_query_will_not_tell() -> None:
    known = RejectedRanges()
    known.begin()
    assert must_read(known, {P: 5}, {P: 15})
    known.add(batch({P: 10}, {P: 12}))
    assert must_read(known, {P: 5}, {P: 15})


CUTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


@given(CUTS, CUTS, st.sets(st.tuples(st.sampled_from([P, Q]), st.integers(0, 47))), st.sets(st.integers(0, 11)))
def test_every_rejected_record_is_read(
    of_windows: list[tuple[int, int]],
    of_rejects: list[tuple[int, int]],
    rejected: set[tuple[tuple[str, int], int]],
    unreported: set[int],
) -> None:
    """Both queries cut two partitions into batches, each in its own way."""

    def ranges(steps: list[tuple[int, int]]) -> list[OffsetRange]:
        found, begins = [], {P: 0, Q: 0}
        for p, q in steps:
            ends = {P: begins[P] + p, Q: begins[Q] + q}
            found.append(OffsetRange(begins, ends))
            begins = ends
        return found

    known = RejectedRanges()
    told = ranges(of_windows)
    for number, one in enumerate(told):
        inside = [each for each in rejected if one.begins[each[0]] <= each[1] < one.ends[each[0]]]
        if number not in unreported:
            known.add(batch(one.begins, one.ends, len(inside), on_time=one.records - len(inside)))
    for number, one in enumerate(ranges(of_rejects)):
        if not known.may_hold_rejects(number, one):
            assert known.passed(number).records == one.records
            for partition, end in one.ends.items():
                assert end <= told[-1].ends[partition] or end == one.begins[partition]
                for offset in range(one.begins[partition], end):
                    assert (partition, offset) not in rejected

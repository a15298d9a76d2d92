"""Which hours need a receipt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.receipts.reading_set import PARTS, Part
from isotherm.connector.receipts.receipt import HOUR_MS, Receipt
from isotherm.console.receipts.hours import ReceiptHours, TopicHour

DELAY_MS, LATE_MS = 60_000, 6 * HOUR_MS
PARTS_OF_NOTHING = (Part(0, ""),) * PARTS


def hours(*topics: str) -> ReceiptHours:
    return ReceiptHours(topics or ("t",), delay_ms=DELAY_MS, late_ms=LATE_MS)


def receipt(hour: int, revision: int = 0, topic: str = "t") -> Receipt:
    return Receipt(topic, hour * HOUR_MS, revision, 0, PARTS_OF_NOTHING, 0, issued_ms=(hour + 1) * HOUR_MS + DELAY_MS)


def issue_all(of: ReceiptHours, now_ms: int) -> list[TopicHour]:
    issued = []
    while (hour := of.next(now_ms)) is not None:
        issued.append(hour)
        of.settle(hour, now_ms)
    return issued


def test_the_first_one_is_the_last_whole_hour_and_then_every_hour_follows() -> None:
    known = hours()
    at_ms = 10 * HOUR_MS + DELAY_MS
    assert known.next(at_ms - 1) == TopicHour("t", 8 * HOUR_MS)
    assert issue_all(known, at_ms) == [TopicHour("t", 9 * HOUR_MS)]
    assert known.wait_ms(at_ms) == HOUR_MS
    assert issue_all(known, at_ms + HOUR_MS - 1) == []
    assert issue_all(known, at_ms + HOUR_MS) == [TopicHour("t", 10 * HOUR_MS)]


def test_after_an_outage_no_hour_is_left_out() -> None:
    known = hours("t", "u")
    known.take_record(receipt(3).record())
    known.take(receipt(5, topic="u"))
    at_ms = 8 * HOUR_MS + DELAY_MS
    assert known.behind_ms(at_ms) == 3 * HOUR_MS
    issued = issue_all(known, at_ms)
    assert sorted(issued) == [("t", hour * HOUR_MS) for hour in (4, 5, 6, 7)] + [("u", 6 * HOUR_MS), ("u", 7 * HOUR_MS)]
    assert [start for _, start in issued] == sorted(start for _, start in issued), "the oldest first"
    assert known.behind_ms(at_ms) == 0


def test_late_readings_make_another_one_if_they_came_after_the_last() -> None:
    known = hours()
    now_ms = 8 * HOUR_MS + DELAY_MS
    known.take(receipt(6))
    known.take(receipt(7))
    hour = TopicHour("t", 6 * HOUR_MS)
    known.note_late(hour, receipt(6).issued_ms - 60_001)
    assert known.next(now_ms) is None
    known.note_late(hour, receipt(6).issued_ms - 60_000)
    assert known.next(now_ms) == hour
    assert known.behind_ms(now_ms) == 0, "it has a receipt"
    known.take(receipt(6, revision=1))
    known.take(receipt(6))
    known.settle(hour, now_ms)
    assert known.next(now_ms) is None
    newest = known.newest(hour)
    assert newest is not None
    assert newest.revision == 1


def test_readings_that_are_too_late_and_hours_without_a_receipt_do_not_matter() -> None:
    known = hours()
    now_ms = 20 * HOUR_MS + DELAY_MS
    known.take(receipt(3))
    known.take(receipt(19))
    known.note_late(TopicHour("t", 3 * HOUR_MS), now_ms)
    known.note_late(TopicHour("t", 18 * HOUR_MS), now_ms)
    assert known.next(now_ms) is None
    known.settle(TopicHour("t", 99 * HOUR_MS), 100 * HOUR_MS)
    assert known.newest(TopicHour("t", 3 * HOUR_MS)) is None, "it is forgotten"


def test_what_was_issued_while_the_clock_was_ahead_is_issued_again_in_its_time() -> None:
    known = hours()
    now_ms = 8 * HOUR_MS + DELAY_MS
    for hour in (7, 8, 9):
        known.take(receipt(hour))
    # The receipts of 8 and 9 are of the future.
    assert known.next(now_ms) is None
    assert known.next(now_ms + HOUR_MS - 60_001) is None, "it is not complete"
    behind = receipt(8)
    known = hours()
    known.take(receipt(7))
    known.take(replace(behind, issued_ms=now_ms + 5 * HOUR_MS))
    at_ms = now_ms + HOUR_MS
    assert known.next(at_ms) == TopicHour("t", 8 * HOUR_MS)
    known.take(replace(behind, revision=1, issued_ms=at_ms))
    known.settle(TopicHour("t", 8 * HOUR_MS), at_ms)
    assert known.next(at_ms) is None


def test_a_receipt_that_was_seen_to_be_of_the_future_is_issued_again_when_its_time_has_passed() -> None:
    known = hours()
    now_ms = 8 * HOUR_MS + DELAY_MS
    known.take(receipt(7))
    known.take(replace(receipt(8), issued_ms=now_ms + HOUR_MS // 2))
    assert known.next(now_ms) is None
    at_ms = now_ms + HOUR_MS
    assert known.next(at_ms) == TopicHour("t", 8 * HOUR_MS)
    known.settle(TopicHour("t", 8 * HOUR_MS), at_ms)
    assert known.next(at_ms) is None


def test_after_a_restart_the_hours_of_which_late_readings_count_are_looked_at_again() -> None:
    known = hours()
    now_ms = 20 * HOUR_MS + DELAY_MS
    for hour in (3, 18, 17, 19):
        known.take(receipt(hour))
    known.begin(now_ms)
    assert issue_all(known, now_ms) == [TopicHour("t", hour * HOUR_MS) for hour in (17, 18, 19)]


def test_after_an_outage_late_readings_count_by_the_time_when_they_were_appended() -> None:
    known = hours()
    known.take(receipt(3))
    now_ms = 40 * HOUR_MS + DELAY_MS
    known.note_late(TopicHour("t", 3 * HOUR_MS), receipt(3).issued_ms + 1)
    known.settle(TopicHour("t", 80 * HOUR_MS), now_ms)
    assert known.newest(TopicHour("t", 3 * HOUR_MS)) is not None, "it waits"
    assert issue_all(known, now_ms)[-1] == TopicHour("t", 3 * HOUR_MS)
    known = hours()
    known.take(receipt(3))
    known.begin(now_ms)
    assert issue_all(known, now_ms)[-1] == TopicHour("t", 3 * HOUR_MS), "it counted when the last one was issued"


def test_an_hour_that_was_looked_at_again_is_not_late_for_the_same_readings() -> None:
    known = hours()
    known.take(receipt(6))
    hour, late_ms = TopicHour("t", 6 * HOUR_MS), receipt(6).issued_ms + 1
    known.note_late(hour, late_ms)
    known.settle(hour, late_ms + 60_001)
    known.note_late(hour, late_ms)
    assert known.next(8 * HOUR_MS) is None
    known.note_late(hour, late_ms + 2)
    assert known.next(8 * HOUR_MS) == hour


def test_a_receipt_of_the_future_that_cannot_be_issued_again_is_given_up() -> None:
    known = hours("t", "u")
    now_ms = 8 * HOUR_MS + DELAY_MS
    known.take(receipt(6, topic="u"))
    known.take(replace(receipt(7), issued_ms=now_ms + 5 * HOUR_MS))
    assert known.next(now_ms) == TopicHour("t", 7 * HOUR_MS)
    known.settle(TopicHour("t", 7 * HOUR_MS), now_ms)
    assert known.next(now_ms) == TopicHour("u", 7 * HOUR_MS)


def test_topics_that_are_not_configured_are_not_looked_at() -> None:
    known = hours()
    known.take(receipt(6, topic="gone"))
    known.begin(8 * HOUR_MS + DELAY_MS)
    assert issue_all(known, 8 * HOUR_MS + DELAY_MS) == [TopicHour("t", 7 * HOUR_MS)]


def test_the_first_hour_is_not_given_up_when_it_has_to_wait() -> None:
    known = hours()
    known.begin(8 * HOUR_MS + DELAY_MS)
    assert issue_all(known, 10 * HOUR_MS + DELAY_MS) == [TopicHour("t", hour * HOUR_MS) for hour in (7, 8, 9)]


def test_a_topic_that_has_to_wait_does_not_hold_up_another_one() -> None:
    known = hours("t", "u")
    now_ms = 8 * HOUR_MS + DELAY_MS
    known.take(receipt(6))
    known.take(receipt(6, topic="u"))
    known.take(receipt(5))
    known.note_late(TopicHour("t", 5 * HOUR_MS), now_ms)
    assert known.next(now_ms) == TopicHour("t", 7 * HOUR_MS)
    assert known.next(now_ms, without={"t"}) == TopicHour("u", 7 * HOUR_MS)
    known.settle(TopicHour("u", 7 * HOUR_MS), now_ms)
    assert known.next(now_ms, without={"t"}) is None
    known.settle(TopicHour("t", 7 * HOUR_MS), now_ms)
    assert known.next(now_ms) == TopicHour("t", 5 * HOUR_MS)
    assert known.next(now_ms, without={"t"}) is None


def test_a_record_that_nobody_issues_is_refused() -> None:
    with pytest.raises(ValueError, match="it has no 'parts'"):
        hours().take_record({"topic": "t"})
    with pytest.raises(ValueError, match="infinity"):
        hours().take_record({**receipt(3).record(), "revision": float("inf")})


@given(st.integers(10**8, 10**15))
def test_the_next_look_is_never_in_the_past_and_sees_a_new_hour(now_ms: int) -> None:
    known = hours()
    issue_all(known, now_ms)
    wait_ms = known.wait_ms(now_ms)
    assert 0 < wait_ms <= HOUR_MS
    assert known.next(now_ms + wait_ms - 1) is None
    assert known.next(now_ms + wait_ms) is not None

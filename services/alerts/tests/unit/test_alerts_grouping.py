"""When a group is told, what one notification covers, and which offsets may be committed meanwhile."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from route_targets import alert

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.notifications.grouping import AlertGroups, GroupedNotification, PendingAlert
from isotherm.alerts.notifications.offset_tracker import OffsetTracker
from isotherm.alerts.routes.kinds import WebhookRoute


def route(**fields: Any) -> WebhookRoute:
    given = {"group_wait_ms": 5_000, "group_interval_ms": 60_000, "group_by": ["rule", "region"], **fields}
    return WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": "http://x/", **given})


def pending(device_id: str, state: str = "opened", **fields: Any) -> PendingAlert:
    return PendingAlert(alert(device_id, state, **fields), SourceRecord("alerts", 0, 0, b"", b"", []))


def states(taken: GroupedNotification) -> list[tuple[str, str]]:
    return [(one["device_id"], one["state"]) for one in taken.notification.alerts]


def test_ten_thousand_alerts_of_a_region_are_one_notification() -> None:
    groups = AlertGroups(route())
    for number in range(10_000):
        groups.add(pending(f"dev-{number}"), now_s=number / 10_000)
    assert groups.take_due(4.9) == []
    assert groups.next_due_s() == 5.0
    (taken,) = groups.take_due(5.0)
    assert len(taken.notification.alerts) == groups.size == 10_000
    assert taken.notification.group == {"rule": "above", "region": "north"}
    groups.told(taken, 6.0)
    assert (groups.size, groups.next_due_s()) == (0, None)


def test_a_group_that_was_told_waits_for_the_interval_and_other_groups_do_not() -> None:
    groups = AlertGroups(route())
    groups.add(pending("a"), 0.0)
    (taken,) = groups.take_due(5.0)
    groups.told(taken, 5.0)
    groups.add(pending("b"), 6.0)
    groups.add(pending("c", rule="silent"), 6.0)
    assert [states(one) for one in groups.take_due(11.0)] == [[("c", "opened")]]
    assert groups.take_due(64.9) == []
    assert [states(one) for one in groups.take_due(65.0)] == [[("b", "opened")]]


def test_a_quiet_group_is_forgotten_and_begins_anew() -> None:
    groups = AlertGroups(route())
    groups.add(pending("a"), 0.0)
    groups.told(groups.take_due(5.0)[0], 5.0)
    assert groups.take_due(65.0) == []
    groups.add(pending("b"), 100.0)
    assert groups.next_due_s() == 105.0


def test_a_notification_tells_the_newest_state_and_covers_all() -> None:
    groups = AlertGroups(route())
    for one in (pending("a"), pending("b"), pending("a", "closed")):
        groups.add(one, 0.0)
    (taken,) = groups.take_due(5.0)
    assert states(taken) == [("a", "closed"), ("b", "opened")]
    assert len(taken.covered) == 3


def test_states_stay_in_order_while_a_notification_is_under_way() -> None:
    for each in (["alert"], ["rule"]):
        groups = AlertGroups(route(group_by=each, group_interval_ms=0, group_wait_ms=0))
        groups.add(pending("a"), 0.0)
        (first,) = groups.take_due(0.0)
        groups.add(pending("a", "closed"), 1.0)
        assert groups.take_due(100.0) == []
        assert groups.next_due_s() is None
        groups.told(first, 100.0)
        assert [states(one) for one in groups.take_due(100.0)] == [[("a", "closed")]]


def test_alerts_that_are_told_one_by_one_do_not_wait() -> None:
    groups = AlertGroups(route(group_by=["alert"]))
    for one in (pending("a"), pending("a", "closed"), pending("b")):
        groups.add(one, 0.0)
    first = groups.take_due(0.0)
    assert [states(one) for one in first] == [[("a", "opened")], [("b", "opened")]]
    for taken in first:
        groups.told(taken, 0.0)
    assert [states(one) for one in groups.take_due(0.0)] == [[("a", "closed")]]


@given(st.lists(st.integers(0, 19)), st.integers(0, 20))
def test_no_offset_behind_an_open_record_is_committed(settled: list[int], read: int) -> None:
    tracker = OffsetTracker()
    tracker.start({0: 100})
    for number in range(read):
        assert tracker.read(0, 100 + number)
    done = {number for number in settled if number < read}
    for number in done:
        tracker.settle(0, 100 + number)
    expected = next((100 + number for number in range(read) if number not in done), 100 + read)
    assert tracker.to_commit() == ({0: expected} if expected != 100 else {})
    tracker.committed(tracker.to_commit())
    assert tracker.to_commit() == {}


def test_a_partition_of_another_reader_counts_no_more() -> None:
    tracker = OffsetTracker()
    tracker.start({0: 5, 1: 5})
    assert tracker.read(1, 5)
    tracker.start({})
    assert not tracker.read(1, 6)
    tracker.settle(1, 5)
    assert tracker.to_commit() == {}

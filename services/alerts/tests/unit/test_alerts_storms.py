"""Which alerts a storm tells, and that an alert is told where it was told first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from route_targets import alert

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.notifications import storms as module
from isotherm.alerts.notifications.grouping import AlertGroups, PendingAlert
from isotherm.alerts.notifications.storms import Storms
from isotherm.alerts.routes.kinds import PagerDutyRoute

WARNING = {"severity": "warning"}


def test_further_alerts_than_the_limit_of_a_minute_are_a_storm_until_it_is_calm() -> None:
    storms = Storms(3)
    at = [0.0, 20.0, 40.0, 59.9, 60.1, 61.0, 300.0]
    assert [storms.group_of(alert(f"d{second}"), second) for second in at] == [
        None,
        None,
        None,
        WARNING,
        WARNING,
        WARNING,
        None,
    ]
    assert storms.open_alerts("warning") == 3
    assert storms.group_of(alert("d61.0", "closed", severity="critical"), 301.0) == WARNING
    assert storms.open_alerts("warning") == 2


def test_without_a_limit_there_is_no_storm() -> None:
    storms = Storms(0)
    assert {str(storms.group_of(alert(f"d{number}"), 0.0)) for number in range(1_000)} == {"None"}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 10)
    storms = Storms(1)
    storms.group_of(alert("first"), 0.0)
    for number in range(100):
        assert storms.group_of(alert(f"d{number}"), 1.0) == WARNING
    assert storms.open_alerts("warning") == 10
    assert storms.group_of(alert("d0", "closed"), 2.0) is None
    assert storms.group_of(alert("d99", "closed"), 2.0) == WARNING


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("opened", "closed")), st.integers(0, 40)), max_size=80),
    st.integers(1, 4),
)
def test_an_end_is_told_where_its_opening_was(events: list[tuple[int, str, int]], limit: int) -> None:
    storms, now_s = Storms(limit), 0.0
    told: dict[int, Any] = {}
    for device, state, pause_s in events:
        now_s += pause_s
        place = storms.group_of(alert(f"d{device}", state), now_s)
        if state == "closed":
            assert place == told.pop(device, None)
        else:
            assert place == told.setdefault(device, place)
        assert storms.open_alerts("warning") == sum(one is not None for one in told.values())


def test_the_incident_of_a_storm_is_open_until_its_last_alert_is_closed() -> None:
    given = {"kind": "pagerduty", "name": "pd", "secret_routing_key": "k", "storm_limit": 1, "group_wait_ms": 1_000}
    groups = AlertGroups(PagerDutyRoute.model_validate(given))

    def take(now_s: float, *states: tuple[str, str]) -> list[tuple[dict[str, str], str, int]]:
        for device, state in states:
            groups.add(PendingAlert(alert(device, state), SourceRecord("alerts", 0, 0, b"", b"", [])), now_s)
        taken = groups.take_due(now_s + 60.0)
        for one in taken:
            groups.told(one, now_s + 60.0)
        return [(dict(one.notification.group), one.notification.status, len(one.covered)) for one in taken]

    assert take(0.0, ("a", "opened"), ("b", "opened"), ("c", "opened")) == [({}, "opened", 1), (WARNING, "opened", 2)]
    assert take(100.0, ("a", "closed"), ("b", "closed")) == [({}, "closed", 1), (WARNING, "opened", 1)]
    assert take(300.0, ("c", "closed")) == [(WARNING, "closed", 1)]
    assert groups.size == 0

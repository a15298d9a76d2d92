"""Gathers the alerts of a route into groups, and says when a group is told. Pure: the caller has the clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.notifications.storms import Storms
from isotherm.alerts.routes.kinds import BaseRoute
from isotherm.alerts.routes.matching import group_of
from isotherm.alerts.routes.notification import Alert, Notification, is_closed


@dataclass(frozen=True, slots=True)
class PendingAlert:
    """One state of an alert that is not told yet, and the record that it was read from."""

    alert: Alert
    source: SourceRecord


@dataclass(frozen=True, slots=True)
class GroupedNotification:
    """A notification, and every state that it covers, also those that a newer one replaces in it."""

    key: tuple[str, ...]
    notification: Notification
    covered: tuple[PendingAlert, ...]


@dataclass(slots=True)
class _Group:
    labels: dict[str, str]
    """What its alerts share; empty when it is one alert that is told by itself."""
    wait_s: float
    interval_s: float
    due_s: float
    waiting: deque[PendingAlert] = field(default_factory=deque)
    is_being_told: bool = False
    told_s: float | None = None


class AlertGroups:
    """The groups of one route that have alerts to tell, or were told a short time ago.

    The first alert of a quiet group is due after `group_wait_ms`, later ones `group_interval_ms` after the last
    notification. While a notification of a group is under way the group gathers, so the states of an alert stay in
    order. A route that tells each alert has a group for each, told at once, and one for each storm.
    """

    def __init__(self, route: BaseRoute) -> None:
        self._route = route
        self._storms = Storms(route.storm_limit)
        self._groups: dict[tuple[str, ...], _Group] = {}
        self.size = 0
        """How many states wait or are being told."""

    def add(self, pending: PendingAlert, now_s: float) -> None:
        """Let a state wait with its group."""
        key, labels = self._place(pending.alert, now_s)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._begin(labels, now_s)
        elif not group.waiting and group.told_s is not None:
            group.due_s = max(now_s + group.wait_s, group.told_s + group.interval_s)
        group.waiting.append(pending)
        self.size += 1

    def take_due(self, now_s: float) -> list[GroupedNotification]:
        """Return a notification of each group that is due. It is under way until `told` is called."""
        due = []
        for key, group in list(self._groups.items()):
            if group.is_being_told:
                continue
            if group.waiting:
                if group.due_s <= now_s:
                    due.append(self._take(key, group))
            elif group.told_s is None or group.told_s + group.interval_s <= now_s:
                del self._groups[key]
        return due

    def told(self, taken: GroupedNotification, now_s: float) -> None:
        """Note that a notification has reached its target, or never will."""
        group = self._groups[taken.key]
        group.is_being_told, group.told_s = False, now_s
        group.due_s = now_s + group.interval_s
        self.size -= len(taken.covered)

    def next_due_s(self) -> float | None:
        """Return when the next group is due; None while none waits."""
        return min(
            (group.due_s for group in self._groups.values() if group.waiting and not group.is_being_told), default=None
        )

    def _place(self, alert: Alert, now_s: float) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the key and the labels of the group that tells a state."""
        if not self._route.tells_each:
            labels = group_of(alert, self._route.group_by)
            return tuple(labels.values()), labels
        storm = self._storms.group_of(alert, now_s)
        if storm is None:
            return ("alert", alert["alert_id"]), {}
        return ("storm", *storm.values()), storm

    def _begin(self, labels: dict[str, str], now_s: float) -> _Group:
        route = self._route
        if route.tells_each and not labels:
            return _Group(labels, 0.0, 0.0, now_s)
        wait_s = route.group_wait_ms / 1000
        return _Group(labels, wait_s, route.group_interval_ms / 1000, now_s + wait_s)

    def _take(self, key: tuple[str, ...], group: _Group) -> GroupedNotification:
        is_each = self._route.tells_each
        how_many = 1 if is_each and not group.labels else len(group.waiting)
        covered = [group.waiting.popleft() for _ in range(how_many)]
        group.is_being_told = True
        newest = {pending.alert["alert_id"]: pending.alert for pending in covered}
        still_open = 0
        if is_each and group.labels:
            told_open = sum(1 for alert in newest.values() if not is_closed(alert))
            still_open = max(0, self._storms.open_alerts(group.labels["severity"]) - told_open)
        notification = Notification(self._route.name, group.labels, tuple(newest.values()), still_open)
        return GroupedNotification(key, notification, tuple(covered))

"""Gathers the alerts of a route into groups, and says when a group is told. Pure: the caller has the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.routes.kinds import BaseRoute
from isotherm.alerts.routes.matching import group_of
from isotherm.alerts.routes.notification import Alert, Notification, StormState, common_labels


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
class Storm:
    """Alerts of one severity that are told together, and what the target calls them."""

    begun_ms: int
    severity: str
    last_ms: int
    """When the last alert has joined, epoch ms."""
    is_exact: bool = True
    """Whether every alert of `severity` that opened within `spans` belongs to the storm."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: the offset of its first opening, and the one after the last."""
    open: set[str] = field(default_factory=set)
    """Ids of its alerts that are open."""
    untold: int = 0
    """How many states wait to be told."""

    @property
    def key(self) -> str:
        """The name of the storm in a route."""
        return f"{self.severity}/{self.begun_ms}"

    def covers(self, partition: int, offset: int) -> bool:
        """Return whether an offset is in the spans."""
        first, end = self.spans.get(partition, (0, 0))
        return first <= offset < end

    def is_read(self, read_until: Mapping[int, int]) -> bool:
        """Return whether the route has read all of the spans."""
        return all(end <= read_until.get(partition, end) for partition, (_, end) in self.spans.items())

    def cover(self, partition: int, offset: int) -> None:
        """Widen the spans to an offset."""
        first, end = self.spans.get(partition, (offset, offset + 1))
        self.spans[partition] = min(first, offset), max(end, offset + 1)


@dataclass(slots=True)
class _Group:
    labels: dict[str, str]
    storm: Storm | None
    is_each: bool
    """Whether its states are told one by one, at once."""
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
    order.
    """

    def __init__(self, route: BaseRoute) -> None:
        self._route = route
        self._groups: dict[tuple[str, ...], _Group] = {}
        self.size = 0
        """How many states wait or are being told."""

    def add(self, pending: PendingAlert, now_s: float, storm: Storm | None = None) -> None:
        """Let a state wait with its group, or with those of a storm."""
        labels = group_of(pending.alert, self._route.group_by) if storm is None else {}
        # Beside storms there are only alerts by themselves, whose keys are one text.
        key = tuple(labels.values()) if storm is None else ("storm", storm.key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._begin(labels, storm, now_s)
        elif not group.waiting and group.told_s is not None:
            group.due_s = max(now_s + group.wait_s, group.told_s + group.interval_s)
        group.waiting.append(pending)
        self.size += 1
        if storm is not None:
            storm.untold += 1

    def _begin(self, labels: dict[str, str], storm: Storm | None, now_s: float) -> _Group:
        route = self._route
        is_each = route.tells_each and storm is None
        wait_s, interval_s = (0.0, 0.0) if is_each else (route.group_wait_ms / 1000, route.group_interval_ms / 1000)
        return _Group(labels, storm, is_each, wait_s, interval_s, now_s + wait_s)

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
        if group.storm is not None:
            group.storm.untold -= len(taken.covered)

    def next_due_s(self) -> float | None:
        """Return when the next group is due; None while none waits."""
        return min(
            (group.due_s for group in self._groups.values() if group.waiting and not group.is_being_told), default=None
        )

    def _take(self, key: tuple[str, ...], group: _Group) -> GroupedNotification:
        if group.is_each:
            covered = [group.waiting.popleft()]
            labels = {}
        else:
            covered = list(group.waiting)
            group.waiting.clear()
            labels = group.labels
        group.is_being_told = True
        newest = {pending.alert["alert_id"]: pending.alert for pending in covered}
        alerts, state = tuple(newest.values()), None
        if group.storm is not None:
            labels, state = common_labels(alerts), StormState(group.storm.key, len(group.storm.open))
        notification = Notification(self._route.name, labels, alerts, state)
        return GroupedNotification(key, notification, tuple(covered))

"""The means of groups in past windows, for a rule that is tried over past readings."""

from __future__ import annotations

from bisect import bisect_right, insort

from isotherm.alerts.rules.group_means import GroupKey, GroupMean, GroupMeans

MAX_WINDOWS = 200_000
"""Limit of the windows that are kept. A further one has no effect."""


class PastGroupMeans(GroupMeans):
    """Every window of each group. `get` returns the newest one that has ended at `at_ms`."""

    def __init__(self, max_windows: int = MAX_WINDOWS) -> None:
        super().__init__()
        self._windows: dict[GroupKey, list[GroupMean]] = {}
        self._room = max_windows
        self.at_ms = 0
        """The time (epoch ms) at which means are asked for."""

    def put(self, key: GroupKey, mean: GroupMean) -> bool:
        """Take a window, or a newer revision of one; return False when there is no room for a further window."""
        windows = self._windows.setdefault(key, [])
        at = bisect_right(windows, mean.window_end_ms, key=lambda one: one.window_end_ms)
        if at and windows[at - 1].window_end_ms == mean.window_end_ms:
            windows[at - 1] = max(windows[at - 1], mean, key=lambda one: one.revision)
            return True
        if not self._room:
            return False
        self._room -= 1
        insort(windows, mean, key=lambda one: one.window_end_ms)
        return True

    def get(self, attribute: str, group: str, metric: str) -> GroupMean | None:
        """Return the newest mean of a group at `at_ms`; None when none is known."""
        windows = self._windows.get((attribute, group, metric), [])
        at = bisect_right(windows, self.at_ms, key=lambda one: one.window_end_ms)
        return windows[at - 1] if at else None

"""The newest mean of each group of devices, as the aggregator has published it."""

from __future__ import annotations

from typing import NamedTuple

MAX_GROUPS = 100_000
"""Limit of the means that are kept. A further one has no effect."""


class GroupMean(NamedTuple):
    """The mean of a metric over the devices of a group in one window."""

    window_end_ms: int
    revision: int
    mean: float
    device_count: int


GroupKey = tuple[str, str, str]
"""Attribute, its value, metric."""


class GroupMeans:
    """The newest window of each group, by its end and revision. One thread writes and another one reads."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._means: dict[GroupKey, GroupMean] = {}
        self._max_groups = max_groups

    def __len__(self) -> int:
        return len(self._means)

    def put(self, key: GroupKey, mean: GroupMean) -> bool:
        """Take a window, unless a newer one is known; return False when there is no room for a further group."""
        known = self._means.get(key)
        if known is None and len(self._means) >= self._max_groups:
            return False
        if known is None or known[:2] < mean[:2]:
            self._means[key] = mean
        return True

    def get(self, attribute: str, group: str, metric: str) -> GroupMean | None:
        """Return the newest mean of a group; None when none is known."""
        return self._means.get((attribute, group, metric))

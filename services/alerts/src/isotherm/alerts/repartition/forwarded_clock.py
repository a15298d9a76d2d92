"""The time up to which all records of the input have been forwarded. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.alerts.repartition.time_ordered_merge import TopicPartition


class ForwardedClock:
    """The time up to which every record of the partitions has been forwarded, by any replica."""

    def __init__(self) -> None:
        self.forwarded_until_ms = 0
        self._target: tuple[int, Mapping[TopicPartition, int]] | None = None

    def update(self, now_ms: int, ends: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> int:
        """Take the end offsets and the group's committed offsets of `now_ms`; return the new time, in epoch ms.

        Under a steady load the group never reaches the end offsets of now. It reaches those of an earlier call.
        """
        for at_ms, targets in (self._target or (now_ms, ends), (now_ms, ends)):
            if all(committed.get(partition, 0) >= end for partition, end in targets.items()):
                self.forwarded_until_ms, self._target = at_ms, None
        if self.forwarded_until_ms != now_ms and self._target is None:
            self._target = (now_ms, ends)
        return self.forwarded_until_ms

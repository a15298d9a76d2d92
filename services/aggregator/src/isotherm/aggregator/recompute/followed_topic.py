"""Follows a topic from where the last process was done, and keeps the windows that wait for their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.kafka.stored_position import StoredPosition
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute.window_backlog import WindowBacklog
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_STORE_AGAIN_MS = 3_600_000
"""How often an unchanged position is stored again: Kafka forgets one after `offsets.retention.minutes` (7 days)."""


class CountWindows(Protocol):
    """Counts the records between two positions of the topic by the start of their window (epoch ms)."""

    def __call__(self, begin: Mapping[Partition, int], end: Mapping[Partition, int]) -> Mapping[int, int]: ...


class FollowedTopic:
    """One topic, as far as it was read, and the windows of its records that are not done yet. For one thread."""

    def __init__(
        self,
        topic: str,
        broker: Broker,
        position: StoredPosition,
        count_windows: CountWindows,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`position` is where the topic is done; the topic is read from there on after a start."""
        self._topic = topic
        self._broker = broker
        self._position = position
        self._count_windows = count_windows
        self._wall_ms = wall_ms
        self.newly_read = 0
        """How many offsets the last call of `read` went on."""
        self._backlog: WindowBacklog | None = None
        self._stored: Mapping[Partition, int] = {}
        self._stored_at_ms = 0

    def read(self) -> frozenset[int]:
        """Read what is new, and return the starts of all windows that wait (epoch ms).

        Raises BrokerError, and what counting the windows raises; the next call then reads the same again.
        """
        backlog = self._backlog = self._backlog or self._begin()
        ends = self._broker.end_offsets([self._topic], committed=True)
        begin = {partition: backlog.read_to.get(partition, 0) for partition in ends}
        self.newly_read = sum(max(0, end - begin[partition]) for partition, end in ends.items())
        if self.newly_read:
            backlog.add(ends, self._count_windows(begin, ends))
        return backlog.waiting()

    def done(self, starts_ms: Iterable[int]) -> int:
        """Forget windows that are done, or never will be; return how many of their records waited."""
        return 0 if self._backlog is None else self._backlog.remove(starts_ms)

    def store(self) -> None:
        """Store how far the topic is done: when that has changed, and often enough that Kafka never forgets it.

        Raises BrokerError.
        """
        if self._backlog is None:
            return
        now_ms, position = self._wall_ms(), self._backlog.position
        if position != self._stored or now_ms - self._stored_at_ms >= _STORE_AGAIN_MS:
            self._position.store(position)
            self._stored, self._stored_at_ms = position, now_ms

    def _begin(self) -> WindowBacklog:
        """Return a backlog that begins where the last process was done, or with the first record there is."""
        bounds = self._broker.log_bounds([self._topic])
        stored = self._position.load(bounds)
        position = {}
        for partition, (first, end) in bounds.items():
            offset = stored.get(partition, first)
            # Beyond the end: the topic was created again. Before the first record: retention has removed some.
            position[partition] = offset if first <= offset <= end else first
        _log.info("following a topic", position={f"{topic}-{number}": at for (topic, number), at in position.items()})
        return WindowBacklog(position)

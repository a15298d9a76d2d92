"""A task's consumer whose partitions the kit chooses, instead of a group: a rebalance happens when a check wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

_LONGEST_POLL_S = 0.05
"""So that a rebalance that a check asks for happens soon."""

_OnRebalance = Callable[[Consumer, list[TopicPartition]], None]


class SteeredConsumer(Consumer):
    """Reads and commits as any consumer; `assign_to_task` and `revoke_from_task` stand for the group's decisions."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._orders: SimpleQueue[tuple[bool, list[TopicPartition], threading.Event]] = SimpleQueue()
        self._callbacks: tuple[_OnRebalance, _OnRebalance] | None = None

    def subscribe(self, topics: Any, *_: Any, **callbacks: Any) -> None:
        """Note what to call; the kit knows the topic."""
        self._callbacks = callbacks["on_assign"], callbacks["on_revoke"]

    def assign_to_task(self, topic: str, partitions: Sequence[int]) -> threading.Event:
        """Let the task have partitions; the event is set when it knows."""
        return self._order(True, topic, partitions)

    def revoke_from_task(self, topic: str, partitions: Sequence[int]) -> threading.Event:
        """Take partitions from the task; the event is set when it has given them up."""
        return self._order(False, topic, partitions)

    def poll(self, timeout: float = -1) -> Message | None:
        """Carry out what was ordered, as a poll of a group's member does, and return the next message."""
        while self._callbacks is not None:
            try:
                is_assigned, partitions, done = self._orders.get_nowait()
            except Empty:
                break
            on_assign, on_revoke = self._callbacks
            if is_assigned:
                on_assign(self, partitions)
            else:
                on_revoke(self, partitions)
                self.incremental_unassign(partitions)
            done.set()
        return super().poll(min(timeout, _LONGEST_POLL_S) if timeout >= 0 else _LONGEST_POLL_S)

    def _order(self, is_assigned: bool, topic: str, partitions: Sequence[int]) -> threading.Event:
        done = threading.Event()
        self._orders.put((is_assigned, [TopicPartition(topic, number) for number in partitions], done))
        return done

"""The topics that the task is subscribed to: fixed ones, or those that match a pattern now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from isotherm.connector.distributed.generations import Fence
from isotherm.persisters.consuming.matching_topics import MatchingTopics
from isotherm.servicekit.health import Health

OnRebalance = Callable[[Consumer, list[TopicPartition]], None]


class Rebalances(NamedTuple):
    """What is called, by a poll, with the partitions that the task gets, gives up, or has lost already."""

    assigned: OnRebalance
    revoked: OnRebalance
    lost: OnRebalance


class Subscription:
    """Subscribes the consumer once no task of another configuration runs, and again when the topics have changed."""

    def __init__(
        self,
        consumer: Consumer,
        health: Health,
        topics: Sequence[str],
        matching_topics: MatchingTopics | None,
        fence: Fence | None,
        rebalances: Rebalances,
    ) -> None:
        """`matching_topics` finds the topics of a pattern; without it they are `topics`."""
        self._consumer, self._health = consumer, health
        self._topics, self._matching_topics, self._fence = topics, matching_topics, fence
        self._rebalances = rebalances
        self._subscribed: Sequence[str] = ()

    def update(self) -> None:
        """Subscribe to the topics that exist now, if they changed; only in the thread that polls."""
        matching = self._matching_topics
        topics = self._topics if matching is None else matching.topics
        if topics == self._subscribed:
            return
        if matching is not None and not topics:
            # A subscription from before stays: the partitions of a deleted topic end by themselves.
            if not self._subscribed:
                self._health.not_ready("topics", matching.error or f"no topic matches {matching.pattern!r}")
            return
        closed = None if self._fence is None or self._subscribed else self._fence.closed()
        if closed is not None:
            self._health.not_ready("configuration", closed)
            return
        self._subscribed = topics
        self._health.ready("topics")
        self._health.ready("configuration")
        assigned, revoked, lost = self._rebalances
        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

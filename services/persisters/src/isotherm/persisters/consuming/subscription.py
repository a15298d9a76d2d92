"""The topics that the task is subscribed to: fixed ones, or those that match a pattern now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from isotherm.connector.distributed.generations import Fence
from isotherm.persisters.consuming.topic_follower import TopicFollower
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
        follower: TopicFollower | None,
        fence: Fence | None,
        rebalances: Rebalances,
    ) -> None:
        """`follower` finds the topics of a pattern; without one they are `topics`."""
        self._consumer, self._health = consumer, health
        self._topics, self._follower, self._fence = topics, follower, fence
        self._rebalances = rebalances
        self._subscribed: Sequence[str] = ()

    def update(self) -> None:
        """Subscribe to the topics that exist now, if they changed; only in the thread that polls."""
        follower = self._follower
        topics = self._topics if follower is None else follower.topics
        if topics == self._subscribed:
            return
        if follower is not None and not topics:
            # A subscription from before stays: the partitions of a deleted topic end by themselves.
            if not self._subscribed:
                self._health.not_ready("topics", follower.error or f"no topic matches {follower.pattern!r}")
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

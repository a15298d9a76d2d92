"""A consumer's membership of its group: what librdkafka does in its own thread. Cooperative rebalances (KIP-429)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.groups import GroupCoordinator, Joined, Subscription
from isotherm.proofs.kafka.network import acknowledged
from isotherm.proofs.kafka.refusal import RefusedError

_RETRY_MS = 100.0
_GONE = frozenset((KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID))


class RebalanceKind(Enum):
    """What a rebalance tells the application."""

    ASSIGN = auto()
    REVOKE = auto()
    LOST = auto()


@dataclass(frozen=True)
class MembershipSettings:
    """A member's properties; times in milliseconds."""

    group: str
    session_timeout_ms: float = 45_000.0
    heartbeat_interval_ms: float = 3_000.0
    max_poll_interval_ms: float = 300_000.0


class Membership:
    """Joins, syncs and sends heartbeats, and reports rebalances, until it leaves."""

    def __init__(
        self,
        connection: Connection,
        settings: MembershipSettings,
        owned: Callable[[], frozenset[Partition]],
        report: Callable[[RebalanceKind, frozenset[Partition]], None],
    ) -> None:
        """Take the client's connection.

        Args:
            connection: the client's.
            settings: the member's properties.
            owned: returns the partitions that the application has.
            report: queues a rebalance for the application; `served` is called when the application has served it.
        """
        self._connection, self.settings, self._owned, self._report = connection, settings, owned, report
        self.member, self.generation = "", -1
        self.polled_ms = 0.0
        """When the application last polled."""
        self._topics: frozenset[str] = frozenset()
        self._is_joining = self._must_rejoin = self._has_left = False
        self._unserved = 0
        """Rebalances that the application has not served yet."""
        self._heard_ms = 0.0
        self._attempt = 0
        """Answers to an earlier attempt to join are ignored."""
        self._joins = 0

    @property
    def is_member(self) -> bool:
        """Whether it is in a generation, as far as it knows."""
        return self.generation >= 0 and not self._has_left

    def subscribe(self, topics: frozenset[str]) -> None:
        """Join with these topics, or join again with others."""
        is_first = not self._topics
        self._topics = topics
        if is_first:
            self._heard_ms = self.polled_ms = self._connection.timers.now_ms
            self._beat()
        self._rejoin()

    def leave(self) -> None:
        """Leave the group without waiting for the answer."""
        self._has_left = True
        member = self.member
        if member:
            self._send(
                lambda groups, answer: acknowledged(lambda: groups.leave(self.settings.group, member))(answer),
                lambda _result: None,
            )

    def served(self) -> None:
        """Go on: the application has served a rebalance that was reported."""
        self._unserved -= 1
        if not self._unserved and self._must_rejoin:
            self._rejoin()

    def _rejoin(self) -> None:
        if self._has_left or self._is_joining:
            return
        if self._unserved:
            self._must_rejoin = True
            return
        self._must_rejoin, self._is_joining = False, True
        self._attempt += 1
        self._join(self._attempt)

    def _join(self, attempt: int) -> None:
        settings = self.settings
        subscription = Subscription(
            self._connection.client_id,
            self._topics,
            self._owned(),
            settings.session_timeout_ms,
            settings.max_poll_interval_ms,
        )

        def joined(result: object) -> None:
            if attempt != self._attempt or self._has_left:
                return
            if isinstance(result, Joined):
                self.member, self.generation = result
                self._heard()
                self._sync(attempt)
            else:
                self._failed(attempt, result)

        member, network = self.member, self._connection.network
        self._joins += 1
        number = self._joins

        def join(groups: GroupCoordinator, answer: Callable[[object], None]) -> None:
            # A broker's request queue is in the order of arrival, and a client waits before it joins again: no join
            # that was given up comes behind a newer one. It would take that one's answer, for max.poll.interval.ms.
            if number == self._joins or not network.is_late:
                groups.join(settings.group, member, subscription, answer)

        # The answer comes when all members have joined, so the request may take as long as the rebalance.
        self._send(
            join,
            joined,
            settings.max_poll_interval_ms + 5_000.0,
        )

    def _sync(self, attempt: int) -> None:
        member, generation = self.member, self.generation

        def synced(result: object) -> None:
            if attempt != self._attempt or self._has_left:
                return
            if isinstance(result, frozenset):
                self._is_joining = False
                self._heard()
                self._take(result)
            else:
                self._failed(attempt, result)

        self._send(
            lambda groups, answer: groups.sync(self.settings.group, member, generation, answer),
            synced,
            self.settings.max_poll_interval_ms,
        )

    def _failed(self, attempt: int, result: object) -> None:
        code = result.code if isinstance(result, RefusedError) else None
        if code in _GONE:
            self._is_joining = False
            self._lose(is_forgotten=code != KafkaError.ILLEGAL_GENERATION)
            return

        def again() -> None:
            if attempt == self._attempt and self._is_joining:
                self._join(attempt)

        self._connection.host.call_later(_RETRY_MS, again)

    def _take(self, assignment: frozenset[Partition]) -> None:
        owned = self._owned()
        revoked, added = owned - assignment, assignment - owned
        self._connection.timers.note("rebalanced", self.member, self.generation, sorted(assignment))
        if revoked:
            self._tell(RebalanceKind.REVOKE, revoked)
            self._must_rejoin = True
        if added or not revoked:
            self._tell(RebalanceKind.ASSIGN, added)

    def _tell(self, kind: RebalanceKind, partitions: frozenset[Partition]) -> None:
        self._unserved += 1
        self._report(kind, partitions)

    def _lose(self, *, is_forgotten: bool) -> None:
        """The coordinator has given the partitions to others, or may have."""
        self.generation = -1
        if is_forgotten:
            self.member = ""
        self._attempt += 1
        self._is_joining = False
        owned = self._owned()
        if owned:
            self._must_rejoin = True
            self._tell(RebalanceKind.LOST, owned)
        else:
            self._rejoin()

    def _heard(self) -> None:
        self._heard_ms = self._connection.timers.now_ms

    def _beat(self) -> None:
        """Send heartbeats, and notice that the session or the time between two polls is over."""
        if self._has_left:
            return
        self._connection.host.call_later(self.settings.heartbeat_interval_ms, self._beat)
        now_ms = self._connection.timers.now_ms
        if not self.is_member:
            return
        if now_ms - self.polled_ms > self.settings.max_poll_interval_ms:
            member = self.member
            self._send(
                lambda groups, answer: acknowledged(lambda: groups.leave(self.settings.group, member))(answer),
                lambda _result: None,
            )
            self._lose(is_forgotten=True)
            return
        if now_ms - self._heard_ms > self.settings.session_timeout_ms and not self._is_joining:
            self._lose(is_forgotten=True)
            return
        generation = self.generation

        def beaten(result: object) -> None:
            if generation != self.generation or self._has_left:
                return
            code = result.code if isinstance(result, RefusedError) else None
            if result is None:
                self._heard()
            elif code == KafkaError.REBALANCE_IN_PROGRESS:
                self._heard()
                self._rejoin()
            elif code in _GONE and not self._is_joining:
                self._lose(is_forgotten=code != KafkaError.ILLEGAL_GENERATION)

        member = self.member
        self._send(
            lambda groups, answer: acknowledged(lambda: groups.heartbeat(self.settings.group, member, generation))(
                answer
            ),
            beaten,
            self.settings.session_timeout_ms,
        )

    def _send(
        self,
        request: Callable[[GroupCoordinator, Callable[[object], None]], None],
        on_answer: Callable[[object], None],
        timeout_ms: float = 10_000.0,
    ) -> None:
        cluster = self._connection.cluster
        broker = cluster.coordinator_of(self.settings.group)
        self._connection.request(
            broker, lambda answer: request(cluster.groups, answer), on_answer, timeout_ms, to_coordinator=True
        )

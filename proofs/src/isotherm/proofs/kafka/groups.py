"""The group coordinator of the classic protocol: join, sync, heartbeat, leave, committed offsets.

Source: Kafka's `GroupCoordinator` (KIP-62, KIP-429). The broker does not check which partitions a member owns: any
member of the current generation may commit any of them. The model assigns in the leader's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from confluent_kafka import KafkaError

from isotherm.proofs.kafka.assignment import Partition, assign
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kafka.timers import Cancel, Timers

INITIAL_DELAY_MS = 3_000.0
"""`group.initial.rebalance.delay.ms`: how long the first rebalance of an empty group waits for more members."""
_COMMIT_TIMEOUT_MS = 5_000.0
"""`offsets.commit.timeout.ms`: how long the coordinator waits for the replicas of its topic of offsets."""


class CommittedOffset(NamedTuple):
    """A group's position in one partition."""

    offset: int
    metadata: str = ""


class Joined(NamedTuple):
    """The answer to a join."""

    member: str
    generation: int


class _State(Enum):
    EMPTY = auto()
    PREPARING = auto()
    """A rebalance: members have to join again."""
    COMPLETING = auto()
    """All have joined; they have to ask for their assignment."""
    STABLE = auto()


class Subscription(NamedTuple):
    """What a member says when it joins."""

    client_id: str
    topics: frozenset[str]
    owned: frozenset[Partition]
    session_timeout_ms: float
    rebalance_timeout_ms: float
    metadata: bytes = b""
    """What the leader of the group is told, where a client assigns."""


Assigned = frozenset[Partition] | bytes
"""Partitions, or what the leader of the group has written for the member."""
Answer = Callable[[Joined | Assigned | RefusedError], None]


@dataclass
class _Member:
    subscription: Subscription
    join_answer: Answer | None = None
    sync_answer: Answer | None = None
    assignment: Assigned = frozenset()
    cancel_session: Cancel = lambda: None


@dataclass
class _Group:
    state: _State = _State.EMPTY
    generation: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    offsets: dict[Partition, CommittedOffset] = field(default_factory=dict)
    cancel_rebalance: Cancel = lambda: None
    is_delayed: bool = False
    """Whether the first rebalance waits for more members."""


class GroupCoordinator:
    """All consumer groups of the cluster."""

    def __init__(self, timers: Timers, partitions: Callable[[], Mapping[str, int]]) -> None:
        """`partitions` returns how many partitions each topic has."""
        self._timers, self._partitions = timers, partitions
        self._groups: dict[str, _Group] = {}
        self._next_member = 0
        self.on_commit: Callable[[str, Mapping[Partition, CommittedOffset]], None] = lambda _group, _offsets: None
        """Is told of every commit that is taken, with the group."""
        self.initial_delay_ms = INITIAL_DELAY_MS
        self.commit_failures = 0.0
        """Probability that a commit is refused for some of its partitions, or times out."""
        self.away_code: int | None = None
        """What every request is refused with while the coordinator moves: NOT_COORDINATOR and the like."""

    def join(self, group_id: str, member_id: str, subscription: Subscription, answer: Answer) -> None:
        """Join or join again; the answer comes when the rebalance has all members. Raises RefusedError."""
        group = self._here(group_id)
        if member_id and member_id not in group.members:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if not member_id:
            self._next_member += 1
            member_id = f"{subscription.client_id}#{self._next_member}"
            group.members[member_id] = _Member(subscription)
        member = group.members[member_id]
        is_same = member.subscription == subscription and group.state in (_State.STABLE, _State.COMPLETING)
        member.subscription = subscription
        self._extend_session(group_id, group, member_id)
        if is_same and member.sync_answer is None and member.assignment:
            answer(Joined(member_id, group.generation))
            return
        member.join_answer = answer
        self._prepare(group_id, group)
        self._complete_join(group_id, group)

    def sync(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        answer: Answer,
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        """Ask for the assignment; it comes when all members have asked. Raises RefusedError.

        With `assignments`, of the leader, each member gets what it has there; otherwise the model assigns.
        """
        group = self._here(group_id)
        member = self._checked(group, member_id, generation)
        if group.state is _State.PREPARING:
            raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)
        self._extend_session(group_id, group, member_id)
        if group.state is _State.STABLE:
            answer(member.assignment)
            return
        member.sync_answer = answer
        # In Kafka the leader's request brings the assignment. The leader is the first member.
        if member_id == next(iter(group.members)):
            self._assign(group_id, group, assignments)

    def heartbeat(self, group_id: str, member_id: str, generation: int) -> None:
        """Keep the member's session. Raises RefusedError, with REBALANCE_IN_PROGRESS if it has to join again."""
        group = self._here(group_id)
        self._checked(group, member_id, generation)
        self._extend_session(group_id, group, member_id)
        if group.state is _State.PREPARING:
            raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)

    def leave(self, group_id: str, member_id: str) -> None:
        """Leave the group. Raises RefusedError."""
        group = self._here(group_id)
        if member_id not in group.members:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        self._remove(group_id, group, member_id)

    def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        offsets: Mapping[Partition, CommittedOffset],
        answer: Callable[[Mapping[Partition, int]], None],
    ) -> None:
        """Store offsets; without a member, only of a group that has none. Raises RefusedError.

        The answer has the error code of each partition that is refused. It comes late when the replicas of the topic of
        offsets do not answer in time: then all are refused, and nobody knows whether they are stored.
        """
        group = self._here(group_id)
        if not member_id and generation < 0:
            if group.members:
                raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        else:
            self._checked(group, member_id, generation)
            if group.state is _State.COMPLETING:
                raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)
            self._extend_session(group_id, group, member_id)
        chance, refused = self._timers.random, dict[Partition, int]()
        does_fail = self.commit_failures > 0 and chance.random() < self.commit_failures
        if does_fail and chance.random() < 0.5:
            refused = dict.fromkeys(offsets, KafkaError.REQUEST_TIMED_OUT)
            self._timers.note("commit times out", group_id, member_id)
            self._timers.call_later(_COMMIT_TIMEOUT_MS, lambda: answer(refused))
            if chance.random() < 0.5:
                return
        else:
            if does_fail:
                # The coordinator does not know a partition yet, or has forgotten it (`KafkaApis.handleOffsetCommit`).
                unknown = [one for one in sorted(offsets) if chance.random() < 0.5] or [min(offsets)]
                refused = dict.fromkeys(unknown, KafkaError.UNKNOWN_TOPIC_OR_PART)
                self._timers.note("commit refused", group_id, member_id, unknown)
                offsets = {one: offset for one, offset in offsets.items() if one not in refused}
            answer(refused)
        group.offsets.update(offsets)
        for partition, committed in sorted(offsets.items()):
            self._timers.note("committed", group_id, member_id, *partition, *committed)
        self.on_commit(group_id, offsets)

    def fetch(self, group_id: str, partitions: Set[Partition]) -> dict[Partition, CommittedOffset]:
        """Return the committed offsets that exist. Raises RefusedError."""
        offsets = self._here(group_id).offsets
        return {partition: offsets[partition] for partition in partitions if partition in offsets}

    def members(self, group_id: str) -> list[str]:
        """Return the client ids of the members. Raises RefusedError."""
        return [member.subscription.client_id for member in self._here(group_id).members.values()]

    def metadata(self, group_id: str) -> dict[str, bytes]:
        """Return the metadata of the members by their id, the leader first. Raises RefusedError."""
        return {one: member.subscription.metadata for one, member in self._here(group_id).members.items()}

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a topic that is deleted, and let its readers join again."""
        for group_id, group in self._groups.items():
            group.offsets = {one: offset for one, offset in group.offsets.items() if one[0] != topic}
            if any(topic in member.subscription.topics for member in group.members.values()):
                self._prepare(group_id, group)

    def _here(self, group_id: str) -> _Group:
        if self.away_code is not None:
            raise RefusedError(self.away_code)
        return self._groups.setdefault(group_id, _Group())

    def _checked(self, group: _Group, member_id: str, generation: int) -> _Member:
        member = group.members.get(member_id)
        if member is None:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if generation != group.generation:
            raise RefusedError(KafkaError.ILLEGAL_GENERATION)
        return member

    def _extend_session(self, group_id: str, group: _Group, member_id: str) -> None:
        member = group.members[member_id]
        member.cancel_session()
        member.cancel_session = self._timers.call_later(
            member.subscription.session_timeout_ms, lambda: self._expire(group_id, group, member_id)
        )

    def _expire(self, group_id: str, group: _Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        if self.away_code is not None or member.join_answer is not None or member.sync_answer is not None:
            # Nobody could send a heartbeat; and a broker wants none of a member that waits for the others
            # (`hasSatisfiedHeartbeat` of Kafka's `MemberMetadata`).
            self._extend_session(group_id, group, member_id)
            return
        self._timers.note("session expired", group_id, member_id)
        self._remove(group_id, group, member_id)

    def _remove(self, group_id: str, group: _Group, member_id: str) -> None:
        group.members.pop(member_id).cancel_session()
        if not group.members:
            group.cancel_rebalance()
            group.state, group.is_delayed = _State.EMPTY, False
            group.generation += 1
        elif group.state is _State.PREPARING:
            self._complete_join(group_id, group)
        else:
            self._prepare(group_id, group)

    def _prepare(self, group_id: str, group: _Group) -> None:
        """Begin a rebalance unless one is under way."""
        if group.state is _State.PREPARING:
            return
        for member in group.members.values():
            if member.sync_answer is not None:
                member.sync_answer(RefusedError(KafkaError.REBALANCE_IN_PROGRESS))
                member.sync_answer = None
        group.is_delayed = group.state is _State.EMPTY
        group.state = _State.PREPARING
        self._timers.note("rebalance", group_id, group.generation)
        longest_ms = max(member.subscription.rebalance_timeout_ms for member in group.members.values())
        wait_ms = self.initial_delay_ms if group.is_delayed else longest_ms
        group.cancel_rebalance = self._timers.call_later(wait_ms, lambda: self._end_waiting(group_id, group))

    def _end_waiting(self, group_id: str, group: _Group) -> None:
        """Go on without the members that did not join in time. While the coordinator moves, no rebalance ends."""
        if self.away_code is not None:
            group.cancel_rebalance = self._timers.call_later(
                INITIAL_DELAY_MS, lambda: self._end_waiting(group_id, group)
            )
            return
        group.is_delayed = False
        for member_id in [one for one, member in group.members.items() if member.join_answer is None]:
            group.members.pop(member_id).cancel_session()
        if group.members:
            self._complete_join(group_id, group)
        else:
            group.state = _State.EMPTY

    def _complete_join(self, group_id: str, group: _Group) -> None:
        if group.is_delayed or any(member.join_answer is None for member in group.members.values()):
            return
        group.cancel_rebalance()
        group.generation += 1
        group.state = _State.COMPLETING
        for member_id, member in list(group.members.items()):
            answer, member.join_answer, member.assignment = member.join_answer, None, frozenset()
            self._extend_session(group_id, group, member_id)
            if answer is not None:
                answer(Joined(member_id, group.generation))

    def _assign(self, group_id: str, group: _Group, given: Mapping[str, bytes] | None) -> None:
        group.state = _State.STABLE
        subscriptions = {one: member.subscription.topics for one, member in group.members.items()}
        owned = {one: member.subscription.owned for one, member in group.members.items()}
        assigned = assign(subscriptions, owned, self._partitions()) if given is None else {}
        for member_id, member in group.members.items():
            partitions = assigned.get(member_id, ())
            member.assignment = frozenset(partitions) if given is None else given.get(member_id, b"")
            self._timers.note("assigned", group_id, group.generation, member_id, sorted(partitions))
            answer, member.sync_answer = member.sync_answer, None
            if answer is not None:
                self._extend_session(group_id, group, member_id)
                answer(member.assignment)

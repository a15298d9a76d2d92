"""confluent_kafka's Consumer and AdminClient for simulated threads, over the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.fetcher import BEGINNING, END, Delivered, Fetcher, PartitionEvent
from isotherm.proofs.kafka.clients.membership import Membership, MembershipSettings, RebalanceKind
from isotherm.proofs.kafka.groups import CommittedOffset
from isotherm.proofs.kafka.network import BrokenError, Request
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kernel.simulation import Simulation, Thread

_NO_OFFSET = -1001
_RETRIABLE = frozenset((KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.NOT_COORDINATOR))
_RESETS = {"earliest": BEGINNING, "smallest": BEGINNING, "latest": END, "largest": END}

OnRebalance = Callable[[Any, list[TopicPartition]], None]


def kafka_error(code: int) -> KafkaError:
    """Return the error of a code, retriable as the client says."""
    return KafkaError(code, retriable=code in _RETRIABLE)


def message_of(delivered: Delivered) -> Message:
    """Return what a client gives its application: a record, or an event of a partition."""
    (topic, partition), content = delivered
    if isinstance(content, PartitionEvent):
        return Message(topic=topic, partition=partition, offset=content.offset, error=kafka_error(content.code))
    key, value, headers, timestamp_ms = content.payload
    found: list[tuple[str, str | bytes | None]] | None = list(headers) or None
    return Message(topic, partition, content.offset, key, value, found, None, (1, timestamp_ms))


class Caller:
    """Sends requests for threads, which wait for the answers."""

    def __init__(self, connection: Connection, run: Simulation) -> None:
        self.connection, self.run = connection, run

    def check(self) -> None:
        """Raise Killed in a thread of a dead process."""
        if self.run.current is not None:
            self.run.current.process.check()

    def call(self, broker: int, request: Request, timeout_ms: float, *, to_coordinator: bool = False) -> Any:
        """Return the broker's answer. Raises KafkaException."""
        self.check()
        answers: list[object] = []
        thread = self.run.current

        def take(result: object) -> None:
            answers.append(result)
            if thread is not None:
                self.run.wake(thread)

        self.connection.request(broker, request, take, timeout_ms, to_coordinator=to_coordinator)
        while not answers:
            self.run.wait()
        (answer,) = answers
        if isinstance(answer, RefusedError):
            raise KafkaException(kafka_error(answer.code))
        if isinstance(answer, BrokenError):
            is_late = str(answer) == "timed out"
            raise KafkaException(kafka_error(KafkaError._TIMED_OUT if is_late else KafkaError._TRANSPORT))
        return answer


class Consumer:
    """confluent_kafka.Consumer, as far as the services use it."""

    def __init__(self, connection: Connection, run: Simulation, config: Mapping[str, Any]) -> None:
        """`config` is librdkafka's, with dots."""
        self._run, self._connection = run, connection
        self._caller = Caller(connection, run)
        self._callbacks: dict[RebalanceKind, OnRebalance] = {}
        self._rebalances: deque[tuple[RebalanceKind, frozenset[Partition]]] = deque()
        self._waiting: Thread | None = None
        self._is_serving = False
        self._is_closed = False
        self.fetcher = Fetcher(
            connection,
            committed=config.get("isolation.level") != "read_uncommitted",
            reports_ends=bool(config.get("enable.partition.eof")),
            reset=_RESETS.get(str(config.get("auto.offset.reset", "latest"))),
            on_content=self._wake,
        )
        session_ms = float(config.get("session.timeout.ms", 45_000))
        settings = MembershipSettings(
            str(config["group.id"]),
            session_ms,
            float(config.get("heartbeat.interval.ms", 3_000)),
            float(config.get("max.poll.interval.ms", 300_000)),
        )
        self.membership = Membership(connection, settings, lambda: frozenset(self.fetcher.positions), self._rebalanced)

    def subscribe(self, topics: Sequence[str], **callbacks: OnRebalance) -> None:
        """Join the group; `callbacks` are on_assign, on_revoke and on_lost."""
        self._caller.check()
        names = {"on_assign": RebalanceKind.ASSIGN, "on_revoke": RebalanceKind.REVOKE, "on_lost": RebalanceKind.LOST}
        self._callbacks = {names[name]: callback for name, callback in callbacks.items()}
        self.membership.subscribe(frozenset(topics))

    def poll(self, timeout: float | None = None) -> Message | None:
        """Serve rebalances, and return the next record or event that comes within `timeout` seconds."""
        self._caller.check()
        self.membership.polled_ms = self._run.now_ms
        deadline_ms = None if timeout is None or timeout < 0 else self._run.now_ms + timeout * 1000
        while True:
            self._serve()
            found = self.fetcher.take()
            if found is not None:
                return message_of(found)
            left_ms = None if deadline_ms is None else deadline_ms - self._run.now_ms
            if left_ms is not None and left_ms <= 0:
                self._run.yield_turn()
                return None
            self._waiting = self._run.current
            self._run.wait(left_ms)
            self._waiting = None
            self.membership.polled_ms = self._run.now_ms

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to so many records and events that come within `timeout` seconds."""
        found: list[Message] = []
        deadline_ms = self._run.now_ms + timeout * 1000
        while len(found) < num_messages:
            left_s = None if timeout < 0 else max(0.0, deadline_ms - self._run.now_ms) / 1000
            message = self.poll(left_s)
            if message is None:
                break
            found.append(message)
        return found

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others."""
        for partition in list(self.fetcher.positions):
            self.fetcher.unassign(partition)
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, too."""
        self._caller.check()
        for one in partitions:
            self.fetcher.assign((one.topic, one.partition), one.offset if one.offset != _NO_OFFSET else BEGINNING)

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self._caller.check()
        for one in partitions:
            self.fetcher.unassign((one.topic, one.partition))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver nothing of these partitions."""
        for one in partitions:
            self.fetcher.pause((one.topic, one.partition))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver records of these partitions again."""
        for one in partitions:
            self.fetcher.resume((one.topic, one.partition))

    def commit(
        self, *, offsets: Sequence[TopicPartition], asynchronous: bool = True, **_: object
    ) -> list[TopicPartition]:
        """Commit offsets with their metadata. Raises KafkaException if Kafka refuses any of them."""
        found = {(one.topic, one.partition): CommittedOffset(one.offset, one.metadata or "") for one in offsets}
        membership, cluster = self.membership, self._connection.cluster
        group, member, generation = membership.settings.group, membership.member, membership.generation
        refused: Mapping[Partition, int] = self._caller.call(
            cluster.coordinator_of(group),
            lambda answer: cluster.groups.commit(group, member, generation, found, answer),
            60_000.0,
            to_coordinator=True,
        )
        if refused:
            # librdkafka takes the last partition's error for that of the request, also when it has stored the others
            # (`rd_kafka_handle_OffsetCommit`), and confluent_kafka does not tell which ones.
            raise KafkaException(kafka_error(refused[max(refused)]))
        return [TopicPartition(one.topic, one.partition, one.offset) for one in offsets]

    def committed(self, partitions: Sequence[TopicPartition], timeout: float = 60.0) -> list[TopicPartition]:
        """Return the committed offsets with their metadata. Raises KafkaException."""
        cluster, group = self._connection.cluster, self.membership.settings.group
        wanted = frozenset((one.topic, one.partition) for one in partitions)
        found = self._caller.call(
            cluster.coordinator_of(group),
            lambda answer: answer(cluster.groups.fetch(group, wanted)),
            timeout * 1000,
            to_coordinator=True,
        )
        none = CommittedOffset(_NO_OFFSET)
        answer = []
        for one in partitions:
            offset, metadata = found.get((one.topic, one.partition), none)
            answer.append(TopicPartition(one.topic, one.partition, offset, metadata=metadata))
        return answer

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset and the one after the last. Raises KafkaException."""
        where = (partition.topic, partition.partition)
        if cached:
            position = self.fetcher.positions.get(where)
            return (_NO_OFFSET, _NO_OFFSET) if position is None else (position.low, position.high)
        cluster = self._connection.cluster

        def bounds(answer: Callable[[object], None]) -> None:
            log = cluster.log_of(where)
            answer((log.start, log.last_stable_offset))

        found: tuple[int, int] = self._caller.call(self._leader(where), bounds, (timeout or 60.0) * 1000)
        return found

    def offsets_for_times(self, partitions: Sequence[TopicPartition], timeout: float = 60.0) -> list[TopicPartition]:
        """Return the first or last offset of each partition (logical offsets only). Raises KafkaException."""
        found = []
        for one in partitions:
            low, high = self.get_watermark_offsets(one, timeout=timeout)
            found.append(TopicPartition(one.topic, one.partition, low if one.offset == BEGINNING else high))
        return found

    def list_topics(self, topic: str | None = None, timeout: float = 60.0) -> Any:
        """Return the topics. Raises KafkaException."""
        return listed_topics(self._caller, topic, timeout)

    def close(self) -> None:
        """Give up the partitions and leave the group."""
        self._caller.check()
        if self._is_closed:
            return
        self._is_closed = True
        self._serve()
        owned = frozenset(self.fetcher.positions)
        if owned and self._callbacks:
            kind = RebalanceKind.REVOKE if self.membership.is_member else RebalanceKind.LOST
            self._serve_one(kind, owned)
        self.fetcher.positions.clear()
        self.membership.leave()
        self._run.wait(1.0)

    def _leader(self, partition: Partition) -> int:
        try:
            return self._connection.cluster.leader_of(partition)
        except RefusedError as refused:
            raise KafkaException(kafka_error(refused.code)) from None

    def _rebalanced(self, kind: RebalanceKind, partitions: frozenset[Partition]) -> None:
        self._rebalances.append((kind, partitions))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._run.wake(self._waiting)

    def _serve(self) -> None:
        while self._rebalances and not self._is_serving:
            kind, partitions = self._rebalances.popleft()
            self._serve_one(kind, partitions)
            self.membership.served()

    def _serve_one(self, kind: RebalanceKind, partitions: frozenset[Partition]) -> None:
        if kind is RebalanceKind.REVOKE and not self.membership.is_member:
            kind = RebalanceKind.LOST
        listed = [TopicPartition(topic, number) for topic, number in sorted(partitions)]
        callback = self._callbacks.get(kind)
        if callback is None and kind is RebalanceKind.LOST:
            callback = self._callbacks.get(RebalanceKind.REVOKE)
        self._is_serving = True
        try:
            if callback is not None:
                callback(self, listed)
        finally:
            self._is_serving = False
            if kind is not RebalanceKind.ASSIGN:
                for partition in partitions:
                    self.fetcher.unassign(partition)
        if kind is RebalanceKind.ASSIGN:
            self._assign_rest(listed)

    def _assign_rest(self, listed: list[TopicPartition]) -> None:
        """Assign what the callback did not, from the committed offsets: the client does the same."""
        rest = [one for one in listed if (one.topic, one.partition) not in self.fetcher.positions]
        if rest:
            with suppress(KafkaException):
                self.incremental_assign(self.committed(rest))


def listed_topics(caller: Caller, topic: str | None, timeout_s: float) -> Any:
    """Ask a broker for the topics. Raises KafkaException."""
    cluster = caller.connection.cluster
    counts: Mapping[str, int] = caller.call(
        caller.run.random.randrange(3), lambda answer: answer(dict(cluster.partition_counts())), timeout_s * 1000
    )
    names = counts if topic is None else (topic,)
    return SimpleNamespace(
        topics={
            name: SimpleNamespace(
                topic=name,
                partitions={number: SimpleNamespace(id=number, error=None) for number in range(counts.get(name, 0))},
                error=None if name in counts else kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART),
            )
            for name in names
        }
    )

"""aiokafka over the model: its consumers and producers are real, only their connections to brokers are not.

A request is answered by an object with the fields of aiokafka's response; of all answers only a fetch holds bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError

from isotherm.proofs.kafka.assignment import Partition
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.record_batches import record_batches
from isotherm.proofs.kafka.cluster import NODES
from isotherm.proofs.kafka.groups import CommittedOffset, Joined, Subscription
from isotherm.proofs.kafka.log import StoredRecord
from isotherm.proofs.kafka.network import BrokenError
from isotherm.proofs.kafka.refusal import RefusedError

_HOST = "model-"
_RECORDS_A_FETCH = 500
_READ_COMMITTED = 1
_EARLIEST = -2

Answer = Callable[[object], None]
OnClose = Callable[[Any, CloseReason], None]


def connector(connection_of: Callable[[str], Connection]) -> Callable[..., Awaitable[ModelConnection]]:
    """Return what stands for `aiokafka.conn.create_conn`; `connection_of` takes the client id."""
    numbers = count()

    async def create_conn(
        host: str,
        _port: int,
        *,
        client_id: str,
        request_timeout_ms: float,
        on_close: OnClose = lambda *_: None,
        **_security: object,
    ) -> ModelConnection:
        base = connection_of(client_id)
        known = host.startswith(_HOST)
        broker = int(host.removeprefix(_HOST)) if known else base.timers.random.randrange(NODES)
        connection = replace(base, client_id=f"{client_id}.{next(numbers)}")
        made = ModelConnection(connection, broker, request_timeout_ms, on_close)
        await made.send(SimpleNamespace())
        return made

    return create_conn


class ModelConnection:
    """One connection to one broker (`aiokafka.conn.AIOKafkaConnection`)."""

    def __init__(self, connection: Connection, broker: int, timeout_ms: float, on_close: OnClose) -> None:
        self._connection, self._broker, self._timeout_ms, self._on_close = connection, broker, timeout_ms, on_close
        self._requests = BrokerRequests(connection, broker)
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._pending: dict[asyncio.Future[Any], None] = {}

    def connected(self) -> bool:
        """Return whether it has not broken and was not closed."""
        return self._is_open

    def send(self, request: Any, expect_response: bool = True) -> asyncio.Future[Any]:
        """Send a request and return its future response. Raises KafkaConnectionError."""
        if not self._is_open:
            raise KafkaConnectionError(f"no connection to broker {self._broker}")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[future] = None
        future.add_done_callback(lambda done: self._pending.pop(done, None))

        def answered(result: object) -> None:
            is_late = isinstance(result, BrokenError) and str(result) == "timed out"
            if is_late and not future.done():
                future.set_exception(TimeoutError())
            if isinstance(result, BrokenError):
                self._close(CloseReason.CONNECTION_TIMEOUT if is_late else CloseReason.CONNECTION_BROKEN)
            elif not future.done():
                future.set_result(result)

        self._connection.request(
            self._broker, lambda answer: self._requests.execute(request, answer), answered, self._timeout_ms
        )
        return future

    def close(self, reason: CloseReason | None = None, _error: Exception | None = None) -> asyncio.Future[None]:
        """Close it; requests without an answer fail."""
        self._close(reason or CloseReason.SHUTDOWN)
        closed: asyncio.Future[None] = self._loop.create_future()
        closed.set_result(None)
        return closed

    def _close(self, reason: CloseReason) -> None:
        if self._is_open:
            self._is_open = False
            for future in list(self._pending):
                if not future.done():
                    future.set_exception(KafkaConnectionError("the connection is closed"))
            self._on_close(self, reason)


class _PartitionRead(NamedTuple):
    number: int
    code: int
    end: int
    stable: int
    records: list[StoredRecord]
    offset: int
    go_on: int

    def response(self) -> tuple[object, ...]:
        data = record_batches(self.records, self.offset, self.go_on)
        return self.number, self.code, self.end, self.stable, [], data


class BrokerRequests:
    """Executes aiokafka's requests at one broker of the model. A refusal becomes the error code of the response."""

    def __init__(self, connection: Connection, broker: int) -> None:
        self._connection, self._cluster, self._broker = connection, connection.cluster, broker

    def execute(self, request: Any, answer: Answer) -> None:
        """Execute a request and answer it, now or later."""
        name = type(request).__name__
        if name == "SimpleNamespace":  # the handshake of a new connection
            answer(None)
            return
        try:
            getattr(self, f"_{name}")(request, answer)
        except RefusedError as refused:
            self._refuse(request, refused, answer)

    def _refuse(self, request: Any, refused: RefusedError, answer: Answer) -> None:
        # Requests about partitions have a code for each of them.
        topics = getattr(request, "_topics", None) or getattr(request, "_partitions", None) or []
        coded = [
            (
                topic,
                [(one, -1, "", refused.code) if isinstance(one, int) else (one[0], refused.code) for one in partitions],
            )
            for topic, partitions in topics
        ]
        answer(SimpleNamespace(API_VERSION=0, error_code=refused.code, topics=coded))

    def _MetadataRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802 - the names of aiokafka's requests
        counts = self._cluster.partition_counts()
        topics: list[tuple[int, str, bool, list[Any]]] = []
        for topic in sorted(counts if request._topics is None else request._topics):
            if topic not in counts:
                topics.append((KafkaError.UNKNOWN_TOPIC_OR_PART, topic, False, []))
                continue
            leaders = [self._cluster.leader_of((topic, number)) for number in range(counts[topic])]
            parts = [(0, number, leader, [leader], [leader]) for number, leader in enumerate(leaders)]
            topics.append((0, topic, False, parts))
        # aiokafka keeps brokers in sets, and the hash of None is its address.
        brokers = [(node, f"{_HOST}{node}", 9092, f"rack-{node}") for node in range(NODES)]
        answer(SimpleNamespace(API_VERSION=1, brokers=brokers, controller_id=0, topics=topics))

    def _FindCoordinatorRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        answer(
            SimpleNamespace(error_code=0, coordinator_id=self._cluster.coordinator_of(str(request._coordinator_key)))
        )

    def _JoinGroupRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        groups, group = self._cluster.groups, request._group
        ((protocol, metadata),) = request._group_protocols
        subscription = Subscription(
            self._connection.host.name,
            frozenset(),
            frozenset(),
            request._session_timeout,
            request._rebalance_timeout,
            metadata,
        )

        def joined(result: object) -> None:
            if not isinstance(result, Joined):
                assert isinstance(result, RefusedError)
                self._refuse(request, result, answer)
                return
            members = groups.metadata(group)
            leader = next(iter(members))
            answer(
                SimpleNamespace(
                    API_VERSION=2,
                    error_code=0,
                    generation_id=result.generation,
                    group_protocol=protocol,
                    leader_id=leader,
                    member_id=result.member,
                    members=list(members.items()) if leader == result.member else [],
                )
            )

        groups.join(group, request._member_id, subscription, joined)

    def _SyncGroupRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        def synced(result: object) -> None:
            if isinstance(result, RefusedError):
                self._refuse(request, result, answer)
            else:
                answer(SimpleNamespace(error_code=0, member_assignment=result))

        self._cluster.groups.sync(
            request._group, request._member_id, request._generation_id, synced, dict(request._group_assignment)
        )

    def _HeartbeatRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        self._cluster.groups.heartbeat(request._group, request._member_id, request._generation_id)
        answer(SimpleNamespace(error_code=0))

    def _LeaveGroupRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        self._cluster.groups.leave(request._group, request._member_id)
        answer(SimpleNamespace(error_code=0))

    def _OffsetCommitRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        offsets = {
            (topic, number): CommittedOffset(offset, metadata)
            for topic, partitions in request._topics
            for number, offset, metadata in partitions
        }

        def committed(refused: Mapping[Partition, int]) -> None:
            coded = [
                (topic, [(number, refused.get((topic, number), 0)) for number, *_ in partitions])
                for topic, partitions in request._topics
            ]
            answer(SimpleNamespace(topics=coded))

        member, generation = request._consumer_id, request._consumer_group_generation_id
        self._cluster.groups.commit(request._consumer_group, member, generation, offsets, committed)

    def _OffsetFetchRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        wanted = {(topic, number) for topic, numbers in request._partitions for number in numbers}
        found = self._cluster.groups.fetch(request._consumer_group, wanted)
        none = CommittedOffset(-1)
        topics = [
            (topic, [(number, *found.get((topic, number), none), 0) for number in numbers])
            for topic, numbers in request._partitions
        ]
        answer(SimpleNamespace(topics=topics))

    def _OffsetRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        topics = []
        for topic, partitions in request._topics:
            parts = []
            for number, timestamp in partitions:
                log = self._cluster.log_of((topic, number))
                is_led = self._cluster.leader_of((topic, number)) == self._broker
                end = log.last_stable_offset if request._isolation_level == _READ_COMMITTED else log.end
                code = 0 if is_led else KafkaError.NOT_LEADER_FOR_PARTITION
                parts.append((number, code, -1, log.start if timestamp == _EARLIEST else end))
            topics.append((topic, parts))
        answer(SimpleNamespace(API_VERSION=1, topics=topics))

    def _FetchRequest(self, request: Any, answer: Answer) -> None:  # noqa: N802
        """Wait until the partitions have `min_bytes`, at most `max_wait_ms`."""
        is_over = False
        watched: set[Partition] = set()
        """Logs that will tell of their next change: each is asked once."""

        def changed(partition: Partition) -> None:
            watched.discard(partition)
            look(False)

        def look(is_late: bool) -> None:
            nonlocal is_over
            if is_over:
                return
            read = {
                topic: [self._read((topic, number), offset, request) for number, offset, _ in partitions]
                for topic, partitions in request.topics
            }
            parts = [one for partitions in read.values() for one in partitions]
            has_news = any(one.code or one.go_on > one.offset for one in parts)
            size = sum(len(record.payload.value or b"") + 1 for one in parts for record in one.records)
            if is_late or any(one.code for one in parts) or (has_news and size >= request._min_bytes - 1):
                is_over = True
                cancel()
                topics = [(topic, [one.response() for one in partitions]) for topic, partitions in read.items()]
                answer(SimpleNamespace(API_VERSION=4, topics=topics))
                return
            for topic, partitions in read.items():
                for partition in {(topic, one.number) for one in partitions} - watched:
                    watched.add(partition)
                    self._cluster.log_of(partition).when_changed(partial(changed, partition))

        cancel = self._connection.timers.call_later(request._max_wait_ms, lambda: look(True))
        look(False)

    def _read(self, partition: Partition, offset: int, request: Any) -> _PartitionRead:
        number = partition[1]
        try:
            log = self._cluster.log_of(partition)
            if self._cluster.leader_of(partition) != self._broker:
                raise RefusedError(KafkaError.NOT_LEADER_FOR_PARTITION)
            committed = request._isolation_level == _READ_COMMITTED
            records, go_on = log.read(offset, _RECORDS_A_FETCH, committed=committed)
        except RefusedError as refused:
            return _PartitionRead(number, refused.code, -1, -1, [], offset, offset)
        return _PartitionRead(number, 0, log.end, log.last_stable_offset, records, offset, go_on)

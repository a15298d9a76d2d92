"""The model of Kafka: each rule that the services rely on, and that the model refuses what Kafka refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

import pytest
from confluent_kafka import Consumer as RealConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isotherm.proofs.kafka.assignment import assign
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.groups import CommittedOffset, GroupCoordinator, Joined, Subscription
from isotherm.proofs.kafka.log import Batch, PartitionLog, Payload
from isotherm.proofs.kafka.network import Network, acknowledged
from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.simulation import Process, Simulation


def batch(*values: bytes, producer: int = -1, epoch: int = 0, sequence: int = 0, open_: bool = False) -> Batch:
    return Batch([Payload(b"k", value) for value in values], producer, epoch, sequence, open_)


def code_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except RefusedError as refused:
        return refused.code
    return None


def values(log: PartitionLog, *, committed: bool = True) -> list[bytes | None]:
    return [one.payload.value for one in log.read(log.start, 100, committed=committed)[0]]


def test_a_batch_that_is_sent_again_is_stored_once_and_a_gap_is_refused() -> None:
    log = PartitionLog()
    assert log.append(batch(b"1", b"2", producer=7)) == 0
    assert log.append(batch(b"1", b"2", producer=7)) == 0
    assert code_of(lambda: log.append(batch(b"4", producer=7, sequence=3))) == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(b"3", producer=7, sequence=2)) == 2
    assert code_of(lambda: log.append(batch(b"0", producer=7, epoch=-1))) == KafkaError.INVALID_PRODUCER_EPOCH
    assert values(log) == [b"1", b"2", b"3"]


def test_a_reader_of_committed_records_stops_at_an_open_transaction_and_skips_an_aborted_one() -> None:
    log = PartitionLog()
    log.append(batch(b"a", producer=1, open_=True))
    log.append(batch(b"plain"))
    assert values(log) == []
    assert values(log, committed=False) == [b"a", b"plain"]
    log.append_marker(1, 0, is_commit=False)
    assert values(log) == [b"plain"]
    assert log.read(0, 100)[1] == log.end == 3


def test_retention_and_compaction_remove_records() -> None:
    log = PartitionLog()
    log.append(batch(b"1", b"2", b"3"))
    log.delete_before(1)
    assert code_of(lambda: log.read(0, 1)) == KafkaError.OFFSET_OUT_OF_RANGE
    log.compact()
    assert values(log) == [b"3"]
    assert log.end == 3


def test_a_second_producer_of_a_transactional_id_fences_the_first_and_aborts_its_transaction() -> None:
    run = Simulation(1)
    cluster = Cluster(run)
    cluster.create_topic("t")
    first = cluster.transactions.init_producer_id("id")
    cluster.transactions.add_partitions("id", *first, {("t", 0)})
    cluster.produce(("t", 0), batch(b"lost", producer=first[0], open_=True))
    assert code_of(lambda: cluster.transactions.init_producer_id("id")) == KafkaError.CONCURRENT_TRANSACTIONS
    run.run(1_000)
    second = cluster.transactions.init_producer_id("id")
    assert second > first
    ends = lambda: cluster.transactions.end("id", *first, is_commit=True)  # noqa: E731
    assert code_of(ends) == KafkaError.PRODUCER_FENCED
    late = batch(b"zombie", producer=first[0], sequence=1, open_=True)
    assert code_of(lambda: cluster.produce(("t", 0), late)) == KafkaError.INVALID_PRODUCER_EPOCH
    assert values(cluster.log_of(("t", 0))) == []


def test_a_late_end_of_a_transaction_ends_the_next_one_of_the_same_epoch() -> None:
    """Version 1 of transactions does that (KIP-890); the suite must live with it."""
    run = Simulation(1)
    cluster = Cluster(run)
    cluster.create_topic("t")
    one = cluster.transactions.init_producer_id("id")

    def begin(value: bytes, sequence: int) -> None:
        cluster.transactions.add_partitions("id", *one, {("t", 0)})
        cluster.produce(("t", 0), batch(value, producer=one[0], sequence=sequence, open_=True))

    def commit() -> None:
        cluster.transactions.end("id", *one, is_commit=True)
        run.run(run.now_ms + 1_000)

    begin(b"first", 0)
    commit()
    commit()
    begin(b"unfinished", 1)
    assert values(cluster.log_of(("t", 0))) == [b"first"]
    commit()
    assert values(cluster.log_of(("t", 0))) == [b"first", b"unfinished"]


def test_the_partitions_of_a_transaction_get_their_markers_one_by_one() -> None:
    run = Simulation(1)
    cluster = Cluster(run)
    cluster.create_topic("t", 2)
    one = cluster.transactions.init_producer_id("id")
    partitions = [("t", 0), ("t", 1)]
    cluster.transactions.add_partitions("id", *one, set(partitions))
    for partition in partitions:
        cluster.produce(partition, batch(b"v", producer=one[0], open_=True))
    cluster.transactions.end("id", *one, is_commit=True)
    seen = []
    for _ in range(100):
        run.run(run.now_ms + 0.5)
        seen.append(sum(len(values(cluster.log_of(partition))) for partition in partitions))
        if seen[-1] < 2:
            again = lambda: cluster.transactions.init_producer_id("id")  # noqa: E731
            assert code_of(again) == KafkaError.CONCURRENT_TRANSACTIONS
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}
    assert cluster.transactions.init_producer_id("id") > one


def test_a_transaction_times_out() -> None:
    run = Simulation(1)
    cluster = Cluster(run)
    cluster.create_topic("t")
    one = cluster.transactions.init_producer_id("id", 5_000)
    cluster.transactions.add_partitions("id", *one, {("t", 0)})
    cluster.produce(("t", 0), batch(b"slow", producer=one[0], open_=True))
    run.run(6_000)
    assert cluster.log_of(("t", 0)).last_stable_offset == 2
    ends = lambda: cluster.transactions.end("id", *one, is_commit=True)  # noqa: E731
    assert code_of(ends) == KafkaError.PRODUCER_FENCED


def test_the_assignor_is_balanced_and_gives_a_partition_away_only_after_its_owner_has_given_it_up() -> None:
    owned = {"a": {("t", number) for number in range(4)}, "b": set()}
    topics = {"a": {"t"}, "b": {"t"}}
    first = assign(topics, owned, {"t": 4})
    assert len(first["a"]) == 2
    assert first["b"] == set()
    second = assign(topics, first, {"t": 4})
    assert second["a"] == first["a"]
    assert len(second["b"]) == 2


def test_a_member_that_waits_for_its_assignment_keeps_its_session() -> None:
    run = Simulation(1)
    groups = GroupCoordinator(run, lambda: {"t": 2})
    groups.initial_delay_ms = 0.0
    joined: list[object] = []
    for name, session_ms in (("leader", 45_000.0), ("other", 10_000.0)):
        subscription = Subscription(name, frozenset({"t"}), frozenset(), session_ms, 60_000.0)
        groups.join("g", "", subscription, joined.append)
    run.run(1.0)
    members = [one.member for one in joined if isinstance(one, Joined)]
    assigned: list[object] = []
    groups.sync("g", members[1], 1, assigned.append)
    run.run(40_000.0)
    groups.sync("g", members[0], 1, assigned.append)
    assert sorted(map(len, cast("list[frozenset[object]]", assigned))) == [1, 1]
    run.run(49_000.0)
    groups.heartbeat("g", members[1], 1)
    run.run(60_000.0)
    assert code_of(lambda: groups.heartbeat("g", members[1], 1)) == KafkaError.UNKNOWN_MEMBER_ID


def test_a_rebalance_does_not_end_while_the_coordinator_moves() -> None:
    run = Simulation(1)
    groups = GroupCoordinator(run, lambda: {"t": 2})
    joined: list[object] = []
    subscription = Subscription("one", frozenset({"t"}), frozenset(), 45_000.0, 60_000.0)
    groups.join("g", "", subscription, joined.append)
    groups.away_code = KafkaError.NOT_COORDINATOR
    run.run(10_000.0)
    assert joined == []
    groups.away_code = None
    run.run(20_000.0)
    assert [type(one) for one in joined] == [Joined]


def late_executions(seed: int) -> int:
    """Return how often a broker that was frozen executes a request that timed out meanwhile."""
    run = Simulation(seed)
    network = Network(run)
    executed: list[None] = []
    answers: list[object] = []
    network.of(0).is_frozen = True
    network.send("process/client", 0, acknowledged(lambda: executed.append(None)), answers.append, 5_000.0)
    run.run(30_000.0)
    assert [str(one) for one in answers] == ["timed out"]
    assert not executed
    network.of(0).is_frozen = False
    run.run(60_000.0)
    return len(executed)


def test_a_frozen_broker_executes_some_requests_after_their_time_outs() -> None:
    assert {late_executions(seed) for seed in range(20)} == {0, 1}


class Reader:
    """A worker that commits each record after it has read it, and says what happened."""

    def __init__(self, run: Simulation, cluster: Cluster, network: Network, name: str) -> None:
        self.process = Process(run, name)
        self.events: list[str] = []
        self.seen: list[tuple[int, int]] = []
        connection = Connection(self.process, cluster, network, run, name)
        config = {"group.id": "g", "session.timeout.ms": 10_000, "auto.offset.reset": "earliest"}
        self.consumer = Consumer(connection, run, config)
        self.process.start_thread(self._main, "main")

    def _main(self) -> None:
        def assigned(_consumer: RealConsumer, partitions: list[TopicPartition]) -> None:
            self.events.append(f"assigned {len(partitions)}")

        names = ("on_revoke", "revoked"), ("on_lost", "lost")
        rest = {name: lambda _c, found, word=word: self.events.append(f"{word} {len(found)}") for name, word in names}
        self.consumer.subscribe(["t"], on_assign=assigned, **rest)
        while True:
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                partition, offset = message.partition() or 0, message.offset() or 0
                self.seen.append((partition, offset))
                where = TopicPartition("t", partition, offset + 1, metadata="m")
                with suppress(KafkaException):
                    self.consumer.commit(offsets=[where], asynchronous=False)


def test_a_group_shares_its_partitions_through_a_join_a_freeze_and_a_kill() -> None:
    run = Simulation(5)
    stand_ins.begin(run)
    cluster, network = Cluster(run), Network(run)
    cluster.create_topic("t", 4)

    def produce(number: int) -> None:
        cluster.produce(("t", number % 4), batch(b"v"))

    for number in range(200):
        run.call_later(number * 300, partial(produce, number))
    readers = [Reader(run, cluster, network, "a")]
    run.run(5_000)
    readers.append(Reader(run, cluster, network, "b"))
    run.run(15_000)
    first, second = readers
    assert first.events == ["assigned 4", "revoked 2", "assigned 0"]
    assert second.events[-1] == "assigned 2"
    first.process.freeze()
    run.run(40_000)
    assert second.events[-1] == "assigned 2"
    first.process.thaw()
    run.run(60_000)
    assert "lost 2" in first.events
    second.process.kill()
    run.run(90_000)
    assert {one for reader in readers for one in reader.seen} == {(number % 4, number // 4) for number in range(200)}
    assert cluster.groups.fetch("g", {("t", 0)}) == {("t", 0): CommittedOffset(50, "m")}
    stale = lambda: cluster.groups.commit("g", "b#2", 1, {("t", 0): CommittedOffset(1)}, lambda _refused: None)  # noqa: E731
    assert code_of(stale) == KafkaError.UNKNOWN_MEMBER_ID


def failing_commit(seed: int) -> tuple[dict[int, int], set[int], float]:
    """Commit three partitions while commits fail; return the refused ones with their codes, those stored, the time."""
    run = Simulation(seed)
    cluster = Cluster(run)
    cluster.create_topic("t", 3)
    cluster.groups.commit_failures = 1.0
    places = {("t", number): CommittedOffset(5) for number in range(3)}
    answers: list[tuple[dict[int, int], float]] = []

    def answered(refused: Mapping[tuple[str, int], int]) -> None:
        answers.append(({number: code for (_, number), code in refused.items()}, run.now_ms))

    cluster.groups.commit("g", "", -1, places, answered)
    run.run(10_000)
    ((refused, answered_ms),) = answers
    return refused, {number for _, number in cluster.groups.fetch("g", set(places))}, answered_ms


def test_a_commit_is_refused_for_some_partitions_or_times_out_with_either_outcome() -> None:
    commits = [failing_commit(seed) for seed in range(40)]
    partial = [one for one in commits if KafkaError.UNKNOWN_TOPIC_OR_PART in one[0].values()]
    late = [one for one in commits if one not in partial]
    assert all({*refused} == {0, 1, 2} - stored and at_ms == 0 for refused, stored, at_ms in partial)
    assert {len(stored) for _, stored, _ in partial} == {0, 1, 2}
    assert all(refused == dict.fromkeys(range(3), KafkaError.REQUEST_TIMED_OUT) for refused, _, _ in late)
    assert {len(stored) for _, stored, _ in late} == {0, 3}
    assert {at_ms for *_, at_ms in late} == {5_000}


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_the_same_seed_gives_the_same_trace(loss: float) -> None:
    def digest(seed: int) -> str:
        run = Simulation(seed)
        stand_ins.begin(run)
        cluster, network = Cluster(run), Network(run)
        for broker in range(3):
            network.of(broker).loss = loss
        cluster.create_topic("t", 4)
        cluster.produce(("t", 1), batch(b"v"))
        for name in ("a", "b", "c"):
            Reader(run, cluster, network, name)
        run.run(60_000)
        return run.digest

    assert digest(3) == digest(3) != digest(4)

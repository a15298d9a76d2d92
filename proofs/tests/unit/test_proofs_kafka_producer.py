"""The producers over the model: stored once and in order through lost answers; transactions, fencing, time-outs."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.thread_producer import Producer
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.network import Network
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.simulation import Process, Simulation


class Bench:
    """A cluster with a topic, and producers in a process."""

    def __init__(self, seed: int, loss: float = 0.0) -> None:
        self.run = Simulation(seed)
        stand_ins.begin(self.run)
        self.cluster, self.network = Cluster(self.run), Network(self.run)
        self.cluster.create_topic("t", 2)
        for broker in range(3):
            # Late requests come before the retry: a late EndTxn could end the next transaction.
            self.network.of(broker).loss, self.network.of(broker).late_ms = loss, (0.0, 10.0)
        self.reports: list[int | None] = []

    def producer(self, name: str = "p", **config: object) -> Producer:
        connection = Connection(Process(self.run, name), self.cluster, self.network, self.run, name)
        return Producer(connection, self.run, {key.replace("_", "."): value for key, value in config.items()})

    def in_thread(self, main: Callable[[], object], until_ms: float = 600_000) -> None:
        thread = Process(self.run, "main").start_thread(main, "main")
        self.run.run(until_ms, lambda: thread.is_over)
        assert thread.is_over
        if thread.failure is not None:
            raise thread.failure

    def reported(self, error: KafkaError | None, _message: object) -> None:
        self.reports.append(None if error is None else error.code())

    def until_answered(self, call: Callable[[float], object]) -> None:
        while True:
            try:
                call(5.0)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
            else:
                return

    def stored(self, *, committed: bool = True) -> list[int]:
        logs = [self.cluster.log_of(("t", number)) for number in range(2)]
        return sorted(
            int(one.payload.value or b"") for log in logs for one in log.read(0, 10_000, committed=committed)[0]
        )


def test_what_is_reported_is_stored_once_and_in_order_through_lost_requests_and_answers() -> None:
    for seed in range(10):
        bench = Bench(seed, loss=0.3)

        def main(bench: Bench = bench) -> None:
            producer = bench.producer()
            for number in range(50):
                producer.produce("t", value=b"%d" % number, key=b"k", on_delivery=bench.reported)
                producer.poll(0.01)
            assert producer.flush(200) == 0

        bench.in_thread(main)
        assert bench.reports == [None] * 50
        assert bench.stored() == list(range(50))


def test_a_refused_batch_and_a_time_out_are_reported_and_the_next_records_are_stored() -> None:
    bench = Bench(1)
    bench.cluster.refuses = lambda _where, batch: (
        KafkaError.MSG_SIZE_TOO_LARGE if any(one.value == b"0" for one in batch.payloads) else None
    )

    def main() -> None:
        producer = bench.producer(delivery_timeout_ms=1_000)
        for number in range(3):
            if number == 1:
                bench.network.of(bench.cluster.leader_of(producer.queue.partition_for("t", b"k"))).is_away = True
            producer.produce("t", value=b"%d" % number, key=b"k", on_delivery=bench.reported)
            producer.flush(60)
            for broker in range(3):
                bench.network.of(broker).is_away = False

    bench.in_thread(main)
    assert bench.reports == [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._MSG_TIMED_OUT, None]
    assert bench.stored() == [2]


def test_a_transaction_is_all_or_nothing_and_a_fenced_producer_can_do_nothing_more() -> None:
    for seed in range(10):
        bench = Bench(seed, loss=0.2)

        def main(bench: Bench = bench) -> None:
            first = bench.producer("first", transactional_id="id", transaction_timeout_ms=600_000)
            bench.until_answered(first.init_transactions)
            for begin, end in ((0, first.commit_transaction), (10, first.abort_transaction)):
                first.begin_transaction()
                for number in range(begin, begin + 10):
                    first.produce("t", value=b"%d" % number, key=b"%d" % number)
                first.flush(100)
                bench.until_answered(end)
            first.begin_transaction()
            first.produce("t", value=b"99")
            first.flush(100)
            second = bench.producer("second", transactional_id="id")
            bench.until_answered(second.init_transactions)
            try:
                bench.until_answered(first.commit_transaction)
            except KafkaException as failure:
                bench.reports.append(failure.args[0].code())

        bench.in_thread(main)
        assert bench.reports == [KafkaError._FENCED], seed
        assert bench.stored() == list(range(10))
        assert bench.stored(committed=False)[:11] == list(range(11))


def test_records_that_time_out_make_nothing_be_stored_twice_and_nothing_wait_for_ever() -> None:
    failed = 0
    for seed in range(20):
        bench = Bench(seed, loss=0.6)

        def main(bench: Bench = bench) -> None:
            producer = bench.producer(delivery_timeout_ms=2_000)
            for number in range(60):
                producer.produce("t", value=b"%d" % number, key=b"%d" % (number % 7), on_delivery=bench.reported)
                producer.poll(0.05)
            assert producer.flush(120) == 0

        bench.in_thread(main)
        assert len(bench.reports) == 60
        failed += sum(code is not None for code in bench.reports)
        assert len(set(bench.stored())) == len(bench.stored())
    assert failed

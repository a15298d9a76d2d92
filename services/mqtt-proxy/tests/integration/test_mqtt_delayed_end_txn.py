"""A commit or abort that arrives late, or whose answer is lost, affects no other transaction.

jepsen.io/analyses/bufstream-0.1.0 describes the fault for Kafka's protocol before transactions v2 (KIP-890), which
librdkafka does not speak. `docs/results/mqtt-proxy-delayed-endtxn.txt` holds what was seen.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
from kafka_gate import KafkaGate, Loss
from mqtt_world import WAIT_S

from isotherm.mqtt_proxy.delivery.transactional_writer import RETRY_BACKOFF_MS, TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.kafka_clients import build_outcome_consumer
from isotherm.mqtt_proxy.sessions.recovery import end_offsets, is_committed, read_to_end
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import KafkaSettings
from isotherm.stack.servers.kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.faults]

FENCED_CODES = {47, 90}
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED."""
MOMENTS = ("before the next transaction", "in the next transaction", "at the end")
"""When a delayed request reaches the broker."""


class Topics:
    """A topic of readings and one that stands for the sessions topic, and what a read_committed reader finds."""

    def __init__(self, kafka: Kafka) -> None:
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self._admin = clients.admin(self.settings, "test")
        name = uuid.uuid4().hex[:8]
        self.readings, self.sessions = f"readings-{name}", f"sessions-{name}"
        made = [NewTopic(self.readings, 2, config={"max.message.bytes": "1000"}), NewTopic(self.sessions, 2)]
        for future in self._admin.create_topics(made).values():
            future.result()

    def visible(self, topic: str) -> list[bytes]:
        """The values of all records that are committed, once every transaction is decided."""
        consumer = clients.consumer_to_the_end(self.settings, f"reader-{topic}")
        try:
            ends = end_offsets(self._admin, topic)
            return [message.value() or b"" for message in read_to_end(consumer, topic, ends, Stop())]
        finally:
            consumer.close()

    def forget(self, offset: int) -> None:
        """Delete the records of partition 0 of the sessions topic before `offset`."""
        for future in self._admin.delete_records([TopicPartition(self.sessions, 0, offset)]).values():
            future.result()


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    return Topics(kafka)


@pytest.fixture
def gate(kafka: Kafka) -> Iterator[KafkaGate]:
    made = KafkaGate(kafka.bootstrap_servers)
    yield made
    made.close()


def settings_of(gate: KafkaGate) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=gate.bootstrap_servers)


def test_nobody_says_that_a_record_was_aborted_which_kafka_has_deleted(topics: Topics) -> None:
    producer = clients.producer(topics.settings, "plain")
    for value in range(3):
        producer.produce(topics.sessions, b"%d" % value, partition=0)
    assert producer.flush(WAIT_S) == 0
    asked = partial(is_committed, partial(build_outcome_consumer, topics.settings, "outcome"), is_over=lambda: False)
    assert asked((topics.sessions, 0, 1))
    topics.forget(2)
    with pytest.raises(KafkaException):
        asked((topics.sessions, 0, 1))
    assert asked((topics.sessions, 0, 2))
    assert topics.visible(topics.sessions) == [b"2"], "a reader begins where the topic begins now"


@pytest.mark.parametrize("first", ["commit", "abort"])
def test_plain_librdkafka_reports_success_and_a_late_request_ends_the_next_transaction(
    topics: Topics, gate: KafkaGate, first: str
) -> None:
    """Why we replace the producer. When this fails, librdkafka has learned KIP-890 and ADR 0016 can be thought over."""
    producer = clients.producer(settings_of(gate), "plain", transactional_id=topics.readings)
    producer.init_transactions(WAIT_S)

    def produce(value: bytes, partition: int) -> None:
        producer.produce(topics.readings, value, partition=partition)
        assert producer.flush(WAIT_S) == 0

    producer.begin_transaction()
    produce(b"first", 0)
    gate.lose_end_txn(Loss.REQUEST)
    getattr(producer, f"{first}_transaction")(WAIT_S)
    assert gate.end_txns == 2, "it was sent again, and nothing tells the application"

    producer.begin_transaction()
    produce(b"second, early", 0)
    gate.deliver_delayed()
    assert gate.late_answers == [0]
    produce(b"second, late", 1)
    if first == "commit":
        # The application thinks better of it: too late for one half.
        producer.abort_transaction(WAIT_S)
        assert sorted(topics.visible(topics.readings)) == [b"first", b"second, early"], "an aborted record is visible"
    else:
        producer.commit_transaction(WAIT_S)
        assert topics.visible(topics.readings) == [b"second, late"], "a committed record is lost"


class Rounds:
    """Transactions with a fault of their EndTxn, in turn, and the records that must be visible afterwards."""

    def __init__(self, topics: Topics, gate: KafkaGate, seed: int) -> None:
        self._topics, self._gate = topics, gate
        self._random = random.Random(seed)
        self.stored: Counter[bytes] = Counter()
        self.lost = 0
        self.replaced = 0
        self.outcomes: Counter[WriteResult] = Counter()
        # The retry of an EndTxn comes after RETRY_BACKOFF_MS: one of them sees it, the other gives up before, so early
        # that also a busy machine fences the producer before its retry.
        self._writers = [self._writer(f"{topics.readings}-{index}", time) for index, time in enumerate((5.0, 0.1))]

    def _writer(self, transactional_id: str, end_timeout_s: float) -> TransactionalWriter:
        def count() -> None:
            self.replaced += 1

        make_consumer = partial(build_outcome_consumer, self._topics.settings, "outcome")

        def found(*place: object) -> bool:
            return is_committed(make_consumer, place, lambda: False)  # type: ignore[arg-type]  # passed on

        writer = TransactionalWriter(
            partial(_producer, settings_of(self._gate), transactional_id),
            timeout_s=60,
            end_timeout_s=end_timeout_s,
            is_committed=found,
            on_replacing=lambda _reason: None,
            on_replaced=count,
        )
        writer.open(Stop())
        return writer

    def run(self, rounds: int) -> None:
        """This many transactions with a lost EndTxn, each fault in turn, each followed by one or two without."""
        ways = itertools.cycle(itertools.product(self._writers, (False, True), Loss, MOMENTS))
        for number, (writer, poisoned, loss, moment) in zip(range(rounds), ways, strict=False):
            self._gate.lose_end_txn(loss)
            self.lost += 1
            self._write(writer, f"{number} lost", poisoned=poisoned)
            if moment == MOMENTS[0]:
                self._gate.deliver_delayed()
            elif moment == MOMENTS[1]:
                self._gate.deliver_delayed_in_the_next_transaction()
            for follower in range(self._random.choice((1, 2))):
                self._write(writer, f"{number} follower {follower}", poisoned=self._random.random() < 0.3)
        self._gate.deliver_delayed()

    def _write(self, writer: TransactionalWriter, name: str, *, poisoned: bool) -> None:
        values = [f"{name}, {index}".encode() for index in range(3)]
        records = [ProducerRecord(self._topics.readings, value, value, []) for value in values]
        if poisoned:
            records.insert(1, ProducerRecord(self._topics.readings, "poison", random.randbytes(2000), []))
        state = f"{name}, state".encode()
        outcome = writer.write([*records, ProducerRecord(self._topics.sessions, "client", state, [])])
        self.outcomes[outcome] += 1
        assert (outcome is WriteResult.ABORTED_RECORD_AT_FAULT) == poisoned
        if outcome is WriteResult.COMMITTED:
            self.stored.update([*values, state])


def _producer(settings: KafkaSettings, transactional_id: str) -> Producer:
    return clients.producer(
        settings,
        transactional_id,
        transactional_id=transactional_id,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        retry_backoff_max_ms=RETRY_BACKOFF_MS,
    )


def run_rounds(kafka: Kafka, rounds: int) -> tuple[Counter[WriteResult], str]:
    """Every transaction has the outcome that its writer reported, whatever arrives late; returns them and figures."""
    topics, gate = Topics(kafka), KafkaGate(kafka.bootstrap_servers)
    try:
        made = Rounds(topics, gate, seed=rounds)
        made.run(rounds)
    finally:
        gate.close()
    assert made.replaced >= made.lost == rounds
    assert len(gate.late_answers) == rounds // 2, "one half of the requests arrived late"
    assert set(gate.late_answers) <= FENCED_CODES | {0}
    visible = Counter(topics.visible(topics.readings)) + Counter(topics.visible(topics.sessions))
    assert visible == made.stored
    outcomes = {outcome.name: count for outcome, count in made.outcomes.items()}
    late = Counter(gate.late_answers)
    return made.outcomes, f"{rounds} lost, {made.replaced} replaced, {outcomes}, late ones answered {late}"


def test_a_late_or_unanswered_end_txn_touches_no_other_transaction(kafka: Kafka) -> None:
    outcomes, _ = run_rounds(kafka, rounds=24)
    # Whether a commit whose request was lost ends as aborted is decided by a race.
    assert outcomes.keys() >= {WriteResult.COMMITTED, WriteResult.ABORTED_RECORD_AT_FAULT}


@pytest.mark.long
def test_a_thousand_late_or_unanswered_end_txns_touch_no_other_transaction(kafka: Kafka) -> None:
    # Most of a round is waiting, so several run beside each other, each with a relay of its own.
    total: Counter[WriteResult] = Counter()
    with ThreadPoolExecutor(7) as threads:
        for outcomes, figures in threads.map(partial(run_rounds, kafka), [144] * 7):
            total += outcomes
            print(figures)  # noqa: T201  # for the results
    assert total.keys() == set(WriteResult)

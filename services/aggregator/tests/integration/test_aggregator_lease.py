"""One aggregator of a name writes: leases and journals at a real Kafka, which are given up, lost, and taken over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, TopicPartition

from isotherm.aggregator.kafka import writer_lease
from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka.clock_topic import Clock
from isotherm.aggregator.kafka.writer_journal import LeaseLostError, WriterJournal
from isotherm.aggregator.kafka.writer_lease import WriterLease
from isotherm.aggregator.kafka_clients import open_broker, open_journal, open_lease
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings
from isotherm.stack.servers.kafka import Kafka

pytestmark = pytest.mark.integration

_TIMEOUT_S = 4 * writer_lease.SESSION_S


@pytest.fixture
def settings(kafka: Kafka, request: pytest.FixtureRequest) -> AggregatorSettings:
    """Settings with a name of their own, whose topics are there."""
    given = AggregatorSettings(
        name=f"lease-{request.node.name}",
        checkpoint_dir="c",
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers),
    )
    broker = open_broker(given.kafka)
    for _ in range(2):
        broker.ensure_own_topics(given.own_topics)
    broker.close()
    return given


@pytest.fixture
def opened(settings: AggregatorSettings) -> Iterator[Callable[..., WriterLease]]:
    """Opens leases of one name, which are closed at the end."""
    leases: list[WriterLease] = []

    def start(end_process: Callable[[], None] = lambda: None) -> WriterLease:
        lease = open_lease(settings, end_process)
        leases.append(lease)
        lease.start()
        return lease

    yield start
    for lease in leases:
        lease.close()


@pytest.fixture
def journals(settings: AggregatorSettings) -> Iterator[tuple[WriterJournal, WriterJournal]]:
    """The journals of two processes, one of which does not know when the other one begins."""
    both = open_journal(settings, "one"), open_journal(settings, "other")
    yield both
    for journal in both:
        journal.close()


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait, and return for how long."""
    begun_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < begun_s + _TIMEOUT_S
        pause.wait(0.05)  # there is no way to be told
    return time.monotonic() - begun_s


def values(settings: AggregatorSettings, topic: str) -> list[bytes]:
    """What a read_committed reader of a topic gets."""
    consumer = clients.consumer_to_the_end(settings.kafka, "reader")
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            found.append(message.value() or b"")
    finally:
        consumer.close()


def test_the_second_one_waits_and_begins_at_once_when_the_first_releases(opened: Callable[..., WriterLease]) -> None:
    first = opened()
    wait_until(lambda: first.is_held)
    tenure = first.tenure()
    tenure.verify()
    second = opened()
    wait_until(lambda: "held by" in second.reason())
    # The first one keeps the lease through the rebalance that the second one causes.
    assert first.is_held
    with pytest.raises(LeaseLostError, match=r"the lease is not held: .*held by .*epoch 1"):
        second.tenure()
    first.close()
    assert wait_until(lambda: second.is_held) < writer_lease.SESSION_S
    assert second.tenure().epoch == tenure.epoch + 1
    with pytest.raises(LeaseLostError):
        tenure.note("windows", {"batch": 1})


def test_kafka_refuses_what_a_former_holder_writes(
    settings: AggregatorSettings, journals: tuple[WriterJournal, WriterJournal]
) -> None:
    """However long it stood still, and whatever it believes: nothing here measures time."""
    former, newer = journals
    assert former.claim() == 1
    former.note(1, "windows", {"batch": 7})
    assert newer.claim() == 2
    assert newer.noted("windows") == {"batch": 7, "epoch": 1}
    assert former.is_claimed, "it does not know"
    with pytest.raises(LeaseLostError, match="another process has begun to write"):
        former.note(1, "windows", {"batch": 8})
    with pytest.raises(BrokerError, match="claimed again"):
        former.send(1, settings.clock_topic, b"tick", b"1")
    newer.note(2, "windows", {"batch": 8, "of": "newer"})
    newer.send(2, settings.clock_topic, b"tick", b"2")
    former.follow()
    assert former.noted("windows") == {"batch": 8, "of": "newer", "epoch": 2}
    with pytest.raises(LeaseLostError, match="the lease of epoch 1 is over"):
        former.note(1, "windows", {"batch": 9})
    assert values(settings, settings.clock_topic) == [b"2"]


def test_a_tick_that_a_former_holder_had_begun_is_not_read(
    settings: AggregatorSettings, journals: tuple[WriterJournal, WriterJournal]
) -> None:
    """It stood still between the record and the end of its transaction."""
    former, newer = journals
    former.claim()
    producer = former._producer
    assert producer is not None
    producer.begin_transaction()
    producer.produce(settings.clock_topic, key=b"tick", value=b"1", partition=0)
    assert producer.flush(30) == 0
    newer.claim()
    newer.send(2, settings.clock_topic, b"tick", b"2")
    assert values(settings, settings.clock_topic) == [b"2"]


def test_a_failed_write_is_followed_by_a_claim_of_the_same_epoch(journals: tuple[WriterJournal, WriterJournal]) -> None:
    journal, other = journals
    assert journal.claim() == 1
    journal.drop()
    with pytest.raises(BrokerError):
        journal.note(1, "windows", {"batch": 1})
    assert journal.claim() == 1
    journal.note(1, "windows", {"batch": 1})
    journal.release()
    assert other.claim() == 2
    assert other.noted("windows") == {"batch": 1, "epoch": 1}


def test_one_that_goes_on_when_another_has_begun_is_ended(
    settings: AggregatorSettings,
    opened: Callable[..., WriterLease],
    journals: tuple[WriterJournal, WriterJournal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_lease, "HALT_S", 1.0)
    ended = threading.Event()
    lease = opened(ended.set)
    wait_until(lambda: lease.is_held)
    tenure = lease.tenure()
    lease.writing_has_begun(tenure)
    # Another one is the holder for a moment that this one does not notice.
    assert journals[0].claim() == 2
    with pytest.raises(LeaseLostError):
        Clock(settings.clock_topic, tenure).tick(1)
    wait_until(lambda: lease.is_held and lease.tenure().epoch == 3)
    assert tenure.is_over
    with pytest.raises(LeaseLostError):
        tenure.verify()
    assert ended.wait(_TIMEOUT_S), "it has the lease again, but what it runs is of the tenure before"


@pytest.mark.long
@pytest.mark.faults
def test_an_outage_of_kafka_ends_nothing(kafka: Kafka, opened: Callable[..., WriterLease]) -> None:
    ended = threading.Event()
    lease = opened(ended.set)
    wait_until(lambda: lease.is_held)
    tenure = lease.tenure()
    lease.writing_has_begun(tenure)
    kafka.kill()
    try:
        assert wait_until(lambda: not lease.is_held) > writer_lease.SESSION_S / 2
        with pytest.raises(LeaseLostError):
            tenure.note("windows", {"batch": 1})
    finally:
        kafka.start()
        kafka.wait_ready()
    wait_until(lambda: lease.is_held)
    assert tenure.is_held, "nobody else has held the lease, so this is the same tenure"
    wait_until(lambda: lease._journal.is_claimed)
    tenure.note("windows", {"batch": 1})
    assert not ended.is_set()

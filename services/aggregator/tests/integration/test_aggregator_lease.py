"""One aggregator of a name writes: two leases at a real Kafka, which are given up, lost, and taken over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from isotherm.aggregator.kafka import writer_lease
from isotherm.aggregator.kafka.writer_lease import LeaseLostError, WriterLease
from isotherm.aggregator.kafka_clients import open_broker, open_lease
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit.settings import KafkaSettings
from isotherm.stack.servers.kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

_TIMEOUT_S = 4 * writer_lease.SESSION_S


@pytest.fixture
def opened(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Callable[..., WriterLease]]:
    """Opens leases of one name, which are closed at the end."""
    settings = AggregatorSettings(
        name=f"lease-{request.node.name}",
        checkpoint_dir="c",
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers),
    )
    broker = open_broker(settings.kafka)
    for _ in range(2):
        broker.ensure_clock_topic(settings.clock_topic)
    broker.close()
    leases: list[WriterLease] = []

    def start(end_writing: Callable[[], None] = lambda: None) -> WriterLease:
        lease = open_lease(settings, end_writing)
        leases.append(lease)
        lease.start()
        return lease

    yield start
    for lease in leases:
        lease.close()


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait, and return for how long."""
    begun_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < begun_s + _TIMEOUT_S
        pause.wait(0.05)  # there is no way to be told
    return time.monotonic() - begun_s


def test_the_second_one_waits_and_begins_at_once_when_the_first_releases(opened: Callable[..., WriterLease]) -> None:
    first = opened()
    wait_until(lambda: first.is_held)
    first.verify()
    second = opened()
    wait_until(lambda: "held by" in second.reason())
    # The first one keeps the lease through the rebalance that the second one causes.
    assert first.is_held
    assert not second.is_assigned
    with pytest.raises(LeaseLostError, match=r"the only aggregator with the clock .*held by"):
        second.verify()
    first.close()
    assert wait_until(lambda: second.is_held) < writer_lease.SESSION_S
    assert second.other_holders == 1
    assert not first.is_held


def test_one_that_leaves_without_a_release_is_given_time_to_stop(opened: Callable[..., WriterLease]) -> None:
    """Kafka gives the lease on at once, but what the former holder has started may still be stopping."""
    first = opened()
    wait_until(lambda: first.is_held)
    first._closing.set()
    first._thread.join()
    second = opened()
    wait_until(lambda: second.is_assigned)
    assert not second.is_held
    assert "did not release" in second.reason()
    assert wait_until(lambda: second.is_held) > writer_lease.TAKEOVER_S / 2
    assert second.other_holders == 1


def test_an_outage_of_kafka_ends_writing_until_it_is_back(kafka: Kafka, opened: Callable[..., WriterLease]) -> None:
    killed = threading.Event()
    lease = opened(killed.set)
    wait_until(lambda: lease.is_held)
    lease.writing_has_begun()
    kafka.kill()
    try:
        assert wait_until(lambda: not lease.is_held) > writer_lease.SESSION_S / 2
        with pytest.raises(LeaseLostError):
            lease.verify()
        assert killed.wait(_TIMEOUT_S), "nobody said that the queries have ended, so the JVM is killed"
    finally:
        kafka.start()
        kafka.wait_ready()
    wait_until(lambda: lease.is_held)
    assert lease.other_holders == 0

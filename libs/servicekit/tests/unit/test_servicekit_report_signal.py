"""Delivery reports of a real librdkafka producer wake their reader, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from isotherm.servicekit.kafka.clients import PRODUCER_DEFAULTS
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.producer.report_signal import ReportSignal, is_available

_FLUSH_S = 30.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has eventfd(2)")


class CountingProducer(Producer):
    """A producer with a broker of its own in its process (librdkafka's mock cluster), which counts its polls."""

    def __init__(self, **properties: Any) -> None:
        mock = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
        super().__init__({**PRODUCER_DEFAULTS, **mock, **properties})
        self.polls = 0

    def poll(self, timeout: float = -1) -> int:
        self.polls += 1
        return super().poll(timeout)


@pytest.fixture
def signal() -> Iterator[ReportSignal]:
    signal = ReportSignal()
    yield signal
    signal.close()


def is_readable(signal: ReportSignal) -> bool:
    return bool(select.select([signal.descriptor], [], [], 0)[0])


def store(producer: Producer) -> None:
    producer.produce("t", b"v")
    assert producer.flush(_FLUSH_S) == 0


def test_installed_confluent_kafka_is_the_verified_one() -> None:
    """When it fails after an update: check the other tests with the new version, and name it in the module."""
    assert is_available()


def test_report_is_signalled_until_it_is_cleared(signal: ReportSignal) -> None:
    producer = CountingProducer()
    store(producer)
    assert not is_readable(signal)

    signal.attach(producer)
    store(producer)
    assert is_readable(signal)

    signal.clear()
    assert not is_readable(signal)
    signal.clear()
    store(producer)
    assert is_readable(signal)


def test_detached_producer_signals_nothing(signal: ReportSignal) -> None:
    one, other = CountingProducer(), CountingProducer()
    signal.attach(one)
    signal.attach(other)
    signal.detach(one)
    store(one)
    assert not is_readable(signal)

    store(other)
    assert is_readable(signal)


async def test_loop_polls_only_when_there_are_reports() -> None:
    # 500 polls while the record lingers, if the loop did not wait for the report.
    broker = CountingProducer(**{"linger.ms": 500})
    producer = LoopProducer(broker)
    await producer.send("t", key=None, value=b"v")
    assert broker.polls < 50
    producer.close()


async def test_burst_is_reported_in_lumps() -> None:
    broker = CountingProducer()
    producer = LoopProducer(broker)
    reports: list[KafkaError | None] = []
    for number in range(5_000):
        producer.produce("t", key=None, value=str(number).encode(), on_delivery=reports.append)
    await producer.drain()
    assert reports == [None] * 5_000
    assert broker.polls < 1_000
    producer.close()


async def test_closed_producer_frees_its_descriptor() -> None:
    producer = LoopProducer(CountingProducer())
    await producer.send("t", key=None, value=b"v")
    signal = producer._signal
    assert signal is not None

    producer.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(signal.descriptor)
    await producer.send("t", key=None, value=b"without a signal")


async def test_loop_without_signals_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.servicekit.producer.delivery.is_available", lambda: False)
    broker = CountingProducer(**{"linger.ms": 100})
    producer = LoopProducer(broker)
    await asyncio.wait_for(producer.send("t", key=None, value=b"v"), _FLUSH_S)
    assert producer._signal is None
    assert broker.polls > 1

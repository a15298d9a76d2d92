"""How the driver sends the records of a small batch, with a producer that reports what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka.output_producer import OutputProducer, OutputRefusedError
from isotherm.aggregator.supervision.supervised_query import Cause, cause_of

RECORDS = [("out", b"k1", b"v1"), ("out", b"k2", b"v2")]


@dataclass
class FakeProducer:
    """A producer that delivers everything, or fails with `error`, or gives no answer."""

    error: KafkaError | None = None
    is_silent: bool = False
    full: int = 0
    """How often its queue is full."""
    stored: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    is_purged: bool = False
    _reports: list[Callable[[], None]] = field(default_factory=list)

    headers: list[Any] = field(default_factory=list)

    def produce(
        self, topic: str, value: bytes, key: bytes, headers: list[Any], on_delivery: Callable[[Any, Any], None]
    ) -> None:
        self.headers = headers
        if self.full:
            self.full -= 1
            raise BufferError
        if self.error is None and not self.is_silent:
            self.stored.append((topic, key, value))
        self._reports.append(lambda: on_delivery(self.error, None))

    def poll(self, _timeout_s: float) -> int:
        return 0

    def flush(self, _timeout_s: float) -> int:
        if self.is_silent:
            return len(self._reports)
        for report in self._reports:
            report()
        self._reports = []
        return 0

    def purge(self) -> None:
        self.is_purged = True


def output(*producers: FakeProducer) -> OutputProducer:
    """An output that makes these producers, in order."""
    waiting = list(producers)
    return OutputProducer(lambda: cast(Producer, waiting.pop(0)))


def test_everything_is_stored_when_it_returns_and_the_producer_is_kept() -> None:
    producer = FakeProducer(full=3)
    sender = output(producer)
    sender.send(RECORDS, {"name": b"text"})
    assert producer.headers == [("name", b"text")]
    sender.send(RECORDS[:1])
    assert producer.headers == []
    assert producer.stored == [*RECORDS, RECORDS[0]]


@pytest.mark.parametrize(
    "first", [FakeProducer(error=KafkaError(KafkaError._MSG_TIMED_OUT)), FakeProducer(is_silent=True)]
)
def test_an_outage_is_transient_and_the_next_try_begins_anew(first: FakeProducer) -> None:
    second = FakeProducer()
    sender = output(first, second)
    with pytest.raises(BrokerError, match="did not store the windows") as failure:
        sender.send(RECORDS)
    assert first.is_purged
    trace = f"{type(failure.value).__module__}.{type(failure.value).__qualname__}: {failure.value}"
    assert cause_of(f"An exception was raised by the Python Proxy. Return Message: {trace}") is Cause.UNAVAILABLE
    sender.send(RECORDS)
    assert second.stored == RECORDS


def test_a_refused_record_ends_the_query_for_good() -> None:
    refused = FakeProducer(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(OutputRefusedError) as failure:
        output(refused).send(RECORDS)
    assert cause_of(repr(failure.value)) is Cause.FAILURE


def test_a_fenced_producer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    fatal, second = FakeProducer(), FakeProducer()

    def raise_fatal(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    monkeypatch.setattr(fatal, "produce", raise_fatal)
    sender = output(fatal, second)
    with pytest.raises(BrokerError):
        sender.send(RECORDS)
    sender.send(RECORDS)
    assert second.stored == RECORDS

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from isotherm.servicekit.producer.delivery import DeliveryFailedError, LoopProducer, QueueFullError


class ScriptedProducer:
    """A producer that reports when the test says so, from `poll`, as librdkafka does."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self.due: list[tuple[Callable[[KafkaError | None, Any], None], KafkaError | None]] = []
        self.refusals: list[Exception] = []
        self.polls = 0

    def produce(self, topic: str, *, on_delivery: Callable[[KafkaError | None, Any], None], **_rest: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.waiting.append(on_delivery)

    def report(self, error: KafkaError | None = None) -> None:
        self.due.append((self.waiting.pop(0), error))

    def poll(self, _timeout_s: float) -> int:
        self.polls += 1
        due, self.due = self.due, []
        for callback, error in due:
            callback(error, None)
        return len(due)


@pytest.fixture
def scripted() -> ScriptedProducer:
    return ScriptedProducer()


@pytest.fixture
def producer(scripted: ScriptedProducer) -> LoopProducer:
    return LoopProducer(cast(Producer, scripted), max_outstanding=2)


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until the condition holds."""
    while not condition():  # noqa: ASYNC110 - the scripted producer has no event to wait for
        await asyncio.sleep(0)


async def test_report_comes_on_the_loop(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    reports: list[KafkaError | None] = []
    producer.produce("t", key="k", value=b"v", on_delivery=reports.append)
    assert producer.outstanding == 1

    scripted.report()
    await until(lambda: reports)

    assert reports == [None]
    assert producer.outstanding == 0


async def test_idle_producer_is_not_polled(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    scripted.report()
    await producer.drain()
    polls = scripted.polls

    for _ in range(20):
        await asyncio.sleep(0)

    assert scripted.polls == polls


async def test_bound_on_outstanding_records_holds(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    for _ in range(2):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)

    with pytest.raises(QueueFullError):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    assert len(scripted.waiting) == 2


async def test_send_waits_for_room_and_returns_when_kafka_has_the_record(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    sends = [asyncio.create_task(producer.send("t", key=None, value=b"v")) for _ in range(3)]
    await until(lambda: len(scripted.waiting) == 2)

    scripted.report()
    await until(lambda: len(scripted.waiting) == 2)
    scripted.report()
    scripted.report()

    await asyncio.gather(*sends)


async def test_send_tells_why_kafka_refused(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))
    await until(lambda: scripted.waiting)
    scripted.report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    with pytest.raises(DeliveryFailedError) as refused:
        await sending
    assert refused.value.error.code() == KafkaError.MSG_SIZE_TOO_LARGE


async def test_send_outlasts_librdkafka_s_own_full_queue(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    scripted.refusals = [BufferError(), BufferError()]
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))

    await until(lambda: scripted.waiting)
    scripted.report()

    await sending


async def test_record_that_cannot_be_produced_at_all_fails_at_once(
    producer: LoopProducer, scripted: ScriptedProducer
) -> None:
    scripted.refusals = [KafkaException(KafkaError(KafkaError._FATAL))]

    with pytest.raises(DeliveryFailedError):
        await producer.send("t", key=None, value=b"v")
    assert producer.outstanding == 0


async def test_drain_returns_when_nothing_is_outstanding(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    for _ in range(2):
        producer.produce("t", key=None, value=b"v", on_delivery=lambda _error: None)
    draining = asyncio.create_task(producer.drain())

    scripted.report()
    await until(lambda: producer.outstanding == 1)
    assert not draining.done()
    scripted.report()

    await draining


async def test_sender_that_gave_up_harms_nobody(producer: LoopProducer, scripted: ScriptedProducer) -> None:
    sending = asyncio.create_task(producer.send("t", key=None, value=b"v"))
    await until(lambda: scripted.waiting)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)

    scripted.report()
    await producer.drain()

    assert producer.outstanding == 0


def batch(size: int) -> list[tuple[str, bytes | str | None, bytes | None, list[tuple[str, bytes | str | None]]]]:
    return [("t", None, b"v", [])] * size


async def test_records_that_belong_together_have_one_report(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted)), cast(list[KafkaError | None], [])
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    producer.produce_all(batch(3), reports.append)
    assert producer.outstanding == 3

    scripted.report()
    scripted.report(refused)
    await until(lambda: scripted.polls > 1)
    assert not reports

    scripted.report()
    await until(lambda: reports)

    assert reports == [refused]
    assert producer.outstanding == 0


async def test_what_was_handed_over_is_waited_for_when_the_rest_cannot_be(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted), max_outstanding=2), cast(list[KafkaError | None], [])
    producer.produce_all(batch(4), reports.append)
    assert (producer.outstanding, len(scripted.waiting), reports) == (2, 2, [])

    scripted.report()
    scripted.report()
    await until(lambda: reports)

    assert [error.code() for error in reports if error] == [KafkaError._QUEUE_FULL]
    assert producer.outstanding == 0


async def test_a_first_record_that_cannot_be_produced_is_reported_at_once(scripted: ScriptedProducer) -> None:
    producer, reports = LoopProducer(cast(Producer, scripted)), cast(list[KafkaError | None], [])
    scripted.refusals.append(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))

    producer.produce_all(batch(2), reports.append)

    assert [error.code() for error in reports if error] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert producer.outstanding == 0

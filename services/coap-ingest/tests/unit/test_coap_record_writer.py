"""The writer of requests' records: its report, its timeout, and its refusal while Kafka does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, Producer
from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.ingest.outlets import KafkaRecord
from isotherm.coap_ingest.listener.record_writer import NotStoredError, RecordWriter
from isotherm.coap_ingest.metrics import Metrics
from isotherm.servicekit.producer.delivery import LoopProducer


class Answering:
    """A producer that reports each record as `answers` says: stored, refused, or (the rest) not at all."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.waiting: list[Callable[..., None]] = []
        self._reports: list[Callable[[], None]] = []

    def produce(self, _topic: str, on_delivery: Callable[..., None], **_: object) -> None:
        if not self.answers:
            self.waiting.append(on_delivery)
            return
        code = self.answers.pop(0)
        if code == KafkaError._QUEUE_FULL:
            raise BufferError
        self._reports.append(lambda: on_delivery(None if code is None else KafkaError(code), None))

    def poll(self, _timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)

    def __len__(self) -> int:
        return len(self.waiting) + len(self._reports)


RECORD = KafkaRecord("t", "k", b"v", [])


def made(kafka: Answering, timeout_ms: int, stalled_after_ms: float) -> tuple[RecordWriter, CollectorRegistry]:
    registry = CollectorRegistry()
    producer = LoopProducer(cast("Producer", kafka))
    return RecordWriter(producer, Metrics(registry), timeout_ms=timeout_ms, stalled_after_ms=stalled_after_ms), registry


def produced(registry: CollectorRegistry) -> float:
    return registry.get_sample_value("isotherm_coap_ingest_records_produced_total", {"topic": "t"}) or 0.0


async def test_a_request_is_stored_when_all_of_its_records_are() -> None:
    writer, registry = made(Answering(None, None), 60_000, 30_000)
    await writer.write([RECORD, RECORD])
    assert produced(registry) == 2
    await writer.write([])
    writer.close()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "not stored: Broker: Topic authorization failed"),
        (KafkaError._QUEUE_FULL, "not stored: too many records wait for Kafka"),
    ],
)
async def test_one_refused_record_refuses_the_request_and_the_others_are_counted(code: int, text: str) -> None:
    writer, registry = made(Answering(None, code, None), 60_000, 30_000)
    with pytest.raises(NotStoredError, match=text):
        await writer.write([RECORD, RECORD, RECORD])
    assert produced(registry) == 2
    writer.close()


async def test_a_request_ends_at_its_timeout_and_a_late_report_is_still_counted() -> None:
    kafka = Answering()
    writer, registry = made(kafka, 20, 30_000)
    with pytest.raises(NotStoredError, match="not stored: Kafka does not answer"):
        await asyncio.wait_for(writer.write([RECORD]), 20)
    kafka.waiting[0](None, None)
    assert produced(registry) == 1
    writer.close()


async def test_while_a_record_waits_too_long_new_requests_are_refused_at_once_until_it_is_reported() -> None:
    kafka = Answering()
    writer, _ = made(kafka, 60_000, -1)
    reasons: list[str | None] = []
    writer.begin([RECORD], reasons.append)
    writer.begin([RECORD], reasons.append)
    assert reasons == ["Kafka does not answer"]
    assert len(kafka.waiting) == 1
    kafka.waiting.pop()(None, None)
    writer.begin([RECORD], reasons.append)
    assert reasons == ["Kafka does not answer", None]
    assert len(kafka.waiting) == 1
    writer.close()


async def test_after_close_nothing_is_reported() -> None:
    kafka = Answering()
    reasons: list[str | None] = []
    writer, _ = made(kafka, 60_000, 30_000)
    writer.begin([RECORD], reasons.append)
    writer.close()
    kafka.waiting[0](None, None)
    assert reasons == []

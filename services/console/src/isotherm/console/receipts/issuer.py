"""Issues receipts: reads the readings of an hour again, and signs what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.connector.receipts.reading_set import HourReading, ReadingSet, entry_of
from isotherm.connector.receipts.receipt import HOUR_MS, SCHEMA, TOPIC, Receipt
from isotherm.console.cluster.control_topics import ControlTopicWriter
from isotherm.console.errors import UnavailableError
from isotherm.console.receipts.hours import ReceiptHours, TopicHour
from isotherm.console.reconciliation.decoding import RecordDecoder, value_of
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_FAST_CLOCK_MS = 600_000
"""How far a device's clock may be ahead: its readings are appended before their event time."""
_LONGEST_WAIT_MS = 60_000
_REQUEST_S = 10.0
_PART = "receipts"


class ReceiptMetrics:
    """Counters and gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.issued = Counter("isotherm_receipts_issued", "Receipts that were issued.", ["topic"], registry=registry)
        self.missed = Counter(
            "isotherm_receipts_missed",
            "Hours that get no receipt, because Kafka has removed readings of them.",
            ["topic"],
            registry=registry,
        )
        self.behind_s = Gauge(
            "isotherm_receipts_behind_seconds",
            "How long the oldest hour without a receipt has been waiting for it.",
            registry=registry,
        )


class ReceiptIssuer:
    """Runs in a thread of its own, with a consumer for each hour that it reads."""

    def __init__(
        self,
        hours: ReceiptHours,
        key: Ed25519PrivateKey,
        writer: ControlTopicWriter,
        decoder: RecordDecoder,
        make_consumer: Callable[[], Consumer],
        open_findings: Callable[[str], int],
        health: Health,
        now_ms: Callable[[], int],
        metrics: ReceiptMetrics,
        *,
        timeout_s: float,
    ) -> None:
        """`make_consumer` makes one that reports partition ends; `health` says when `hours` knows all receipts.

        `open_findings` counts the open findings about a topic. `decoder` is used in no other thread.
        """
        self._hours, self._key, self._writer, self._decoder = hours, key, writer, decoder
        self._make_consumer, self._open_findings, self._health = make_consumer, open_findings, health
        self._now_ms, self._metrics, self._timeout_s = now_ms, metrics, timeout_s

    def _is_ready(self) -> bool:
        return "topics" not in self._health.problems()

    def run(self, stop: Stop) -> None:
        """Issue what is due, until the stop."""
        backoff, has_begun = Backoff(base_ms=1_000, cap_ms=60_000), False
        while not stop.is_set():
            wait_ms: float = _LONGEST_WAIT_MS
            try:
                if not has_begun and self._is_ready():
                    has_begun = True
                    self._hours.begin(self._now_ms())
                hour = self._hours.next(self._now_ms()) if self._is_ready() else None
                if hour is not None:
                    self.issue(hour, stop)
                    wait_ms = 0
                else:
                    wait_ms = min(wait_ms, self._hours.wait_ms(self._now_ms())) if self._is_ready() else 1_000
                backoff.reset()
                self._health.ready(_PART)
            except (UnavailableError, RegistryUnavailableError, OSError) as error:
                wait_ms = backoff.next_ms()
                self._health.not_ready(_PART, str(error))
                _log.warning("no receipt yet", reason=str(error), retry_in_ms=round(wait_ms))
            self._metrics.behind_s.set(self._hours.behind_ms(self._now_ms()) / 1_000)
            stop.wait(wait_ms / 1_000)

    def issue(self, hour: TopicHour, stop: Stop) -> None:
        """Issue the receipt of an hour, unless it would say the same as the last one.

        Raises UnavailableError, RegistryUnavailableError, OSError.
        """
        begun_s, known = time.monotonic(), self._hours.newest(hour)
        with translate_kafka_errors(), closing(self._make_consumer()) as consumer, ReadingSet() as readings:
            issued_ms = self._now_ms()
            spans = self._spans(consumer, hour)
            if spans is None:
                self._metrics.missed.labels(hour.topic).inc()
                _log.error(
                    "no receipt of an hour: Kafka has removed readings of it", topic=hour.topic, hour=hour.start_ms
                )
                self._hours.settle(hour, self._now_ms())
                return
            for message in consume_spans(consumer, hour.topic, spans, self._timeout_s):
                if stop.is_set():
                    return
                self._take(message, hour, readings)
            receipt = Receipt(
                topic=hour.topic,
                start_ms=hour.start_ms,
                revision=0 if known is None else known.revision + 1,
                records=readings.taken,
                parts=tuple(readings.parts()),
                unreconciled=self._open_findings(hour.topic),
                issued_ms=issued_ms,
            ).signed_by(self._key)
        if known is None or known.issued_ms > issued_ms or not receipt.has_same_readings(known):
            write(receipt, self._writer)
            self._hours.take(receipt)
            self._metrics.issued.labels(hour.topic).inc()
            _log.info(
                "receipt issued",
                topic=hour.topic,
                hour=hour.start_ms,
                revision=receipt.revision,
                readings=receipt.readings,
                seconds=round(time.monotonic() - begun_s, 3),
            )
        self._hours.settle(hour, self._now_ms())

    def _take(self, message: Message, hour: TopicHour, readings: ReadingSet) -> None:
        try:
            record = self._decoder.reading(value_of(message))
        except WireFormatError:
            # What nobody can decode is no reading in any store.
            return
        event_ms = epoch_ms(record["event_time"])
        start_ms = event_ms - event_ms % HOUR_MS
        if start_ms == hour.start_ms:
            readings.add(entry_of(_reading(record, event_ms)))
        elif start_ms < hour.start_ms:
            self._hours.note_late(TopicHour(hour.topic, start_ms), message.timestamp()[1], self._now_ms())

    def _spans(self, consumer: Consumer, hour: TopicHour) -> Mapping[int, tuple[int, int]] | None:
        """Return where to begin and to end in each partition; None if records of the hour may be gone.

        Raises KafkaException.
        """
        topic = consumer.list_topics(hour.topic, timeout=_REQUEST_S).topics[hour.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        partitions = topic.partitions
        since_ms = hour.start_ms - _FAST_CLOCK_MS
        asked = [TopicPartition(hour.topic, number, since_ms) for number in partitions]
        found = dict(self._found(consumer, asked))
        return found if len(found) == len(asked) else None

    def _found(self, consumer: Consumer, asked: list[TopicPartition]) -> Iterator[tuple[int, tuple[int, int]]]:
        for one in consumer.offsets_for_times(asked, timeout=_REQUEST_S):
            if one.error is not None:
                raise KafkaException(one.error)
            first, end = consumer.get_watermark_offsets(one, timeout=_REQUEST_S)
            # A negative offset: nothing was appended since then.
            offset = end if one.offset < 0 else one.offset
            if not 0 < first == offset < end:
                yield one.partition, (offset, end)


def write(receipt: Receipt, writer: ControlTopicWriter) -> None:
    """Write a receipt, and wait until Kafka has it. Raises UnavailableError."""
    writer.put(TOPIC, SCHEMA, receipt.key, receipt.record())


def _reading(record: Mapping[str, Any], event_ms: int) -> HourReading:
    return HourReading(record["device_id"], record["metric"], event_ms, record["sequence"], record["value"])

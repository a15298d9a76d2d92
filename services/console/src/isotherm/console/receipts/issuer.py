"""Issues receipts: reads the readings of an hour again, and signs what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, Message
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.connector.receipts.reading_set import HourReading, ReadingSet, entry_of
from isotherm.connector.receipts.receipt import HOUR_MS, SCHEMA, TOPIC, Receipt
from isotherm.console.cluster.control_topics import ControlTopicWriter
from isotherm.console.errors import UnavailableError
from isotherm.console.receipts.hours import IssuedReceipt, ReceiptHours, TopicHour
from isotherm.console.receipts.spans import HourSpans
from isotherm.console.reconciliation.decoding import RecordDecoder, value_of
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_LONGEST_WAIT_MS = 60_000
_UNREADY_WAIT_MS = 1_000
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
        spans: HourSpans,
        make_consumer: Callable[[], Consumer],
        open_findings: Callable[[str], int],
        health: Health,
        now_ms: Callable[[], int],
        metrics: ReceiptMetrics,
        *,
        timeout_s: float,
    ) -> None:
        """`make_consumer` makes one that reports partition ends; `health` says when `hours` knows all receipts.

        `open_findings` counts the open findings about a topic. `decoder` and `spans` are used in no other thread.
        """
        self._hours, self._key, self._writer, self._decoder = hours, key, writer, decoder
        self._spans, self._make_consumer = spans, make_consumer
        self._open_findings, self._health = open_findings, health
        self._now_ms, self._metrics, self._timeout_s = now_ms, metrics, timeout_s
        self._has_begun = False
        self._retries: dict[str, tuple[Backoff, float]] = {}
        """Of each topic whose last receipt failed: how long to wait, and the time of the monotonic clock to go on."""
        metrics.behind_s.set_function(lambda: hours.behind_ms(now_ms()) / 1_000)

    def run(self, stop: Stop) -> None:
        """Issue what is due, until the stop."""
        while not stop.is_set():
            stop.wait(self._step(stop) / 1_000)

    def _step(self, stop: Stop) -> float:
        """Issue a receipt if one is due, and return how long to wait in milliseconds."""
        if "topics" in self._health.problems():
            return _UNREADY_WAIT_MS
        if not self._has_begun:
            self._has_begun = True
            self._hours.begin(self._now_ms())
        now_s = time.monotonic()
        waiting = {topic: at_s - now_s for topic, (_, at_s) in self._retries.items() if at_s > now_s}
        hour = self._hours.next(self._now_ms(), without=waiting)
        if hour is None:
            if not self._retries:
                self._health.ready(_PART)
            next_hour_ms = self._hours.wait_ms(self._now_ms())
            return min(_LONGEST_WAIT_MS, next_hour_ms, *(1_000 * wait_s for wait_s in waiting.values()))
        try:
            self.issue(hour, stop)
        except (UnavailableError, RegistryUnavailableError, OSError) as error:
            self._retry(hour, str(error))
        except Exception as error:
            # One bad record must not end the receipts of all topics.
            _log.exception("a receipt failed", topic=hour.topic, hour=hour.start_ms)
            self._retry(hour, f"unforeseen: {error!r}")
        else:
            self._retries.pop(hour.topic, None)
        return 0

    def _retry(self, hour: TopicHour, reason: str) -> None:
        backoff, _ = self._retries.get(hour.topic) or (Backoff(base_ms=1_000, cap_ms=60_000), 0.0)
        wait_ms = backoff.next_ms()
        self._retries[hour.topic] = (backoff, time.monotonic() + wait_ms / 1_000)
        self._health.not_ready(_PART, f"{hour.topic}: {reason}")
        _log.warning("no receipt yet", topic=hour.topic, hour=hour.start_ms, reason=reason, retry_in_ms=round(wait_ms))

    def issue(self, hour: TopicHour, stop: Stop) -> None:
        """Issue the receipt of an hour, unless it would say the same as the last one.

        Raises UnavailableError, RegistryUnavailableError, OSError.
        """
        begun_s, known = time.monotonic(), self._hours.newest(hour)
        with translate_kafka_errors(), closing(self._make_consumer()) as consumer, ReadingSet() as readings:
            spans, asked_ms = self._spans.of(consumer, hour, self._now_ms())
            undecodable = 0
            for message in consume_spans(consumer, hour.topic, spans or {}, self._timeout_s):
                if stop.is_set():
                    return
                undecodable += not self._take(message, hour, readings)
            if spans is None or not self._spans.has_all(hour.topic, spans):
                self._miss(hour, asked_ms)
                return
            receipt = Receipt(
                topic=hour.topic,
                start_ms=hour.start_ms,
                revision=0 if known is None else known.revision + 1,
                records=readings.taken,
                parts=tuple(readings.parts()),
                unreconciled=self._open_findings(hour.topic),
                issued_ms=asked_ms,
            ).signed_by(self._key)
        if undecodable:
            _log.warning("records are in no receipt: they are no readings", topic=hour.topic, records=undecodable)
        valid = self._valid(known, asked_ms)
        if valid is not None and receipt.readings < valid.readings:
            _log.error("the receipt of an hour stays: Kafka has fewer readings", topic=hour.topic, hour=hour.start_ms)
        elif valid is None or receipt.parts_digest() != valid.parts_digest:
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
        self._settle(hour, asked_ms)

    def _valid(self, known: IssuedReceipt | None, asked_ms: int) -> IssuedReceipt | None:
        """Return the known receipt; None where there is none, or one of the future, which counts as none."""
        return None if known is None or self._hours.is_early(known, asked_ms) else known

    def _settle(self, hour: TopicHour, asked_ms: int) -> None:
        self._spans.answered(hour.topic)
        self._hours.settle(hour, asked_ms)

    def _miss(self, hour: TopicHour, asked_ms: int) -> None:
        """Give an hour up of which Kafka may have removed readings; a receipt that it has stays."""
        if self._valid(self._hours.newest(hour), asked_ms) is None:
            self._metrics.missed.labels(hour.topic).inc()
            _log.error("no receipt of an hour: Kafka has removed readings of it", topic=hour.topic, hour=hour.start_ms)
        else:
            _log.info("the receipt of an hour stays: Kafka has removed readings", topic=hour.topic, hour=hour.start_ms)
        self._settle(hour, asked_ms)

    def _take(self, message: Message, hour: TopicHour, readings: ReadingSet) -> bool:
        """Take a record; return False if it is no reading."""
        try:
            record = self._decoder.reading(value_of(message))
        except WireFormatError:
            # What nobody can decode is no reading in any store.
            return False
        event_ms = epoch_ms(record["event_time"])
        start_ms = event_ms - event_ms % HOUR_MS
        if start_ms == hour.start_ms:
            readings.add(entry_of(_reading(record, event_ms)))
        elif start_ms < hour.start_ms:
            self._hours.note_late(TopicHour(hour.topic, start_ms), message.timestamp()[1])
        return True


def write(receipt: Receipt, writer: ControlTopicWriter) -> None:
    """Write a receipt, and wait until Kafka has it. Raises UnavailableError."""
    writer.put(TOPIC, SCHEMA, receipt.key, receipt.record())


def _reading(record: Mapping[str, Any], event_ms: int) -> HourReading:
    return HourReading(record["device_id"], record["metric"], event_ms, record["sequence"], record["value"])

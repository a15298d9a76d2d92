"""The thread that issues receipts in the process that reconciles, and what it needs of the topic of receipts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from isotherm.connector.receipts.receipt import SCHEMA, TOPIC, KeyFileError, private_key
from isotherm.console.cluster.control_topics import ControlTopicWriter
from isotherm.console.receipts.hours import ReceiptHours
from isotherm.console.receipts.issuer import ReceiptIssuer, ReceiptMetrics
from isotherm.console.receipts.spans import HourSpans
from isotherm.console.reconciliation.decoding import RecordDecoder
from isotherm.console.reconciliation.findings import OpenFindings
from isotherm.console.records.topic_follower import TopicHandler, avro_handler
from isotherm.console.settings import ReceiptSettings
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import SettingsError

_JOIN_S = 4.0


class ReceiptThread:
    """Issues receipts once it is started."""

    def __init__(
        self, settings: ReceiptSettings, topics: Sequence[str], registry: CollectorRegistry, now_ms: Callable[[], int]
    ) -> None:
        """Read the key; `topics` are those of the readings. Raises SettingsError."""
        try:
            self._key = private_key(Path(settings.key_file or ""))
        except KeyFileError as error:
            raise SettingsError([f"reconciliation.receipts.key_file: {error}"]) from None
        self._hours = ReceiptHours(topics, delay_ms=settings.delay_ms, late_ms=settings.late_ms)
        self._metrics, self._now_ms = ReceiptMetrics(registry), now_ms
        for topic in topics:
            # An alert rule finds them also before the first one.
            self._metrics.issued.labels(topic)
            self._metrics.missed.labels(topic)
        self._thread: threading.Thread | None = None

    def handlers(self, schemas: SchemaRegistry) -> Mapping[str, TopicHandler]:
        """Return what a follower does with the topic: it brings the receipts from before the start."""
        return {TOPIC: avro_handler(schemas, SCHEMA, lambda _message, record: self._hours.take_record(record))}

    def start(
        self,
        writer: ControlTopicWriter,
        schemas: SchemaRegistry,
        admin: AdminClient,
        make_consumer: Callable[[], Consumer],
        findings: OpenFindings,
        health: Health,
        stop: Stop,
        *,
        timeout_s: float,
    ) -> None:
        """Start the thread. It waits until `health` says that the topics were read."""
        issuer = ReceiptIssuer(
            self._hours,
            self._key,
            writer,
            RecordDecoder(schemas),
            HourSpans(admin, timeout_s),
            make_consumer,
            findings.count_of,
            health,
            self._now_ms,
            self._metrics,
            timeout_s=timeout_s,
        )
        self._thread = threading.Thread(target=issuer.run, args=(stop,), name="receipts", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, but not for long: a receipt that it has begun is issued after a restart."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

"""The process that reconciles: composes followers, the ledger and its checks, and runs until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in its __all__
from prometheus_client import CollectorRegistry

from isotherm.console.acknowledgements.check import AcknowledgementCheck
from isotherm.console.acknowledgements.following import followed
from isotherm.console.cluster import control_topics
from isotherm.console.cluster.control_topics import ControlTopicWriter, PendingWrites
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import KafkaOffsets
from isotherm.console.reconciliation import findings as findings_topic
from isotherm.console.reconciliation.decoding import RecordDecoder
from isotherm.console.reconciliation.findings import OpenFindings
from isotherm.console.reconciliation.follower import LedgerFollower
from isotherm.console.reconciliation.ledger import Grid, Ledger, Progress
from isotherm.console.reconciliation.metrics import ReconciliationMetrics
from isotherm.console.reconciliation.recording import FollowedTopics, ReadingFilter, Recorder
from isotherm.console.reconciliation.row_checker import RowChecker
from isotherm.console.reconciliation.rows import RowPool
from isotherm.console.reconciliation.stores import Stores
from isotherm.console.reconciliation.window_checker import Examination, WindowChecker
from isotherm.console.records.consumer import translate_kafka_errors
from isotherm.console.records.topic_follower import FollowerMetrics
from isotherm.console.records.topics import KafkaTopics
from isotherm.console.service import control_consumer, now_ms, page_consumer
from isotherm.console.settings import ConsoleSettings
from isotherm.console.trace.readback import Readbacks
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.kafka.offsets import list_offsets
from isotherm.servicekit.lifecycle import Exit, Stop, collect_rarely

if TYPE_CHECKING:
    from isotherm.console.receipts.thread import ReceiptThread

_log = logs.logger(__name__)

_NAME = "console-reconciliation"
_SKEW_MS = 120_000
"""How long before its event time a reading may have been appended, of windows that are compared."""
_READBACK_TIMEOUT_MS = 5_000
_GROUP_BYTES = 256 * 1024
_MAX_DELAY_MS = 1_000
"""Kafka answers a fetch of the readings when it has _GROUP_BYTES, or after this time: a pass is made each second."""
_QUEUED_KBYTES = 32_768
_JOIN_S = 8.0


def run(settings: ConsoleSettings, stop: Stop) -> int:
    """Reconcile until `stop` is set, and return the exit code."""
    given, health, registry = settings.reconciliation, Health(), CollectorRegistry()
    receipts = _receipts(settings, registry)
    monitoring = MonitoringServer(settings.http, health, registry)
    monitoring.start()
    schemas, cluster, writes = SchemaRegistry(settings.registry), ClusterState(), PendingWrites()
    writer = ControlTopicWriter(
        lambda: clients.producer(settings.kafka, _NAME, delivery_timeout_ms=settings.write_timeout_ms),
        schemas,
        writes,
        timeout_ms=settings.write_timeout_ms,
    )
    metrics = ReconciliationMetrics(registry)
    findings = OpenFindings(writer, metrics.unlisted.inc, now_ms(), most=given.max_findings, keep_ms=given.findings_ms)
    readbacks = Readbacks(writer, now_ms, timeout_ms=_READBACK_TIMEOUT_MS)
    control = control_topics.control_topic_follower(
        partial(control_consumer, settings),
        schemas,
        cluster,
        writes,
        health,
        FollowerMetrics(registry),
        {
            **readbacks.handlers(schemas),
            findings_topic.TOPIC: findings.handler(schemas),
            **({} if receipts is None else receipts.handlers(schemas)),
        },
    )
    admin = clients.group_admin(settings.kafka, f"{_NAME}-admin")
    topics = KafkaTopics(admin, partial(page_consumer, settings), timeout_ms=settings.read_timeout_ms)
    connectors = ConnectorControl(cluster, writer, now_ms)
    stores = Stores(cluster, connectors, topics, schemas, KafkaOffsets(admin), readbacks, settings.search, now_ms)
    pool = RowPool(most=given.max_rows, keep_ms=given.keep_ms)
    rows = RowChecker(pool, stores, findings, now_ms, metrics.rows.inc, rows_per_s=given.readbacks_per_s)
    since_ms = now_ms() - given.keep_ms
    consumer = _consumer(settings)
    windows = _window_checker(settings, consumer, admin, pool, schemas, health, metrics, findings, cluster, since_ms)
    control.start()
    checks = threading.Thread(target=rows.run, args=(stop,), name="rows", daemon=True)
    if given.readbacks_per_s:
        checks.start()
    if receipts is not None:
        make_consumer, timeout_s = partial(page_consumer, settings), settings.read_timeout_ms / 1_000
        receipts.start(writer, schemas, admin, make_consumer, findings, health, stop, timeout_s=timeout_s)
    collect_rarely()
    health.ready()
    _log.info("reconciling", topics=", ".join(given.reading_topics), http_port=monitoring.port)
    try:
        windows.run(since_ms, stop)
        return Exit.OK
    finally:
        control.close()
        if given.readbacks_per_s:
            checks.join(_JOIN_S)
        if receipts is not None:
            receipts.join()
        consumer.close()
        topics.close()
        monitoring.stop()


def _receipts(settings: ConsoleSettings, registry: CollectorRegistry) -> ReceiptThread | None:
    """Return what issues receipts; None where no key is configured. Raises SettingsError."""
    given = settings.reconciliation
    if given.receipts.key_file is None:
        return None
    # Cryptography is loaded only where it is used.
    from isotherm.console.receipts.thread import ReceiptThread

    return ReceiptThread(given.receipts, given.reading_topics, registry, now_ms)


def _window_checker(
    settings: ConsoleSettings,
    consumer: Consumer,
    admin: GroupAdmin,
    pool: RowPool,
    schemas: SchemaRegistry,
    health: Health,
    metrics: ReconciliationMetrics,
    findings: OpenFindings,
    cluster: ClusterState,
    since_ms: int,
) -> WindowChecker:
    given = settings.reconciliation
    acknowledgements = AcknowledgementCheck(
        given.reading_topics,
        lambda finding: findings.report(finding, now_ms()),
        lambda outcome, records: metrics.acknowledged.labels(outcome).inc(records),
        partial(_bounds, admin, settings.read_timeout_ms / 1_000),
    )
    ledger, follower, examination = _reading(
        settings, consumer, pool, schemas, health, metrics, acknowledgements, since_ms
    )
    return WindowChecker(
        ledger,
        follower,
        examination,
        findings,
        partial(progress_of, cluster, given.aggregators),
        now_ms,
        metrics,
        on_pass=lambda at_ms: acknowledgements.advance(at_ms, follower.ends),
    )


def _bounds(admin: GroupAdmin, timeout_s: float, where: tuple[str, int]) -> tuple[int, int]:
    """Return a partition's first offset and the one behind its last. Raises UnavailableError."""
    # confluent-kafka has no annotations for these two.
    specs = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    with translate_kafka_errors():
        first, end = (list_offsets(admin, [where], one, committed=False, timeout_s=timeout_s)[where] for one in specs)
    return first.offset, end.offset


def _reading(
    settings: ConsoleSettings,
    consumer: Consumer,
    pool: RowPool,
    schemas: SchemaRegistry,
    health: Health,
    metrics: ReconciliationMetrics,
    acknowledgements: AcknowledgementCheck,
    since_ms: int,
) -> tuple[Ledger, LedgerFollower, Examination]:
    given = settings.reconciliation
    grid = Grid(given.window_ms, given.slide_ms or given.window_ms)
    ledger = Ledger(
        grid,
        given.windows_topic,
        lambda reason: metrics.left_out.labels(reason).inc(),
        deduplicate=given.deduplicate,
        patience_ms=given.patience_ms,
        keep_ms=given.keep_ms,
        first_ms=since_ms + _SKEW_MS,
    )
    decoder = RecordDecoder(schemas)
    readings = ReadingFilter(decoder, given.where)
    names = FollowedTopics(given.reading_topics, given.windows_topic, given.late_topic, given.dead_letter_topic)
    recorded = Recorder(ledger, pool, decoder, readings, now_ms).topics(names)
    used = followed(recorded, given.reading_topics, acknowledgements, schemas)
    follower = LedgerFollower(consumer, used, health, now_ms, lambda topic: metrics.bad.labels(topic).inc())
    again = Examination(partial(page_consumer, settings), readings, health.beat, settings.read_timeout_ms / 1_000)
    return ledger, follower, again


def progress_of(cluster: ClusterState, aggregators: Sequence[str], now_ms: int) -> Progress | None:
    """Return how far the aggregators are by their heartbeats; None unless all of them run and tell it."""
    counts = [task.counts for name in aggregators for task in cluster.running_tasks(name, now_ms)]
    told = [one for one in counts if one.keys() >= {"watermark_ms", "read_until_ms"}]
    if not told or len(told) < len(aggregators):
        return None
    return Progress(
        min(one["watermark_ms"] for one in told),
        min(one["read_until_ms"] for one in told),
        max((one["complete_after_ms"] for one in told if "complete_after_ms" in one), default=None),
    )


def _consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer for all readings and windows: their records come in groups, each a little late."""
    return clients.consumer(
        settings.kafka,
        _NAME,
        _NAME,
        enable_partition_eof=True,
        enable_auto_offset_store=False,
        fetch_min_bytes=_GROUP_BYTES,
        fetch_wait_max_ms=_MAX_DELAY_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
    )

"""The life of the aggregator: wait for its servers, start Spark, look after the queries, stop between two batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from aggregator import queries as streaming
from aggregator import session, supervision, wire
from aggregator.broker import Broker, BrokerError
from aggregator.checkpoint import CheckpointFolder, CheckpointHeldError, CheckpointMismatchError, fingerprint
from aggregator.clock import Ticks, reached_ms
from aggregator.kafka_options import java_options
from aggregator.metrics import Metrics
from aggregator.queries import DevicesTable, Queries, WindowSink
from aggregator.schema_book import SchemaBook
from aggregator.settings import AggregatorSettings
from aggregator.supervision import Cause, SupervisedQuery
from aggregator.windows import AGGREGATE, GROUP
from servicekit import logs
from servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from servicekit.backoff import Backoff
from servicekit.health import Health, MonitoringServer
from servicekit.lifecycle import Exit, Stop
from servicekit.settings import SettingsError

_log = logs.logger(__name__)

T = TypeVar("T")

_POLL_S = 0.5
_PROBE_INTERVAL_S = 1.0
_DRAIN_SHARE = 0.6
"""Share of the shutdown deadline that batches may use; the rest is for Spark to stop."""

_WAITABLE = (CheckpointHeldError, BrokerError, RegistryUnavailableError, SchemaNotRegisteredError)


class StopRequested(Exception):
    """The service is to stop while it waits."""


class Aggregator:
    """One run of the service."""

    def __init__(self, settings: AggregatorSettings) -> None:
        session.find_java()
        session.find_jars(settings.jars_dir)
        self._settings = settings
        self._kafka_options = java_options(settings.kafka)
        self._folder = CheckpointFolder(settings.checkpoint_dir)
        self._health = Health()
        self._metrics = Metrics()
        self._backoff = Backoff(base_ms=500, cap_ms=10_000)
        self._last_probe_s = 0.0
        self._last_tick_watermark_ms = 0

    def run(self, stop: Stop) -> int:
        """Run until the stop is asked for or a query fails for good; returns the exit code. Raises SettingsError."""
        self._stop = stop
        monitoring = MonitoringServer(self._settings.http, self._health, self._metrics.registry)
        monitoring.start()
        _log.info("monitoring answers", port=monitoring.port)
        try:
            self._folder.create()
            lock = self._wait_for("checkpoint", self._folder.lock)
            self._broker = Broker(self._settings.kafka)
            self._registry = SchemaRegistry(self._settings.registry)
            self._book = SchemaBook(self._registry, self._folder)
            self._wait_for("kafka", self._verify_topics)
            schema_ids = self._wait_for("registry", self._look_up_schemas)
            return self._run_spark(lock, schema_ids)
        except StopRequested:
            return Exit.OK
        except CheckpointMismatchError as error:
            raise SettingsError([f"checkpoint_dir: {error}"]) from error
        except OSError as error:
            raise SettingsError([f"checkpoint_dir: {str(self._folder.folder)!r} cannot be used: {error}"]) from error
        finally:
            monitoring.stop()

    def _wait_for(self, part: str, attempt: Callable[[], T]) -> T:
        """Try until it works, with back-off, saying why not in the log and in `/ready`."""
        backoff = Backoff(base_ms=500, cap_ms=10_000)
        while True:
            try:
                result = attempt()
            except _WAITABLE as error:
                self._health.not_ready(part, str(error))
                _log.warning("waiting", part=part, reason=str(error))
            else:
                self._health.ready(part)
                return result
            self._pause(backoff.next_ms() / 1000)

    def _pause(self, seconds: float) -> None:
        self._health.beat()
        if self._stop.wait(seconds):
            raise StopRequested
        self._health.beat()

    def _verify_topics(self) -> None:
        settings = self._settings
        needed = [settings.output_topic, settings.late_topic]
        if settings.group_attributes:
            needed += [settings.grouped_topic, settings.devices_topic]
        self._broker.topic_ids(needed)
        topic_ids = self._broker.topic_ids(settings.input_topics)
        self._folder.verify(fingerprint(settings, self._broker.cluster_id(), topic_ids))
        self._broker.ensure_dead_letter_topic(settings.dead_letter_topic)

    def _look_up_schemas(self) -> tuple[int, int]:
        self._book.open(self._settings.input_topics)
        aggregate_id = self._registry.schema_id(f"{self._settings.output_topic}-value", AGGREGATE)
        if not self._settings.group_attributes:
            return aggregate_id, 0
        return aggregate_id, self._registry.schema_id(f"{self._settings.grouped_topic}-value", GROUP)

    def _run_spark(self, lock: int, schema_ids: tuple[int, int]) -> int:
        spark = session.Spark(self._settings, lock)
        _log.info("spark started", jvm_pid=spark.jvm_pid, master=self._settings.spark.master)
        try:
            options, settings = self._kafka_options, self._settings
            table = DevicesTable(settings, options, self._broker, self._registry, self._folder)
            sink = WindowSink(settings, options, schema_ids, table, self._metrics)
            queries = Queries(spark.session, settings, options, self._folder, sink)
            self._windows = SupervisedQuery(streaming.WINDOWS, lambda: queries.start_windows(self._book.ids))
            self._rejects = SupervisedQuery(streaming.REJECTS, lambda: queries.start_rejects(self._book.ids))
            return self._look_after((self._windows, self._rejects))
        finally:
            spark.stop()
            self._broker.close()
            _log.info("spark stopped")

    def _look_after(self, queries: tuple[SupervisedQuery, ...]) -> int:
        try:
            for query in queries:
                query.start()
            while not self._stop.is_set():
                for query in queries:
                    if not self._check(query):
                        return Exit.FAILED
                self._probe()
                if all(query.is_initialized for query in queries):
                    self._health.ready("start")
                self._pause(_POLL_S)
        except StopRequested:
            _log.info("stopping after the current batches")
        self._health.not_ready("stop", "stopping")
        deadline_s = time.monotonic() + self._settings.shutdown_timeout_ms / 1000 * _DRAIN_SHARE
        for query in queries:
            query.stop_after_batch(time.sleep, lambda: deadline_s - time.monotonic())
        return Exit.OK

    def _check(self, query: SupervisedQuery) -> bool:
        """Take in a query's progress; start it again where that helps. False when it failed for good."""
        for progress in query.new_progress():
            self._metrics.add(query.name, progress)
            if progress.dropped_rows:
                _log.error(
                    "rows dropped by the watermark: records waited longer than read_slack_ms before they were in "
                    "Kafka; these windows lack them until they are recomputed",
                    rows=progress.dropped_rows,
                    watermark_ms=progress.watermark_ms,
                    batch_id=progress.batch_id,
                )
            if query.is_running and progress.input_rows:
                self._health.ready(query.name)
                self._backoff.reset()
        failure = query.failure()
        if failure is None:
            return True
        cause = supervision.cause_of(failure)
        if cause is Cause.FAILURE:
            self._health.not_ready(query.name, "the query failed")
            _log.error("query failed, ending", query=query.name, trace=failure)
            return False
        self._metrics.query_restarts.labels(query.name, cause.value).inc()
        self._recover(query, cause, failure)
        return True

    def _recover(self, query: SupervisedQuery, cause: Cause, failure: str) -> None:
        if cause is Cause.NEW_SCHEMA:
            new_ids = wire.new_schema_ids(failure)
            _log.info("query met a new schema id", query=query.name, schema_ids=new_ids)
            self._wait_for("registry", lambda: self._book.learn(new_ids))
        else:
            reason = failure.strip().splitlines()[0]
            self._health.not_ready(query.name, reason)
            _log.warning("query lost a server, starting it again", query=query.name, trace=failure)
            self._pause(self._backoff.next_ms() / 1000)
            self._wait_for("kafka", self._verify_topics)
        query.start()
        self._health.ready(query.name)

    def _probe(self) -> None:
        """Ask Kafka for the ends of the partitions: for the lag, for readiness, and to let time go on."""
        now_s = time.monotonic()
        if now_s - self._last_probe_s < _PROBE_INTERVAL_S:
            return
        self._last_probe_s = now_s
        asked_at_ms = time.time_ns() // 1_000_000
        try:
            ends = self._broker.ends(self._settings.input_topics, committed=False)
        except BrokerError as error:
            self._health.not_ready("kafka", str(error))
            return
        self._health.ready("kafka")
        for query in (self._windows, self._rejects):
            if query.read_to is not None:
                self._metrics.set_lag(query.name, query.read_to, ends)
        self._advance_clock(asked_at_ms, ends)

    def _advance_clock(self, asked_at_ms: int, ends: dict[tuple[str, int], int]) -> None:
        last, read_to = self._windows.last, self._windows.read_to
        if last is None or read_to is None or last.watermark_ms is None or last.state_rows == 0:
            return
        settings = self._settings
        ticks = Ticks(
            settings.window_ms,
            settings.slide_ms or settings.window_ms,
            settings.max_skew_ms,
            settings.watermark_delay_ms,
        )
        watermark_ms = max(last.watermark_ms, self._last_tick_watermark_ms)
        if not ticks.is_due(asked_at_ms, watermark_ms):
            return
        unread = self._broker.unread(read_to, ends, self._book.ingest_time_ms)
        reached = reached_ms(asked_at_ms, unread, self._windows.newest_ingest_ms, idle_flush=settings.idle_flush)
        if reached is not None and ticks.is_due(reached, watermark_ms):
            self._folder.tick(ticks.tick_ms(reached))
            self._last_tick_watermark_ms = ticks.watermark_ms(reached)

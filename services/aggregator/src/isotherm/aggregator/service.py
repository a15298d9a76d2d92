"""The composition root of the aggregator: wait for servers and for the lease, start Spark, run, stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.folder import (
    REJECTS,
    WINDOWS,
    CheckpointFolder,
    CheckpointMismatchError,
    CheckpointSupersededError,
)
from isotherm.aggregator.checkpoint.plans import planned_offsets, planned_records
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.kafka.clock_topic import Clock
from isotherm.aggregator.kafka.start_search import spark_offsets
from isotherm.aggregator.kafka.writer_journal import LeaseLostError
from isotherm.aggregator.kafka.writer_lease import Tenure, WriterLease
from isotherm.aggregator.kafka_clients import open_broker, open_follower, open_lease, open_output_producer
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.recompute.service import corrections_beside
from isotherm.aggregator.rollups.service import rollups_beside
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import properties, session
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.gateway import is_submitted
from isotherm.aggregator.spark.hadoop_objects import open_objects
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.spark.noted_batches import NotedBatches
from isotherm.aggregator.spark.queries import Queries
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.spark.window_sink import WindowSink, output_schema_ids
from isotherm.aggregator.spark.work_folder import work_folder
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.batch_pacer import BatchPacer, hold_ms
from isotherm.aggregator.supervision.boundary_end import BoundaryEnd
from isotherm.aggregator.supervision.checkpoint_start import CheckpointStart, verify_topics
from isotherm.aggregator.supervision.query_runner import QueryFailedError, QueryRunner, SupersededError
from isotherm.aggregator.supervision.rejected_ranges import OffsetRange, RejectedRanges
from isotherm.aggregator.supervision.server_wait import ServerWait, StopRequestedError
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
from isotherm.aggregator.tracing.opening import Tracing, tracing_of
from isotherm.aggregator.watermark.start_position import StartPosition
from isotherm.connector.standalone.reporting import Reporter, reported
from isotherm.connector.state.status import this_process
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import SettingsError

T = TypeVar("T")

_LOST = (SupersededError, CheckpointSupersededError, LeaseLostError)
"""What a process raises that may not write any more."""

_log = logs.logger(__name__)


class Aggregator:
    """One run of the service. Raises SettingsError for mistakes that are visible without a server."""

    def __init__(self, settings: AggregatorSettings) -> None:
        session.verify(settings)
        self._settings = settings
        self._kafka_options = java_options(settings.kafka)
        self._plans: QueryPlans | None = None
        self._spark: session.Spark | None = None
        self._health = Health()
        self._metrics = Metrics()
        self._status = Status(self._health, self._metrics)
        self._target = TargetFollower(settings.kafka, settings.registry, settings.name)
        self._tracing: Tracing | None = None

    def run(self, stop: Stop) -> int:
        """Run until a stop is requested or a query fails permanently; return the exit code. Raises SettingsError."""
        self._tracing = tracing_of(self._settings, self._metrics.registry, instance=this_process())
        monitoring = MonitoringServer(self._settings.http, self._health, self._metrics.registry)
        monitoring.start()
        _log.info("monitoring server started", port=monitoring.port)
        self._target.start()
        try:
            with reported(self._reporter()):
                return self._run(ServerWait(stop, self._health))
        except QueryFailedError:
            return Exit.FAILED
        except _LOST as error:
            _log.error("ending: another process of this name has the lease", reason=str(error))
            return Exit.FAILED
        except CheckpointMismatchError as error:
            raise SettingsError([f"checkpoint_dir: {error}"]) from error
        finally:
            self._target.close()
            monitoring.stop()
            if self._tracing is not None:
                self._tracing.traces.close()

    def kill_spark(self) -> None:
        """Kill the JVM, if there is one, and whatever it writes."""
        if (spark := self._spark) is not None:
            spark.kill()

    def _reporter(self) -> Reporter:
        settings, status = self._settings, self._status
        return Reporter(
            settings.kafka,
            settings.registry,
            connector=settings.name,
            task=0,
            state=status.state,
            counts=status.counts,
            lag=status.lag,
        )

    def _run(self, wait: ServerWait) -> int:
        settings = self._settings
        broker, registry = open_broker(settings.kafka), SchemaRegistry(settings.registry)
        lease = open_lease(settings, self._end_process)
        try:
            self._metrics.standstill.begin()
            wait.until("kafka", lambda: broker.ensure_own_topics(settings.own_topics))
            lease.start()
            while not self._is_done(wait, broker, registry, lease):
                _log.warning("this process begins anew, with another Spark, when it has the lease")
        except StopRequestedError:
            _log.info("stopped before the queries were started")
        finally:
            # After everything that writes has ended: another process of this name begins at once.
            lease.close()
            broker.close()
            registry.close()
        return Exit.OK

    def _is_done(self, wait: ServerWait, broker: Broker, registry: SchemaRegistry, lease: WriterLease) -> bool:
        """Run Spark for one tenure; return False when another process has held the lease since."""
        wait.for_lease(lambda: lease.is_held, lease.reason)
        try:
            tenure = lease.tenure()
            wait.until("kafka", lambda: verify_topics(self._settings, broker))
            with work_folder(self._settings, tenure.epoch) as folder:
                lease.writing_has_begun(tenure)
                self._run_spark(wait, broker, registry, tenure, folder)
        except _LOST as error:
            if is_submitted():
                # Its JVM cannot be replaced. The supervisor of spark-submit starts another one.
                raise
            _log.warning("the lease is lost", reason=str(error))
            return False
        finally:
            lease.writing_has_ended()
        return True

    def _end_process(self) -> None:
        """End this process and its JVM at once, whatever they wait for."""
        self.kill_spark()
        os._exit(Exit.FAILED)

    def _run_spark(
        self, wait: ServerWait, broker: Broker, registry: SchemaRegistry, tenure: Tenure, folder: Path
    ) -> None:
        settings = self._settings
        spark = self._spark = session.Spark(settings, folder)
        _log.info("spark started", jvm_pid=spark.jvm_pid, master=spark.session.sparkContext.master)
        pacer, rejected = BatchPacer(_hold_ms(settings), self._reads_backlog), RejectedRanges()
        try:
            spark.when_jvm_ends(wait.request_stop, settings.shutdown_timeout_ms / 1000)
            held = partial(_while_held, tenure)
            objects = wait.until("checkpoint", held(lambda: open_objects(spark.session, settings.checkpoint_dir)))
            checkpoint = CheckpointFolder(objects, settings.name, tenure.epoch)
            parts = _Parts(settings, broker, registry, tenure, spark, checkpoint)
            self._run_queries(wait, parts, pacer, rejected)
        finally:
            pacer.release()
            rejected.release()
            spark.stop()
            self._spark = None
            _log.info("spark stopped")

    def _run_queries(self, wait: ServerWait, parts: _Parts, pacer: BatchPacer, rejected: RejectedRanges) -> None:
        settings, broker, tenure = self._settings, parts.broker, parts.tenure
        held = partial(_while_held, tenure)
        checkpoint = CheckpointStart(settings, broker, parts.folder)
        wait.until("kafka", held(checkpoint.verify))
        wait.until("kafka", held(checkpoint.verify_boundary))
        self._plans = parts.plans[WINDOWS]
        start = wait.until("kafka", held(lambda: checkpoint.position(parts.plans.values())))
        self._metrics.complete_after_ms = start.complete_after_ms
        output_ids = wait.until("registry", held(parts.look_up_schemas))
        offsets = wait.until("kafka", held(lambda: spark_offsets(start, broker, broker.input_topics(settings))))
        sink = self._sink(parts, output_ids, start, lambda batch_id: windows.open_windows_before(batch_id))

        def begin_rejects(batch_id: int) -> bool:
            may_hold_rejects = rejected.may_hold_rejects(
                batch_id, OffsetRange(*planned_offsets(parts.plans[REJECTS], batch_id))
            )
            # After the wait: another process may hold the lease since.
            parts.batches[REJECTS].begin(batch_id)
            return may_hold_rejects

        queries = Queries(
            parts.spark.session, settings, self._kafka_options, parts.folder, pacer.paced(sink), begin_rejects, offsets
        )
        windows = self._query(parts, WINDOWS, queries.start_windows, start, pacer, tells=rejected)
        rejects = self._query(parts, REJECTS, queries.start_rejects, start, asks=rejected)
        clock = Clock(settings.clock_topic, tenure)
        runner = QueryRunner(
            settings,
            broker,
            parts.schemas,
            tenure,
            WatermarkAdvancer(settings, self._plans, clock, broker, parts.schemas, hurry=pacer.hurry),
            self._health,
            self._metrics,
            wait,
            self._status,
            self._target,
            _boundary_end(settings),
        )
        is_halted = partial(self._is_halted, tenure)
        session, metrics = parts.spark.session, self._metrics
        with (
            self._traced_beside(broker),
            corrections_beside(settings, session, output_ids, metrics, is_halted),
            rollups_beside(settings, session, metrics, is_halted, start.complete_after_ms),
        ):
            runner.run(windows, rejects, checkpoint.verify)

    def _traced_beside(self, broker: Broker) -> AbstractContextManager[None]:
        if self._tracing is None:
            return nullcontext()
        return open_follower(self._settings, lambda: broker.input_topics(self._settings), self._tracing).running()

    def _sink(
        self,
        parts: _Parts,
        output_ids: tuple[int, int],
        start: StartPosition,
        open_windows_before: Callable[[int], int | None],
    ) -> Callable[[DataFrame, int], bool]:
        """Return what writes a batch of the windowed query, after it is noted."""
        settings, batches = self._settings, parts.batches[WINDOWS]
        sink = WindowSink(
            settings,
            self._kafka_options,
            output_ids,
            parts.plans[WINDOWS],
            DevicesTable(settings, self._kafka_options, parts.broker, parts.registry, batches),
            self._metrics,
            open_output_producer(settings.kafka),
            open_windows_before,
            start.complete_after_ms,
            None if self._tracing is None else self._tracing.windows,
        )

        def write(finished: DataFrame, batch_id: int) -> bool:
            batches.begin(batch_id)
            return sink(finished, batch_id)

        return write

    def _query(
        self,
        parts: _Parts,
        name: str,
        begin: Callable[[SchemaIds], StreamingQuery],
        start: StartPosition,
        pacer: BatchPacer | None = None,
        tells: RejectedRanges | None = None,
        asks: RejectedRanges | None = None,
    ) -> SupervisedQuery:
        def start_query() -> StreamingQuery:
            parts.batches[name].restore()
            return begin(parts.schemas.ids)

        counts_state_rows = properties.counts_state_rows(dict(parts.spark.session.sparkContext.getConf().getAll()))
        return SupervisedQuery(
            name,
            start_query,
            parts.plans[name],
            start.offsets,
            self._redact,
            pacer,
            tells,
            asks,
            counts_state_rows=counts_state_rows,
        )

    def _is_halted(self, tenure: Tenure) -> bool:
        return self._status.halted is not None or not tenure.is_held

    def _reads_backlog(self, batch_id: int) -> bool:
        """Return whether a backlog is read: this batch or the one before it is near the limit, or not known."""
        plans = self._plans
        sizes = [None if plans is None else planned_records(plans, number) for number in (batch_id - 1, batch_id)]
        return any(size is None or size * 2 >= self._settings.max_offsets_per_trigger for size in sizes)

    def _redact(self, text: str) -> str:
        return redacted(text, self._kafka_options)


class _Parts:
    """What is made anew for each tenure."""

    def __init__(
        self,
        settings: AggregatorSettings,
        broker: Broker,
        registry: SchemaRegistry,
        tenure: Tenure,
        spark: session.Spark,
        folder: CheckpointFolder,
    ) -> None:
        self.broker, self.registry, self.tenure, self.spark, self.folder = broker, registry, tenure, spark, folder
        self.schemas = WriterSchemaCache(registry, folder)
        self.plans = {name: QueryPlans(spark.session, folder.query(name)) for name in (WINDOWS, REJECTS)}
        self.batches = {name: NotedBatches(name, plans, tenure) for name, plans in self.plans.items()}
        self._settings = settings

    def look_up_schemas(self) -> tuple[int, int]:
        """Look up the input's schema ids; return those of the aggregates and of the groups (0 without groups)."""
        self.schemas.open(self.broker.input_topics(self._settings))
        return output_schema_ids(self._settings, self.registry)


def _boundary_end(settings: AggregatorSettings) -> BoundaryEnd | None:
    for each in settings.boundaries:
        if each.is_former:
            last_ms = each.last_window_end_ms(settings.window_ms, settings.slide_ms or settings.window_ms)
            return BoundaryEnd(each, last_ms, settings.read_margin_ms)
    return None


def _while_held(tenure: Tenure, action: Callable[[], T]) -> Callable[[], T]:
    """Return an action that raises LeaseLostError while this process may not write."""

    def act() -> T:
        tenure.verify()
        return action()

    return act


def _hold_ms(settings: AggregatorSettings) -> int:
    """Return for how long few readings wait for more. In a replay, where readings are the clock, they never wait."""
    return hold_ms(settings.trigger_ms) if settings.advance_when_idle else 0

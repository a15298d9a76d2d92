"""The composition root of the aggregator: wait for servers and for the lease, start Spark, run, stop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from isotherm.aggregator.checkpoint.folder import (
    REJECTS,
    WINDOWS,
    CheckpointFolder,
    CheckpointMismatchError,
    fingerprint,
)
from isotherm.aggregator.checkpoint.plans import planned_records
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.start_search import find_start, spark_offsets
from isotherm.aggregator.kafka.writer_lease import LeaseLostError, WriterLease
from isotherm.aggregator.kafka_clients import open_broker, open_clock, open_lease, open_output_producer
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.recompute.service import corrections_beside
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.hadoop_objects import open_objects
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.spark.queries import Queries
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.spark.window_sink import WindowSink, output_schema_ids
from isotherm.aggregator.spark.work_folder import work_folder
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.batch_pacer import BatchPacer, hold_ms
from isotherm.aggregator.supervision.boundary_end import BoundaryEnd
from isotherm.aggregator.supervision.query_runner import QueryFailedError, QueryRunner
from isotherm.aggregator.supervision.server_wait import ServerWait, StopRequestedError
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
from isotherm.aggregator.watermark.boundary import Boundary
from isotherm.aggregator.watermark.start_position import StartPosition
from isotherm.connector.standalone.reporting import Reporter, reported
from isotherm.connector.state.target_follower import TargetFollower
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop
from isotherm.servicekit.settings import SettingsError

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

    def run(self, stop: Stop) -> int:
        """Run until a stop is requested or a query fails permanently; return the exit code. Raises SettingsError."""
        monitoring = MonitoringServer(self._settings.http, self._health, self._metrics.registry)
        monitoring.start()
        _log.info("monitoring server started", port=monitoring.port)
        self._target.start()
        try:
            with reported(self._reporter()):
                return self._run(ServerWait(stop, self._health))
        except QueryFailedError:
            return Exit.FAILED
        except LeaseLostError as error:
            _log.error("ending: another aggregator of this name may write", reason=str(error))
            return Exit.FAILED
        except CheckpointMismatchError as error:
            raise SettingsError([f"checkpoint_dir: {error}"]) from error
        finally:
            self._target.close()
            monitoring.stop()

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
        lease = open_lease(settings, self._end_writing)
        try:
            self._metrics.standstill.begin()
            wait.until("kafka", lambda: broker.ensure_clock_topic(settings.clock_topic))
            lease.start()
            wait.for_lease(lambda: lease.is_assigned, lease.reason)
            wait.until("kafka", lambda: self._verify_topics(broker))
            with work_folder(settings) as folder:
                self._run_spark(wait, broker, registry, lease, folder)
        except StopRequestedError:
            _log.info("stopped before the queries were started")
        finally:
            # After everything that writes has ended: another aggregator of this name begins at once.
            lease.close()
            broker.close()
            registry.close()
        return Exit.OK

    def _end_writing(self) -> None:
        if self._spark is not None:
            self._spark.kill()

    def _run_spark(
        self, wait: ServerWait, broker: Broker, registry: SchemaRegistry, lease: WriterLease, folder: Path
    ) -> None:
        spark = self._spark = session.Spark(self._settings, folder)
        _log.info("spark started", jvm_pid=spark.jvm_pid, master=spark.session.sparkContext.master)
        pacer = BatchPacer(_hold_ms(self._settings), self._reads_backlog)
        try:
            spark.when_jvm_ends(wait.request_stop, self._settings.shutdown_timeout_ms / 1000)
            wait.for_lease(lambda: lease.is_held, lease.reason)
            self._run_queries(wait, broker, registry, lease, spark, pacer)
        finally:
            pacer.release()
            spark.stop()
            self._spark = None
            _log.info("spark stopped")

    def _run_queries(
        self,
        wait: ServerWait,
        broker: Broker,
        registry: SchemaRegistry,
        lease: WriterLease,
        spark: session.Spark,
        pacer: BatchPacer,
    ) -> None:
        settings = self._settings
        objects = wait.until("checkpoint", lambda: open_objects(spark.session, settings.checkpoint_dir))
        folder = CheckpointFolder(objects)
        wait.until("kafka", lambda: self._verify_checkpoint(broker, folder))
        wait.until("kafka", lambda: self._verify_boundary(broker, folder))
        plans = {name: QueryPlans(spark.session, folder.query(name)) for name in (WINDOWS, REJECTS)}
        self._plans = plans[WINDOWS]
        start = wait.until("kafka", lambda: self._start_position(broker, folder, list(plans.values())))
        schemas = WriterSchemaCache(registry, folder)
        output_ids = wait.until("registry", lambda: self._look_up_schemas(broker, registry, schemas))
        sink = WindowSink(
            settings,
            self._kafka_options,
            output_ids,
            plans[WINDOWS],
            DevicesTable(settings, self._kafka_options, broker, registry, folder),
            self._metrics,
            open_output_producer(settings.kafka),
            lambda batch_id: windows.open_windows_before(batch_id),
            start.complete_after_ms,
        )

        def write(finished: DataFrame, batch_id: int) -> bool:
            lease.verify()
            return sink(finished, batch_id)

        offsets = wait.until("kafka", lambda: spark_offsets(start, broker, broker.input_topics(settings)))
        queries = Queries(spark.session, settings, self._kafka_options, folder, pacer.paced(write), offsets)
        windows = SupervisedQuery(
            WINDOWS, lambda: queries.start_windows(schemas.ids), plans[WINDOWS], start.offsets, self._redact, pacer
        )
        rejects = SupervisedQuery(
            REJECTS, lambda: queries.start_rejects(schemas.ids), plans[REJECTS], start.offsets, self._redact
        )
        runner = QueryRunner(
            settings,
            broker,
            schemas,
            lease,
            WatermarkAdvancer(settings, plans[WINDOWS], open_clock(settings), broker, schemas, hurry=pacer.hurry),
            self._health,
            self._metrics,
            wait,
            self._status,
            self._target,
            self._boundary_end(),
        )
        with corrections_beside(settings, spark.session, output_ids, self._metrics, lambda: self._is_halted(lease)):
            runner.run(windows, rejects, lambda: self._verify_checkpoint(broker, folder))

    def _is_halted(self, lease: WriterLease) -> bool:
        return self._status.halted is not None or not lease.is_held

    def _reads_backlog(self, batch_id: int) -> bool:
        """Return whether a backlog is read: this batch or the one before it is near the limit, or not known."""
        plans = self._plans
        sizes = [None if plans is None else planned_records(plans, number) for number in (batch_id - 1, batch_id)]
        return any(size is None or size * 2 >= self._settings.max_offsets_per_trigger for size in sizes)

    def _redact(self, text: str) -> str:
        return redacted(text, self._kafka_options)

    def _verify_checkpoint(self, broker: Broker, folder: CheckpointFolder) -> None:
        """Verify that the checkpoint fits settings and topics. Raises BrokerError and CheckpointMismatchError."""
        settings = self._settings
        topics = self._verify_topics(broker)
        clock_id = broker.topic_ids([settings.clock_topic])[settings.clock_topic]
        folder.verify(fingerprint(settings, broker.cluster_id(), topics, clock_id))
        broker.ensure_dead_letter_topic(settings.dead_letter_topic)

    def _verify_topics(self, broker: Broker) -> dict[str, str]:
        """Verify that the topics exist; return the ids of those of the input. Raises BrokerError."""
        settings = self._settings
        others = [settings.output_topic, settings.late_topic]
        if settings.group_attributes:
            others += [settings.grouped_topic, settings.devices_topic]
        broker.topic_ids(others)
        topics = broker.topic_ids(broker.input_topics(settings))
        self._verify_timestamps(broker, list(topics))
        return topics

    def _verify_timestamps(self, broker: Broker, topics: list[str]) -> None:
        """Raise BrokerError when a topic lacks append times, unless the settings allow that."""
        untimed = broker.topics_without_append_time(topics)
        if not untimed:
            return
        if self._settings.require_log_append_time:
            raise BrokerError(
                f"topic {', '.join(untimed)} has not message.timestamp.type=LogAppendTime, without which readings that "
                "an outage held back would be dropped unnoticed; run `isotherm apply`, or alter the topic "
                "(require_log_append_time=false accepts the producers' times)"
            )
        _log.warning(
            "these topics carry the producers' times: readings that an outage holds back are noticed only when the "
            "watermark drops them",
            topics=untimed,
        )

    def _start_position(self, broker: Broker, folder: CheckpointFolder, plans: Sequence[QueryPlans]) -> StartPosition:
        """Return where the checkpoint begins; find and store it while no query has planned a batch.

        Raises BrokerError and SettingsError.
        """
        begun = folder.load_start()
        if begun is not None and any(query.newest() >= 0 for query in plans):
            return begun
        start = find_start(self._settings, broker, broker.input_topics(self._settings))
        folder.save_start(start)
        return start

    def _verify_boundary(self, broker: Broker, folder: CheckpointFolder) -> None:
        """Store the boundary to a successor. Raises SettingsError when it is too late to set or change it."""
        given = next((each for each in self._settings.boundaries if each.is_former), None)
        stored_ms, given_ms = folder.load_publish_until(), None if given is None else given.at_ms
        if stored_ms == given_ms:
            return
        newest_ms = broker.newest_timestamp_ms(broker.input_topics(self._settings)) or 0
        for at_ms in (stored_ms, given_ms):
            overlap_ms = self._settings.boundary_overlap_ms
            if at_ms is not None and not Boundary(at_ms, is_former=True, overlap_ms=overlap_ms).may_change(newest_ms):
                raise SettingsError(
                    [
                        f"publish_until: {self._settings.publish_until!r} is not allowed: {at_ms} (epoch ms) is less "
                        f"than boundary_overlap_ms ({overlap_ms}) after the newest record of the input ({newest_ms}), "
                        "so records have been judged without it, or by it"
                    ]
                )
        folder.save_publish_until(given_ms)

    def _boundary_end(self) -> BoundaryEnd | None:
        settings = self._settings
        for each in settings.boundaries:
            if each.is_former:
                last_ms = each.last_window_end_ms(settings.window_ms, settings.slide_ms or settings.window_ms)
                return BoundaryEnd(each, last_ms, settings.read_margin_ms)
        return None

    def _look_up_schemas(self, broker: Broker, registry: SchemaRegistry, schemas: WriterSchemaCache) -> tuple[int, int]:
        """Look up the input's schema ids; return those of the aggregates and of the groups (0 without groups)."""
        schemas.open(broker.input_topics(self._settings))
        return output_schema_ids(self._settings, registry)


def _hold_ms(settings: AggregatorSettings) -> int:
    """Return for how long few readings wait for more. In a replay, where readings are the clock, they never wait."""
    return hold_ms(settings.trigger_ms) if settings.advance_when_idle else 0

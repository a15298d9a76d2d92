"""The composition root of the aggregator: lock the checkpoint, wait for servers, start Spark, run, stop."""

from __future__ import annotations

from isotherm.aggregator.checkpoint.folder import CheckpointFolder, CheckpointMismatchError, fingerprint
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.start_search import find_start, spark_offsets
from isotherm.aggregator.kafka_clients import open_broker, open_output_producer
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.recompute.service import corrections_beside
from isotherm.aggregator.rollups.service import rollups_beside
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.spark.queries import REJECTS, WINDOWS, Queries
from isotherm.aggregator.spark.window_sink import WindowSink, output_schema_ids
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.batch_pacer import BatchPacer, hold_ms
from isotherm.aggregator.supervision.query_runner import QueryFailedError, QueryRunner
from isotherm.aggregator.supervision.server_wait import ServerWait, StopRequestedError
from isotherm.aggregator.supervision.supervised_query import SupervisedQuery
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
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
        self._folder = CheckpointFolder(settings.checkpoint_dir)
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
        settings, folder = self._settings, self._folder
        try:
            folder.create()
            lock = wait.until("checkpoint", folder.lock)
        except OSError as error:
            raise SettingsError([f"checkpoint_dir: {str(folder.folder)!r} cannot be used: {error}"]) from error
        except StopRequestedError:
            return Exit.OK
        broker, registry = open_broker(settings.kafka), SchemaRegistry(settings.registry)
        try:
            self._run_queries(wait, broker, registry, lock)
        except StopRequestedError:
            _log.info("stopped before the queries were started")
        finally:
            broker.close()
            registry.close()
        return Exit.OK

    def _run_queries(self, wait: ServerWait, broker: Broker, registry: SchemaRegistry, lock: int) -> None:
        settings, folder = self._settings, self._folder
        self._metrics.standstill.begin()
        wait.until("kafka", lambda: self._verify_topics(broker))
        start = wait.until("kafka", lambda: self._start_position(broker))
        schemas = WriterSchemaCache(registry, folder)
        output_ids = wait.until("registry", lambda: self._look_up_schemas(broker, registry, schemas))
        pacer = BatchPacer(_hold_ms(settings), self._reads_backlog)
        spark = session.Spark(settings, folder.spark, lock)
        _log.info("spark started", jvm_pid=spark.jvm_pid, master=spark.session.sparkContext.master)
        try:
            spark.when_jvm_ends(wait.request_stop, settings.shutdown_timeout_ms / 1000)
            wait.until("checkpoint", lambda: spark.hold(folder.jvm_lock))
            devices = DevicesTable(settings, self._kafka_options, broker, registry, folder)
            sink = WindowSink(
                settings,
                self._kafka_options,
                output_ids,
                folder,
                devices,
                self._metrics,
                open_output_producer(settings.kafka),
                lambda batch_id: windows.open_windows_before(batch_id),
                start.complete_after_ms,
            )
            starting_offsets = wait.until("kafka", lambda: spark_offsets(start, broker, broker.input_topics(settings)))
            queries = Queries(spark.session, settings, self._kafka_options, folder, pacer.paced(sink), starting_offsets)
            windows = SupervisedQuery(WINDOWS, lambda: queries.start_windows(schemas.ids), self._redact, pacer)
            rejects = SupervisedQuery(REJECTS, lambda: queries.start_rejects(schemas.ids), self._redact)
            runner = QueryRunner(
                settings,
                broker,
                schemas,
                folder,
                WatermarkAdvancer(settings, folder, broker, schemas, hurry=pacer.hurry),
                self._health,
                self._metrics,
                wait,
                self._status,
                self._target,
            )
            with (
                corrections_beside(settings, spark.session, output_ids, self._metrics, self._is_halted),
                rollups_beside(settings, spark.session, self._metrics, self._is_halted, start.complete_after_ms),
            ):
                runner.run(windows, rejects, lambda: self._verify_topics(broker))
        finally:
            pacer.release()
            spark.stop()
            _log.info("spark stopped")

    def _is_halted(self) -> bool:
        return self._status.halted is not None

    def _reads_backlog(self, batch_id: int) -> bool:
        """Return whether a backlog is read: this batch or the one before it is near the limit, or not known."""
        sizes = [self._folder.planned_records(number) for number in (batch_id - 1, batch_id)]
        return any(size is None or size * 2 >= self._settings.max_offsets_per_trigger for size in sizes)

    def _redact(self, text: str) -> str:
        return redacted(text, self._kafka_options)

    def _verify_topics(self, broker: Broker) -> None:
        """Verify that the topics exist and belong to the checkpoint. Raises BrokerError, CheckpointMismatchError."""
        settings = self._settings
        others = [settings.output_topic, settings.late_topic]
        if settings.group_attributes:
            others += [settings.grouped_topic, settings.devices_topic]
        others += [one.output_topic for one in settings.rollups]
        others += [one.grouped_topic for one in settings.rollups if one.grouped_topic and settings.group_attributes]
        broker.topic_ids(dict.fromkeys(others))
        topics = broker.topic_ids(broker.input_topics(settings))
        self._verify_timestamps(broker, list(topics))
        self._folder.verify(fingerprint(settings, broker.cluster_id(), topics))
        broker.ensure_dead_letter_topic(settings.dead_letter_topic)

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

    def _start_position(self, broker: Broker) -> StartPosition:
        """Return where the checkpoint begins; find and store it at the first start.

        Raises BrokerError and SettingsError.
        """
        begun = self._folder.load_start()
        if begun is not None:
            return begun
        start = find_start(self._settings, broker, broker.input_topics(self._settings))
        self._folder.save_start(start)
        return start

    def _look_up_schemas(self, broker: Broker, registry: SchemaRegistry, schemas: WriterSchemaCache) -> tuple[int, int]:
        """Look up the input's schema ids; return those of the aggregates and of the groups (0 without groups)."""
        schemas.open(broker.input_topics(self._settings))
        return output_schema_ids(self._settings, registry)


def _hold_ms(settings: AggregatorSettings) -> int:
    """Return for how long few readings wait for more. In a replay, where readings are the clock, they never wait."""
    return hold_ms(settings.trigger_ms) if settings.advance_when_idle else 0

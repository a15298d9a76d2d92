"""The life of the aggregator: take the checkpoint, wait for its servers, start Spark, run, end."""

from __future__ import annotations

from isotherm.aggregator.checkpoint.folder import CheckpointFolder, CheckpointMismatchError, fingerprint
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.frames.windows import AGGREGATE, GROUP
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.start_search import find_start, spark_offsets
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import queries as streaming
from isotherm.aggregator.spark import session
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.spark.queries import DevicesTable, Queries, WindowSink
from isotherm.aggregator.spark.supervised_query import SupervisedQuery
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.query_runner import QueryFailedError, QueryRunner
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
from isotherm.aggregator.waiting import StopRequested, Waiting
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
    """One run of the service. Raises SettingsError for what can be told without a server."""

    def __init__(self, settings: AggregatorSettings) -> None:
        session.find_java()
        session.find_jars(settings.jars_dir)
        self._settings = settings
        self._kafka_options = java_options(settings.kafka)
        self._folder = CheckpointFolder(settings.checkpoint_dir)
        self._health = Health()
        self._metrics = Metrics()
        self._status = Status(self._health, self._metrics)
        self._target = TargetFollower(settings.kafka, settings.registry, settings.name)

    def run(self, stop: Stop) -> int:
        """Run until the stop is asked for or a query fails for good; returns the exit code. Raises SettingsError."""
        monitoring = MonitoringServer(self._settings.http, self._health, self._metrics.registry)
        monitoring.start()
        _log.info("monitoring answers", port=monitoring.port)
        self._target.start()
        try:
            with reported(self._reporter()):
                return self._run(Waiting(stop, self._health))
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

    def _run(self, waiting: Waiting) -> int:
        settings, folder = self._settings, self._folder
        try:
            folder.create()
            lock = waiting.until("checkpoint", folder.lock)
        except OSError as error:
            raise SettingsError([f"checkpoint_dir: {str(folder.folder)!r} cannot be used: {error}"]) from error
        except StopRequested:
            return Exit.OK
        broker, registry = Broker(settings.kafka), SchemaRegistry(settings.registry)
        try:
            self._operate(waiting, broker, registry, lock)
        except StopRequested:
            _log.info("stopped before it had begun")
        finally:
            broker.close()
            registry.close()
        return Exit.OK

    def _operate(self, waiting: Waiting, broker: Broker, registry: SchemaRegistry, lock: int) -> None:
        settings, folder = self._settings, self._folder
        self._metrics.standstill.begin()
        waiting.until("kafka", lambda: self._verify_topics(broker))
        start = waiting.until("kafka", lambda: self._start_position(broker))
        book = WriterSchemaCache(registry, folder)
        output_ids = waiting.until("registry", lambda: self._look_up_schemas(broker, registry, book))
        spark = session.Spark(settings, folder.spark, lock)
        _log.info("spark started", jvm_pid=spark.jvm_pid, master=settings.spark.master)
        try:
            devices = DevicesTable(settings, self._kafka_options, broker, registry, folder)
            sink = WindowSink(
                settings, self._kafka_options, output_ids, devices, self._metrics, start.complete_after_ms
            )
            starting_offsets = waiting.until(
                "kafka", lambda: spark_offsets(start, broker, broker.input_topics(settings))
            )
            queries = Queries(spark.session, settings, self._kafka_options, folder, sink, starting_offsets)
            operation = QueryRunner(
                settings,
                broker,
                book,
                folder,
                WatermarkAdvancer(settings, folder, broker, book),
                self._health,
                self._metrics,
                waiting,
                self._status,
                self._target,
            )
            operation.run(
                SupervisedQuery(streaming.WINDOWS, lambda: queries.start_windows(book.ids), self._redact),
                SupervisedQuery(streaming.REJECTS, lambda: queries.start_rejects(book.ids), self._redact),
                lambda: self._verify_topics(broker),
            )
        finally:
            spark.stop()
            _log.info("spark stopped")

    def _redact(self, text: str) -> str:
        return redacted(text, self._kafka_options)

    def _verify_topics(self, broker: Broker) -> None:
        settings = self._settings
        written = [settings.output_topic, settings.late_topic]
        if settings.group_attributes:
            written += [settings.grouped_topic, settings.devices_topic]
        broker.topic_ids(written)
        topics = broker.topic_ids(broker.input_topics(settings))
        self._verify_timestamps(broker, list(topics))
        self._folder.verify(fingerprint(settings, broker.cluster_id(), topics))
        broker.ensure_dead_letter_topic(settings.dead_letter_topic)

    def _verify_timestamps(self, broker: Broker, topics: list[str]) -> None:
        """Raises BrokerError when a topic does not tell when its readings arrived, unless that is not asked for."""
        untimed = broker.untimed_topics(topics)
        if not untimed:
            return
        if self._settings.require_log_append_time:
            raise BrokerError(
                f"topic {', '.join(untimed)} has not message.timestamp.type=LogAppendTime, without which readings that "
                "an outage held back would be dropped unnoticed; run `isotherm apply`, or alter the topic "
                "(require_log_append_time=false takes the producers' times)"
            )
        _log.warning(
            "these topics bear the producers' times: readings that an outage holds back are noticed only when the "
            "watermark drops them",
            topics=untimed,
        )

    def _start_position(self, broker: Broker) -> StartPosition:
        """Where the checkpoint begins, or has begun. Raises BrokerError and SettingsError."""
        begun = self._folder.load_start()
        if begun is not None:
            return begun
        start = find_start(self._settings, broker, broker.input_topics(self._settings))
        self._folder.save_start(start)
        return start

    def _look_up_schemas(self, broker: Broker, registry: SchemaRegistry, book: WriterSchemaCache) -> tuple[int, int]:
        """Learn the input's ids; returns those of the aggregates and of the groups (0 when they are switched off)."""
        settings = self._settings
        book.open(broker.input_topics(settings))
        aggregate_id = registry.schema_id(f"{settings.output_topic}-value", AGGREGATE)
        group_id = registry.schema_id(f"{settings.grouped_topic}-value", GROUP) if settings.group_attributes else 0
        return aggregate_id, group_id

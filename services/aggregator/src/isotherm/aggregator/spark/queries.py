"""The two streaming queries: windows, and rejected records (late readings and dead-letter records; ADR 0031)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.folder import REJECTS, WINDOWS, CheckpointFolder
from isotherm.aggregator.frames import readings, windows
from isotherm.aggregator.frames.boundary import owns_record
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.progress import READINGS_OBSERVED, REJECTED_OBSERVED
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS, SOURCE_OPTIONS
from isotherm.aggregator.spark.properties import is_local, is_rocksdb
from isotherm.connector.errors.dead_letters import MAX_MESSAGE_BYTES


class Queries:
    """Starts the queries of one aggregator, each from its own checkpoint, with the schema ids known at that time."""

    def __init__(
        self,
        session: SparkSession,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        folder: CheckpointFolder,
        sink: Callable[[DataFrame, int], None],
        begin_rejects: Callable[[int], bool],
        starting_offsets: str = "earliest",
    ) -> None:
        """`sink` writes a batch of the windowed query.

        `begin_rejects` is called before a batch of rejects is written; it returns whether there may be any in it.

        `starting_offsets` is Spark's option of that name; it affects only a query without any planned batch.
        """
        self._starting_offsets = starting_offsets
        self._session = session
        self._settings = settings
        self._where = settings.where_condition
        self._kafka = dict(kafka_options)
        self._folder = folder
        self._sink = sink
        self._begin_rejects = begin_rejects

    def start_windows(self, ids: SchemaIds) -> StreamingQuery:
        """Start the windowed query, which passes the finished windows of every batch to the sink.

        The windows have no revision yet. The time of the batch would be a constant in the code that Spark generates, so
        that the JVM would have to compile it again for every batch; the sink adds it.
        """
        settings = self._settings
        self._use_own_scheduler_pool(WINDOWS)
        measures = settings.measures
        decoded = readings.decode(self._records(with_headers=False), ids, self._where, measures.reading_fields)
        observed = readings.judged(decoded, self._reject_reason(ids)).observe(
            READINGS_OBSERVED,
            F.count("device_id").alias("on_time"),
            F.count_if(readings.is_rejected()).alias("rejected"),
            F.max(F.unix_millis("appended_time")).alias("newest_appended_ms"),
        )
        on_time = observed.where(~readings.is_rejected())
        clock = (
            self._session.readStream.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS, subscribe=settings.clock_topic)
            # Nobody has written a tick for this checkpoint before its first batch is planned.
            .option("startingOffsets", "latest")
            .load()
            .select(F.timestamp_millis(F.col("value").cast("string").cast("long")).alias("event_time"))
        )
        timed = windows.with_clock(on_time, clock, settings.watermark_delay_ms, measures)
        # RocksDB keeps its rows in the order of their keys.
        is_sorted = is_rocksdb(dict(self._session.sparkContext.getConf().getAll()))
        aggregates = windows.aggregate(
            timed, settings.window_ms, settings.slide_ms, measures, is_state_sorted=is_sorted
        )
        return (
            windows.in_epoch_ms(aggregates)
            .writeStream.queryName(WINDOWS)
            .outputMode("append")
            .foreachBatch(self._sink)
            .option("checkpointLocation", self._folder.query(WINDOWS))
            .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
            .start()
        )

    def start_rejects(self, ids: SchemaIds) -> StreamingQuery:
        """Start the stateless query, which writes late readings and dead-letter records to their topics."""
        settings = self._settings
        self._use_own_scheduler_pool(REJECTS)
        decoded = readings.decode(self._records(with_headers=True), ids, self._where)
        rejected = readings.rejected(decoded, self._reject_reason(ids))
        for boundary in settings.boundaries:
            rejected = rejected.where(owns_record(boundary))
        rejected = rejected.observe(
            REJECTED_OBSERVED,
            *(F.count(F.when(F.col("reason") == reason, 1)).alias(reason) for reason in readings.REASONS),
        )
        written = rejected if self._where is None else rejected.where(F.col("reason") != readings.FILTERED)
        rows = readings.to_reject_topics(written, settings.late_topic, settings.dead_letter_topic, settings.judgement)
        return (
            rows.writeStream.queryName(REJECTS)
            .foreachBatch(self._write_rejects)
            .option("checkpointLocation", self._folder.query(REJECTS))
            .trigger(processingTime=f"{settings.rejects_trigger_ms} milliseconds")
            .start()
        )

    def _write_rejects(self, rows: DataFrame, batch_id: int) -> None:
        if not self._begin_rejects(batch_id):
            return
        (
            rows.write.format("kafka")
            .options(**self._kafka, **SINK_OPTIONS)
            # The error headers make a dead-letter record larger than the original record.
            .option("kafka.max.request.size", str(MAX_MESSAGE_BYTES))
            .save()
        )

    def _use_own_scheduler_pool(self, query: str) -> None:
        """Put the jobs of the query that this thread starts next into a pool of their own (Spark's FAIR mode)."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", query)

    def _records(self, *, with_headers: bool) -> DataFrame:
        records = (
            self._session.readStream.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS, **self._settings.subscription)
            .option("startingOffsets", self._starting_offsets)
            .option("maxOffsetsPerTrigger", self._settings.max_offsets_per_trigger)
            .option("includeHeaders", with_headers)
            .load()
        )
        # A task costs several milliseconds of processor time, however few records it reads. On a cluster executors may
        # join later, so every partition of Kafka stays a task there.
        context = self._session.sparkContext
        return records.coalesce(context.defaultParallelism) if is_local(context.master or "") else records

    def _reject_reason(self, ids: SchemaIds) -> Column:
        return readings.reject_reason(ids, self._settings.timeliness, self._where)

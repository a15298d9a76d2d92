"""The two streaming queries: windows, and the records that are in none (ADR 0031)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.writer_schema_cache import writer_schema
from isotherm.aggregator.frames import (
    confluent_avro,
    devices,
    readings,
    windows,
)
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.metrics import READINGS_OBSERVED, REJECTED_OBSERVED, Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.connector.errors.dead_letters import MAX_MESSAGE_BYTES
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry

_log = logs.logger(__name__)

WINDOWS = "windows"
REJECTS = "rejects"

READ = {
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "groupIdPrefix": "isotherm-aggregator",
    "kafka.max.poll.records": "5000",
}
WRITE = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "lz4",
    "kafka.linger.ms": "5",
}


class Queries:
    """Starts the queries of one aggregator, each from its own checkpoint, with the schema ids known at that time."""

    def __init__(
        self,
        session: SparkSession,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        folder: CheckpointFolder,
        sink: Callable[[DataFrame, int], None],
        starting_offsets: str = "earliest",
    ) -> None:
        """`starting_offsets` is Spark's option of that name, for a query that begins."""
        self._starting_offsets = starting_offsets
        self._session = session
        self._settings = settings
        self._kafka = dict(kafka_options)
        self._folder = folder
        self._sink = sink

    def start_windows(self, ids: SchemaIds) -> StreamingQuery:
        """Start the windowed query: every batch's finished windows go to the sink."""
        settings = self._settings
        self._schedule_by_itself(WINDOWS)
        decoded = readings.decode(self._records(with_headers=False), ids)
        on_time = readings.on_time(decoded, self._verdict(ids)).observe(
            READINGS_OBSERVED,
            F.count(F.lit(1)).alias("on_time"),
            F.max(F.unix_millis("appended_time")).alias("newest_appended_ms"),
        )
        clock = (
            self._session.readStream.format("text")
            .option("cleanSource", "delete")
            .load(str(self._folder.clock))
            .select(F.timestamp_millis(F.col("value").cast("long")).alias("event_time"))
        )
        timed = windows.with_clock(on_time, clock, settings.watermark_delay_ms)
        return (
            windows.aggregate(timed, settings.window_ms, settings.slide_ms)
            .writeStream.queryName(WINDOWS)
            .outputMode("append")
            .foreachBatch(self._sink)
            .option("checkpointLocation", str(self._folder.windows))
            .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
            .start()
        )

    def start_rejects(self, ids: SchemaIds) -> StreamingQuery:
        """Start the stateless query: late readings and dead letters go to their topics."""
        settings = self._settings
        self._schedule_by_itself(REJECTS)
        decoded = readings.decode(self._records(with_headers=True), ids)
        refused = readings.rejected(decoded, self._verdict(ids)).observe(
            REJECTED_OBSERVED,
            *(F.count(F.when(F.col("reason") == reason, 1)).alias(reason) for reason in readings.REASONS),
        )
        rows = readings.to_reject_topics(
            refused,
            settings.late_topic,
            settings.dead_letter_topic,
            settings.timeliness,
        )
        return (
            rows.writeStream.queryName(REJECTS)
            .format("kafka")
            .options(**self._kafka, **WRITE)
            # A dead letter is larger than its record.
            .option("kafka.max.request.size", str(MAX_MESSAGE_BYTES))
            .option("checkpointLocation", str(self._folder.rejects))
            .trigger(processingTime=f"{settings.rejects_trigger_ms} milliseconds")
            .start()
        )

    def _schedule_by_itself(self, query: str) -> None:
        """Give the jobs of the query that this thread starts next their own share of the cores (Spark's FAIR mode)."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", query)

    def _records(self, *, with_headers: bool) -> DataFrame:
        return (
            self._session.readStream.format("kafka")
            .options(**self._kafka, **READ, **self._settings.subscription)
            .option("startingOffsets", self._starting_offsets)
            .option("maxOffsetsPerTrigger", self._settings.max_offsets_per_trigger)
            .option("includeHeaders", with_headers)
            .load()
        )

    def _verdict(self, ids: SchemaIds) -> Column:
        return readings.reject_reason(ids, self._settings.timeliness)


class WindowSink:
    """Writes a batch's finished windows, and the groups made of them, to Kafka; returns when Kafka has them."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        schema_ids: tuple[int, int],
        devices_table: DevicesTable,
        metrics: Metrics,
        complete_after_ms: int | None = None,
    ) -> None:
        """Windows that begin at `complete_after_ms` (epoch ms) or before are counted and not written."""
        self._settings = settings
        self._complete_after_ms = complete_after_ms
        self._options = {**kafka_options, **WRITE}
        self._aggregate_id, self._group_id = schema_ids
        self._devices = devices_table
        self._metrics = metrics

    def __call__(self, finished: DataFrame, batch_id: int) -> None:
        """Spark calls this once per batch, and again with the same rows when the batch has to be run again."""
        # One pass over the state, whatever is written from it.
        persisted = rows = finished.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = rows.count()
            if count and self._complete_after_ms is not None:
                rows, count = self._complete(rows, count, self._complete_after_ms)
            if count == 0:
                return
            self._write(windows.to_aggregate_topic(rows, self._aggregate_id), self._settings.output_topic)
            self._metrics.windows_emitted.inc(count)
            if self._settings.group_attributes:
                self._write_groups(rows, batch_id)
        finally:
            persisted.unpersist()

    def _complete(self, rows: DataFrame, count: int, complete_after_ms: int) -> tuple[DataFrame, int]:
        """The windows of which the input has all readings, and how many they are; the others are counted."""
        begins_too_early = F.unix_millis("window_start") <= complete_after_ms
        found = rows.where(begins_too_early).agg(F.count(F.lit(1)).alias("windows"), F.sum("count").alias("readings"))
        (left_out,) = found.collect()
        if not left_out["windows"]:
            # Windows come out in the order of their ends: from here on all begin later.
            self._complete_after_ms = None
        else:
            self._metrics.windows_incomplete.inc(left_out["windows"])
            self._metrics.readings_incomplete.inc(left_out["readings"])
            _log.warning(
                "windows are not published, because the input no longer has all their readings",
                windows=left_out["windows"],
                readings=left_out["readings"],
                complete_after_ms=complete_after_ms,
            )
        return rows.where(~begins_too_early), count - left_out["windows"]

    def _write_groups(self, rows: DataFrame, batch_id: int) -> None:
        settings = self._settings
        known = self._devices.as_of(rows.sparkSession, batch_id)
        members = windows.with_devices(rows, known)
        # Counted by jobs of their own: an Observation never answers for rows that go to Kafka's sink.
        groups = windows.group(members, settings.group_attributes, settings.unknown_group).persist()
        try:
            count = groups.count()
            self._write(windows.to_group_topic(groups, self._group_id), settings.grouped_topic)
            self._metrics.groups_emitted.inc(count)
            self._metrics.windows_without_device.inc(members.where(F.col(windows.IS_KNOWN).isNull()).count())
        finally:
            groups.unpersist()

    def _write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**self._options).option("topic", topic).save()


class DevicesTable:
    """The compacted devices topic as a table, as of a batch's start; read again only when the topic has grown."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        broker: Broker,
        registry: SchemaRegistry,
        folder: CheckpointFolder,
    ) -> None:
        self._settings = settings
        self._kafka = dict(kafka_options)
        self._broker = broker
        self._registry = registry
        self._folder = folder
        self._held: tuple[dict[str, int], DataFrame] | None = None

    def as_of(self, session: SparkSession, batch_id: int) -> DataFrame:
        """`device_id` and the attributes. A batch that is run again gets what it got before.

        Raises BrokerError or RegistryUnavailableError.
        """
        ends = self._folder.devices_snapshot(batch_id)
        if ends is None:
            topic = self._settings.devices_topic
            ends = {str(number): end for (_, number), end in self._broker.ends([topic], committed=True).items()}
            self._folder.save_devices_snapshot(batch_id, ends)
        if self._held is None or self._held[0] != ends:
            table = read_devices(
                session,
                self._kafka,
                self._registry,
                self._settings.devices_topic,
                ends,
                self._settings.group_attributes,
            )
            if self._held is not None:
                self._held[1].unpersist()
            self._held = (ends, table)
        return self._held[1]


def read_devices(
    session: SparkSession,
    kafka_options: Mapping[str, str],
    registry: SchemaRegistry,
    topic: str,
    ends: Mapping[str, int],
    attributes: Sequence[str],
) -> DataFrame:
    """The devices in the compacted `topic` up to the end offsets (by partition number), as a table in memory.

    Raises RegistryUnavailableError.
    """
    records = (
        session.read.format("kafka")
        .options(**kafka_options)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", json.dumps({topic: ends}))
        .load()
    )
    newest = devices.newest(records).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        ids = ids_in(newest, registry)
        table = devices.decode(newest, ids, attributes).persist(StorageLevel.MEMORY_AND_DISK)
        table.count()
    finally:
        newest.unpersist()
    return table


def ids_in(records: DataFrame, registry: SchemaRegistry) -> SchemaIds:
    """What the registry knows of all schema ids in the column `value` (runs a job). Raises RegistryUnavailableError."""
    named = {schema_id: writer_schema(registry, schema_id) for schema_id in confluent_avro.schema_ids(records)}
    return SchemaIds({schema_id: text for schema_id, text in named.items() if text is not None}, closed=True)

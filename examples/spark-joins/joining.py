"""Shared by the jobs of this folder: the settings, the topics as data frames, and the run of a job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from pydantic import Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.frames import readings, windows
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.kafka_clients import open_broker
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.aggregator.spark.devices_table import end_offsets_by_number, read_devices, registered_ids
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS, SOURCE_OPTIONS, java_options, redacted
from isotherm.aggregator.spark.work_folder import work_folder
from isotherm.schemas import schema, versions
from isotherm.servicekit import lifecycle, logs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.command import ServiceCommand
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

_POLL_S = 1.0


class JoinSettings(AggregatorSettings):
    """The aggregator's settings, and the topic for the joined rows."""

    result_topic: str = Field(description="Topic of the joined rows, as JSON.")


class Topics:
    """The suite's topics as data frames."""

    def __init__(self, spark: SparkSession, settings: JoinSettings) -> None:
        self.settings = settings
        self._spark = spark
        self._kafka = java_options(settings.kafka)
        self._registry = SchemaRegistry(settings.registry)

    def readings(self) -> DataFrame:
        """Return the readings that are on time, as a stream. Raises BrokerError and the registry's errors."""
        settings = self.settings
        records = (
            self._spark.readStream.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS, **settings.subscription)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
            .load()
        )
        ids = self._ids_of_readings()
        reason = readings.reject_reason(ids, settings.timeliness)
        return readings.on_time(readings.decode(records, ids), reason)

    def devices(self) -> DataFrame:
        """Return `device_id`, `home` and `room` of every device that is known now. Raises BrokerError."""
        topic = self.settings.devices_topic
        broker = open_broker(self.settings.kafka)
        try:
            ends = end_offsets_by_number(broker, topic)
        finally:
            broker.close()
        return read_devices(self._spark, self._kafka, self._registry, topic, ends, ["home", "room"])

    def aggregates(self, from_ms: int, to_ms: int) -> DataFrame:
        """Return the windows between two times (epoch ms) that were published between them, of the highest revision."""
        records = (
            self._spark.read.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS)
            .option("subscribe", self.settings.output_topic)
            .option("startingTimestamp", str(max(0, from_ms)))
            .option("endingTimestamp", str(max(0, to_ms)))
            .option("includeHeaders", True)
            .option("startingOffsetsByTimestampStrategy", "latest")
            .load()
        )
        ids = registered_ids(records, self._registry)
        scope = corrections.Scope(corrections.Span(from_ms, to_ms))
        identity = corrections.AGGREGATE_IDENTITY
        found = corrections.published(records, ids, windows.AGGREGATE, identity, scope, self.settings.judgement)
        return found.select(*identity, "newest.*")

    def to_result(self, rows: DataFrame) -> DataFrame:
        """Return rows for Kafka's sink: the device id as key and the whole row as JSON."""
        return rows.select(F.col("device_id").alias("key"), F.to_json(F.struct(*rows.columns)).alias("value"))

    def result_options(self) -> dict[str, str]:
        """Return the options of Kafka's sink."""
        return {**self._kafka, **SINK_OPTIONS, "topic": self.settings.result_topic}

    def _ids_of_readings(self) -> SchemaIds:
        """Return the ids of all known versions. A value with any other id is left out and does not end the query."""
        record = readings.READER["name"]
        broker = open_broker(self.settings.kafka)
        try:
            topics = broker.input_topics(self.settings)
        finally:
            broker.close()
        known = {
            self._registry.schema_id(f"{topic}-value", schema(record, version)): json.dumps(schema(record, version))
            for topic in topics
            for version in versions(record)
        }
        return SchemaIds(known, closed=True)


def main(description: str, start: Callable[[Topics], StreamingQuery]) -> int:
    """Run a job until SIGTERM or until its query fails; return the exit code."""

    def run(settings: JoinSettings, _arguments: argparse.Namespace) -> int:
        return lifecycle.run(lambda stop: _run(settings, stop, start), shutdown_timeout_ms=settings.shutdown_timeout_ms)

    return ServiceCommand("aggregator", description, JoinSettings, run).main()


def _run(settings: JoinSettings, stop: Stop, start: Callable[[Topics], StreamingQuery]) -> int:
    with work_folder(settings) as folder:
        spark = session.Spark(settings, folder)
        try:
            query = start(Topics(spark.session, settings))
            while query.isActive and not stop.wait(_POLL_S):
                pass
            if not query.isActive:
                _log.error("query failed", trace=redacted(str(query.exception()), java_options(settings.kafka)))
                return Exit.FAILED
            query.stop()
            return Exit.OK
        finally:
            spark.stop()

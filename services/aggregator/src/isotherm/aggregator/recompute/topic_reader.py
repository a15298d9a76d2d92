"""Reads the topics that a correction needs, each within bounds: late readings, published rows, and the input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.checkpoint.writer_schema_cache import writer_schema
from isotherm.aggregator.frames import readings
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.frames.measures import unique_readings
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.offsets import Partition, by_topic
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import Span
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.devices_table import registered_ids
from isotherm.aggregator.spark.kafka_options import SOURCE_OPTIONS, java_options
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.start_position import PartitionStart, complete_after_ms
from isotherm.servicekit.avro import SchemaRegistry


class TopicReader:
    """Topics as data frames of one Spark session."""

    def __init__(
        self, settings: AggregatorSettings, spark: SparkSession, broker: Broker, registry: SchemaRegistry
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._broker = broker
        self._registry = registry
        self._kafka = java_options(settings.kafka)
        self._where = settings.where_condition

    def late_readings(self, span: Span, judgements: Sequence[Judgement], input_topics: Sequence[str] = ()) -> DataFrame:
        """Return the readings measured within the span that are late by one of the judgements, as `late_readings` does.

        They come from the late topic, and from `input_topics` as well. By a judgement that leaves copies out, a copy of
        a reading that was on time is left out, too. Runs a Spark job. Raises BrokerError and RegistryUnavailableError.
        """
        records = corrections.as_appended_to_input(self.records([self._settings.late_topic], self._begin_ms(span)))
        if input_topics:
            of_input = self.records(input_topics, self._begin_ms(span))
            records = records.union(of_input.withColumn(corrections.JUDGED_BY, F.lit(None).cast("string")))
        ids, decoded = self._decoded(records)
        late_by = corrections.late_by(judgements, self._settings.judgement, lambda one: self._reason(ids, one))
        unique = [one for one in judgements if one.deduplicate]
        texts = [*map(str, unique), *([corrections.ANY] if self._settings.deduplicate else [])]
        late = _measured_within(corrections.late_readings(decoded, late_by, texts), span)
        if not unique:
            return late
        return unique_readings.without_copies_of(late, self._on_time_by(span, unique), [corrections.JUDGED_BY])

    def _on_time_by(self, span: Span, judgements: Sequence[Judgement]) -> DataFrame:
        """Return the identities of readings of the input that were on time and measured within the span.

        Runs a Spark job. Raises BrokerError and RegistryUnavailableError.
        """
        present = self._settings.judgement
        # No reading on time is appended later than this. Where records carry their producers' times, which may go
        # backwards, all of them are read.
        until_ms = span.to_ms + max(
            limits.allowed_lateness_ms + limits.max_publish_delay_ms
            for limits in (one.timeliness for one in judgements)
        )
        is_timed = self._settings.require_log_append_time
        ends_ms = until_ms + self._settings.read_margin_ms if is_timed else None
        records = self.records(self._broker.input_topics(self._settings), self._begin_ms(span, *judgements), ends_ms)
        ids, decoded = self._decoded(records)

        def reason(one: Judgement) -> Column:
            where = self._where if one.where_digest == present.where_digest else None
            return readings.reject_reason(ids, one.timeliness, where)

        return _measured_within(corrections.on_time_by(decoded, judgements, reason), span)

    def late_judgements(self, span: Span) -> set[str]:
        """Return by which judgements readings of the late topic were late, those of the span among them.

        Runs a Spark job. Raises BrokerError.
        """
        records = corrections.as_appended_to_input(self.records([self._settings.late_topic], self._begin_ms(span)))
        return {row[0] for row in records.select(corrections.JUDGED_BY).distinct().collect()} - {None}

    def new_late_windows(self, begin: Mapping[Partition, int], end: Mapping[Partition, int]) -> dict[int, int]:
        """Return how many late readings lie between offsets of the late topic, by the start of their window (epoch ms).

        A reading in several windows counts in each, whatever settings it is late by. Runs Spark jobs. Raises
        RegistryUnavailableError.
        """
        settings = self._settings
        records = self.between(settings.late_topic, begin, end)
        ids, decoded = self._decoded(corrections.as_appended_to_input(records))
        is_late = F.col(corrections.JUDGED_BY).isNotNull() | (self._reason(ids, settings.judgement) == readings.LATE)
        late_by = F.when(is_late, F.array(F.lit(""))).otherwise(F.array())
        late = corrections.late_readings(decoded.where(F.col("reading.device_id").isNotNull()), late_by)
        starts = corrections.window_starts(late, settings.window_ms, settings.slide_ms)
        return {row["start_ms"]: row["readings"] for row in starts.collect()}

    def on_time(self, span: Span, input_topics: Sequence[str]) -> DataFrame:
        """Return the readings on time in the input that were measured within the span.

        Runs a Spark job. Raises BrokerError and RegistryUnavailableError.
        """
        records = self.records(input_topics, self._begin_ms(span))
        ids, decoded = self._decoded(records)
        return _measured_within(readings.on_time(decoded, self._reason(ids, self._settings.judgement)), span)

    def written_ids(self, topic: str) -> SchemaIds:
        """Return the schema ids under the subject of an output topic; other ids are not the aggregator's.

        Raises RegistryUnavailableError.
        """
        subject_ids = self._registry.schema_ids(f"{topic}-value")
        texts = {schema_id: writer_schema(self._registry, schema_id) for schema_id in subject_ids}
        return SchemaIds({schema_id: text for schema_id, text in texts.items() if text is not None}, closed=True)

    def records(self, topics: Sequence[str], from_ms: int, until_ms: int | None = None) -> DataFrame:
        """Return the records of topics from a time of their timestamps on (epoch ms) to the present end.

        With `until_ms` those behind the first record of a later time are left out. Raises BrokerError.
        """
        ends = self._broker.end_offsets(topics, committed=True)
        if until_ms is not None:
            later = self._broker.offsets_at(topics, until_ms + 1)
            ends = {partition: min(end, later.get(partition, end)) for partition, end in ends.items()}
            begins = self._broker.offsets_at(topics, max(0, from_ms))
            begins = {partition: min(begins.get(partition, end), end) for partition, end in ends.items()}
            return self._read(topics, startingOffsets=_json(begins), endingOffsets=_json(ends))
        return self._read(
            topics,
            startingTimestamp=str(max(0, from_ms)),
            startingOffsetsByTimestampStrategy="latest",
            endingOffsets=_json(ends),
        )

    def between(self, topic: str, begin: Mapping[Partition, int], end: Mapping[Partition, int]) -> DataFrame:
        """Return the records of a topic between offsets."""
        return self._read([topic], startingOffsets=_json(begin), endingOffsets=_json(end))

    def _decoded(self, records: DataFrame) -> tuple[SchemaIds, DataFrame]:
        """Return the schema ids of records, and the decoded records. Runs a Spark job."""
        ids = registered_ids(records, self._registry)
        # The sequence is a part of a reading's identity.
        others = dict.fromkeys(["sequence", *self._settings.measures.reading_fields])
        return ids, readings.decode(records, ids, self._where, list(others))

    def _reason(self, ids: SchemaIds, judgement: Judgement) -> Column:
        return readings.reject_reason(ids, judgement.timeliness, self._where)

    def _begin_ms(self, span: Span, *others: Judgement) -> int:
        # A reading is appended at most the skew, plus the difference between clocks, before its event time.
        all_limits = [one.timeliness for one in (self._settings.judgement, *others)]
        return span.from_ms - max(limits.max_skew_ms + limits.max_publish_delay_ms for limits in all_limits)

    def _read(self, topics: Sequence[str], **options: str) -> DataFrame:
        return (
            self._spark.read.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS, **options)
            .option("subscribe", ",".join(topics))
            .option("includeHeaders", True)
            .load()
            .select("key", "value", "timestamp", "headers")
        )


def removed_until_ms(
    settings: AggregatorSettings, broker: Broker, now_ms: int, topics: Sequence[str] = ()
) -> int | None:
    """Return the time (epoch ms) up to which retention may have removed records of topics; None when it has not.

    Without `topics`, these are those of `correction_topics`. Windows that begin later can be corrected: the output
    topic still has their rows, and the late topic all of their late readings. What Kafka has removed for its age was
    older than `retention.ms`, even where a partition has had no record since and is empty now. Raises BrokerError.
    """
    topics = topics or correction_topics(settings, broker)
    bounds = broker.log_bounds(topics)
    cut = {partition: first for partition, (first, _) in bounds.items() if first > 0}
    if not cut:
        return None
    times = broker.timestamps_at({part: first for part, first in cut.items() if first < bounds[part][1]})
    kept_ms = broker.retention_by_age_ms(topics)
    starts = {}
    for partition, first in cut.items():
        age_ms = kept_ms.get(partition[0])
        removed_before_ms = None if age_ms is None else now_ms - age_ms
        starts[partition] = PartitionStart(first, times.get(partition), removed_before_ms)
    return complete_after_ms(starts, {}, now_ms, settings.timeliness)


def correction_topics(settings: AggregatorSettings, broker: Broker) -> list[str]:
    """Return the topics that a correction reads. Raises BrokerError.

    Where copies are left out, the input is one of them: only there it can be seen that a late reading is the copy of
    one on time.
    """
    of_input = broker.input_topics(settings) if settings.deduplicate else []
    return [settings.late_topic, settings.output_topic, *of_input]


def _measured_within(given: DataFrame, span: Span) -> DataFrame:
    event_ms = F.unix_millis("event_time")
    return given.where((event_ms >= span.from_ms) & (event_ms < span.to_ms))


def _json(offsets: Mapping[Partition, int]) -> str:
    return json.dumps(by_topic(offsets))

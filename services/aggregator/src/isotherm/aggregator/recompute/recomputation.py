"""Reads what was published and read in a span of time, and corrects the windows that differ (ADR 0032)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import readings, windows
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.kafka.start_search import find_start
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY, GROUP_IDENTITY, Span
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.devices_table import end_offsets_by_number, read_devices, registered_ids
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS, SOURCE_OPTIONS, java_options
from isotherm.aggregator.watermark.start_position import EARLIEST_COMPLETE
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry

_log = logs.logger(__name__)


class RecomputeError(Exception):
    """The correction cannot be made; nothing was written."""


@dataclass(frozen=True)
class Outcome:
    """What was corrected, or with `--dry-run` what would be corrected."""

    from_ms: int
    to_ms: int
    """The span of the windows that are final. It is shorter than the requested span while windows are still open."""
    revision: int
    windows: int
    """How many windows the span has, by device and metric."""
    late_readings: int
    corrected_windows: int
    fewer_windows: int
    """How many windows were published with more readings than the topics have now. They are not changed."""
    corrected_groups: int
    written: bool


def verify_retention(settings: AggregatorSettings, topics: list[str], broker: Broker, span: Span) -> None:
    """Raise RecomputeError when the input no longer has all readings of the span."""
    begin = find_start(settings.model_copy(update={"start_from": EARLIEST_COMPLETE}), broker, topics, added_topics=True)
    if begin.complete_after_ms is not None and span.from_ms <= begin.complete_after_ms:
        raise RecomputeError(
            f"{', '.join(topics)}: retention has removed readings of this time, and windows without them would be "
            f"wrong; --from must be after {_text(begin.complete_after_ms)}"
        )


class Recomputation:
    """Corrects windows and groups in one Spark session."""

    def __init__(
        self,
        settings: AggregatorSettings,
        topics: list[str],
        spark: SparkSession,
        broker: Broker,
        registry: SchemaRegistry,
        output_ids: tuple[int, int],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._spark = spark
        self._broker = broker
        self._registry = registry
        self._aggregate_id, self._group_id = output_ids
        self._kafka = java_options(settings.kafka)

    def run(self, asked: Span, *, settled_ms: int, dry_run: bool) -> Outcome:
        """Correct the windows within `asked` that were written at least `settled_ms` ago, and their groups.

        Raises RecomputeError, BrokerError and RegistryUnavailableError.
        """
        settings = self._settings
        known = self._published(settings.output_topic, asked, windows.AGGREGATE, AGGREGATE_IDENTITY)
        span = self._final(known, asked, settled_ms)
        known = corrections.within(known, span)
        known_groups = None
        if settings.group_attributes:
            known_groups = corrections.within(
                self._published(settings.grouped_topic, asked, windows.GROUP, GROUP_IDENTITY), span
            )
        revision = self._revision(*(frame for frame in (known, known_groups) if frame is not None))
        given, late_readings = self._readings(span)
        computed = _persisted(
            corrections.aggregate(given, span, settings.window_ms, settings.slide_ms, revision),
        )
        different = _persisted(corrections.changed(computed, known, AGGREGATE_IDENTITY))
        corrected = _persisted(corrections.without_losses(different, known, AGGREGATE_IDENTITY))
        lost = _persisted(corrections.lost(computed, known, AGGREGATE_IDENTITY))
        fewer = lost.count()
        if fewer:
            _log.error(
                "windows were published with more readings than the topics have now: these windows, and the groups of "
                "the same time, are not changed",
                windows=fewer,
            )
        in_groups = corrections.in_complete_windows(corrected, lost)
        groups = None if known_groups is None else self._groups(computed, in_groups, known_groups)
        outcome = Outcome(
            span.from_ms,
            span.to_ms,
            revision,
            computed.count(),
            late_readings,
            corrected.count(),
            fewer,
            0 if groups is None else groups.count(),
            written=not dry_run,
        )
        if not dry_run:
            self._write(windows.to_aggregate_topic(corrected, self._aggregate_id), settings.output_topic)
            if groups is not None:
                self._write(windows.to_group_topic(groups, self._group_id), settings.grouped_topic)
        _log.info("recomputed", **asdict(outcome))
        return outcome

    def _final(self, known: DataFrame, span: Span, settled_ms: int) -> Span:
        """Return the part of `span` whose windows the service has all written, and will not write again."""
        settings = self._settings
        lengths = known.select((F.unix_millis("window_end") - F.unix_millis("window_start")).alias("ms")).distinct()
        others = sorted(row["ms"] for row in lengths.collect() if row["ms"] != settings.window_ms)
        if others:
            raise RecomputeError(
                f"{settings.output_topic} holds windows of {others[0]} ms, window_ms is {settings.window_ms}: "
                "use the settings of the running service"
            )
        settled = F.col("revision") <= time.time_ns() // 1_000_000 - settled_ms
        row = known.where(settled).agg(F.max(F.unix_millis("window_end")).alias("end")).first()
        final_ms = row["end"] if row is not None and row["end"] is not None else 0
        slide_ms = settings.slide_ms or settings.window_ms
        # The service emits windows in the order of their ends, all keys of one end together.
        end_ms = min(span.to_ms, final_ms)
        end_ms -= (end_ms - settings.window_ms - span.from_ms) % slide_ms
        if end_ms < span.from_ms + settings.window_ms:
            published = (
                f"ends at {_text(final_ms)}" if final_ms else f"has no window of then older than {settled_ms} ms"
            )
            raise RecomputeError(
                f"no window between {_text(span.from_ms)} and {_text(span.to_ms)} is final yet: "
                f"{settings.output_topic} {published}"
            )
        if end_ms < span.to_ms:
            _log.warning("later windows are not final yet and are not changed", from_time=_text(end_ms))
        return Span(span.from_ms, end_ms)

    def _revision(self, *known: DataFrame) -> int:
        highest = 0
        for frame in known:
            row = frame.agg(F.max("revision").alias("highest")).first()
            if row is not None and row["highest"] is not None:
                highest = max(highest, row["highest"])
        return max(time.time_ns() // 1_000_000, highest + 1)

    def _readings(self, span: Span) -> tuple[DataFrame, int]:
        settings = self._settings
        # A reading is appended at most the skew, plus the difference between clocks, before its event time.
        begin_ms = span.from_ms - settings.max_skew_ms - settings.max_publish_delay_ms
        records = self._records(self._topics, begin_ms)
        late_records = self._records([settings.late_topic], begin_ms)
        ids = registered_ids(records.union(late_records), self._registry)
        reason = readings.reject_reason(ids, settings.timeliness)
        in_input, in_late_topic = (
            _persisted(corrections.with_reject_reason(each, ids, reason)) for each in (records, late_records)
        )
        given = corrections.aggregated_readings(in_input, in_late_topic)
        return given, corrections.measured_within(given, span).where("is_late").count()

    def _groups(self, computed: DataFrame, corrected: DataFrame, known: DataFrame) -> DataFrame:
        settings = self._settings
        table = read_devices(
            self._spark,
            self._kafka,
            self._registry,
            settings.devices_topic,
            end_offsets_by_number(self._broker, settings.devices_topic),
            settings.group_attributes,
        )
        groups = corrections.groups_of(computed, corrected, table, settings.group_attributes, settings.unknown_group)
        return _persisted(corrections.changed(groups, known, GROUP_IDENTITY))

    def _published(self, topic: str, span: Span, schema: Mapping[str, object], identity: tuple[str, ...]) -> DataFrame:
        # The service writes a window after the window has begun, apart from the difference between clocks.
        records = self._records([topic], span.from_ms - self._settings.max_skew_ms)
        rows = corrections.published(records, registered_ids(records, self._registry), schema, identity)
        return _persisted(rows.where(F.unix_millis("window_start") >= span.from_ms))

    def _records(self, topics: list[str], from_ms: int) -> DataFrame:
        return (
            self._spark.read.format("kafka")
            .options(**self._kafka, **SOURCE_OPTIONS)
            .option("subscribe", ",".join(topics))
            .option("startingTimestamp", str(max(0, from_ms)))
            .option("startingOffsetsByTimestampStrategy", "latest")
            .load()
            .select("value", "timestamp")
        )

    def _write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**self._kafka, **SINK_OPTIONS).option("topic", topic).save()


def _persisted(frame: DataFrame) -> DataFrame:
    return frame.persist(StorageLevel.MEMORY_AND_DISK)


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")

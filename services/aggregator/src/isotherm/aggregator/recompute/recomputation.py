"""Reads what was published and what came late in a span of time, and corrects the windows that differ (ADR 0196)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import headers, windows
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import (
    AGGREGATE_IDENTITY,
    GROUP_IDENTITY,
    JUDGED_BY,
    Scope,
    Span,
)
from isotherm.aggregator.recompute.output_topics import OutputTopics, persisted
from isotherm.aggregator.recompute.topic_reader import TopicReader
from isotherm.aggregator.settings import AggregatorSettings
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
    """How many late readings these windows have. In sliding windows a reading counts in each."""
    corrected_windows: int
    rebuilt_windows: int
    """How many windows have other numbers on time in the input than were published; 0 without `--from-input`."""
    fewer_windows: int
    """How many windows were published with more readings than the topics have now. They are not changed."""
    corrected_groups: int
    written: bool


class Recomputation:
    """Corrects windows and groups in one Spark session. For one thread."""

    def __init__(
        self,
        settings: AggregatorSettings,
        spark: SparkSession,
        broker: Broker,
        registry: SchemaRegistry,
        output_ids: tuple[int, int],
    ) -> None:
        """`output_ids` are the schema ids of aggregates and of groups."""
        self._settings = settings
        self._aggregate_id, self._group_id = output_ids
        self._topics = TopicReader(settings, spark, broker, registry)
        self._outputs = OutputTopics(settings, spark, broker, registry)

    def run(self, asked: Span, *, settled_ms: int, dry_run: bool, input_topics: Sequence[str] | None = None) -> Outcome:
        """Correct the windows within `asked` that were written at least `settled_ms` ago, and their groups.

        With `input_topics` the windows are first computed again from these topics. Raises RecomputeError, BrokerError
        and RegistryUnavailableError.
        """
        with ExitStack() as end:
            known = self._published(end, Scope(asked))
            span = self._final(known, asked, settled_ms)
            known = known.where(Scope(span).holds(F.unix_millis("window_start"), F.unix_millis("window_end")))
            return self._correct(end, known, Scope(span), dry_run=dry_run, input_topics=input_topics)

    def correct(self, scope: Scope) -> Outcome:
        """Correct windows that the service has written and will not write again, and their groups.

        Raises BrokerError and RegistryUnavailableError.
        """
        with ExitStack() as end:
            known = self._published(end, scope)
            return self._correct(end, known, scope, dry_run=False, input_topics=None)

    def _correct(
        self, end: ExitStack, known: DataFrame, scope: Scope, *, dry_run: bool, input_topics: Sequence[str] | None
    ) -> Outcome:
        settings, measures = self._settings, self._settings.measures
        length, names, present = (settings.window_ms, settings.slide_ms), measures.numbers, settings.judgement
        revision, judgements = self._revision(known), [present, *(corrections.judgements(known) - {present})]
        if input_topics:
            on_time = self._topics.on_time(scope.span, input_topics)
            rebuilt = corrections.aggregate(on_time, scope, *length, measures)
            known = corrections.with_rebuilt(known, rebuilt, present, names)
        else:
            known = known.withColumns({"is_rebuilt": F.lit(False), "is_incomplete": F.lit(False)})
        late = self._topics.late_readings(scope.span, judgements, input_topics or ())
        if len(judgements) == 1 and self._topics.late_judgements(scope.span) <= {str(present)}:
            # As almost always: one judgement made all rows and all late readings.
            late = late.where(F.col(JUDGED_BY) == F.lit(str(present)))
            late_windows = corrections.aggregate(late, scope, *length, measures.of_unique)
            late_windows = late_windows.withColumn(JUDGED_BY, F.lit(str(present)))
        else:
            late = persisted(end, late)
            late_windows = corrections.aggregate_late(late, judgements, scope, *length, measures)
            late_windows = corrections.of_their_originals(late_windows, known, present)
        rows = persisted(end, corrections.merged(known, late_windows, names))
        counts = rows.agg(
            F.count(F.lit(1)).alias("windows"),
            F.count_if("is_correction").alias("corrected"),
            F.count("original").alias("rebuilt"),
            F.count_if("is_fewer").alias("fewer"),
            F.sum("late_readings").alias("late"),
        ).collect()[0]
        if counts["fewer"]:
            _log.error(
                "windows were published with more readings than the topics have now: these windows are not changed",
                windows=counts["fewer"],
            )
        groups = self._groups(end, rows, scope, revision + 1) if settings.group_attributes else None
        outcome = Outcome(
            scope.span.from_ms,
            scope.span.to_ms,
            revision + 1,
            counts["windows"],
            counts["late"] or 0,
            counts["corrected"],
            counts["rebuilt"],
            counts["fewer"],
            0 if groups is None else groups.count(),
            written=not dry_run,
        )
        if not dry_run:
            self._write_windows(rows, outcome)
            if groups is not None and outcome.corrected_groups:
                self._outputs.write(windows.to_group_topic(groups, self._group_id), settings.grouped_topic)
        _log.info("recomputed", **asdict(outcome))
        return outcome

    def _write_windows(self, rows: DataFrame, outcome: Outcome) -> None:
        topic, measures = self._settings.output_topic, self._settings.measures
        if outcome.rebuilt_windows:
            originals = rows.where(F.col("original").isNotNull()).select(*AGGREGATE_IDENTITY, JUDGED_BY, "original.*")
            originals = windows.with_revision(originals, outcome.revision - 1)
            judged_by = headers.made({headers.JUDGED_BY: F.col(JUDGED_BY)})
            self._outputs.write(windows.to_aggregate_topic(originals, self._aggregate_id, judged_by, measures), topic)
        if outcome.corrected_windows:
            corrected = windows.with_revision(rows.where("is_correction"), outcome.revision)
            both = headers.made({headers.JUDGED_BY: F.col(JUDGED_BY), headers.LATE_READINGS: F.col("late_readings")})
            self._outputs.write(windows.to_aggregate_topic(corrected, self._aggregate_id, both, measures), topic)

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
        # A rebuild from the input publishes an original again: what counts is when the service wrote the first one.
        settled = F.col("first_revision") <= time.time_ns() // 1_000_000 - settled_ms
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

    def _published(self, end: ExitStack, scope: Scope) -> DataFrame:
        topic, reader = self._settings.output_topic, windows.aggregate_schema(self._settings.measures)
        return self._outputs.published(end, topic, reader, AGGREGATE_IDENTITY, scope)

    def _revision(self, known: DataFrame) -> int:
        """Return a revision above all that are known; the next one is that of the corrections."""
        row = known.agg(F.max("newest.revision").alias("highest")).first()
        highest = 0 if row is None or row["highest"] is None else row["highest"]
        return max(time.time_ns() // 1_000_000, highest + 1)

    def _groups(self, end: ExitStack, rows: DataFrame, scope: Scope, revision: int) -> DataFrame:
        settings = self._settings
        known = self._outputs.published(end, settings.grouped_topic, windows.GROUP, GROUP_IDENTITY, scope)
        highest = known.agg(F.max("newest.revision").alias("highest")).collect()[0]["highest"]
        numbered = windows.with_revision(rows.drop("original"), max(revision, (highest or 0) + 1))
        touched = corrections.touched_windows(rows)
        made = corrections.groups(
            numbered, touched, self._outputs.devices(), settings.group_attributes, settings.unknown_group
        )
        return persisted(end, corrections.changed_groups(made, known))


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")

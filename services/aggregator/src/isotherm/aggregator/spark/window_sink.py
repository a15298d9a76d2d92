"""The sink of the windowed query: writes finished windows, and the groups made of them, to Kafka.

A small batch is written by the driver, a large one by Spark. Both write the same bytes (`isotherm.aggregator.records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator import records
from isotherm.aggregator.checkpoint.plans import PlannedBatch, Plans
from isotherm.aggregator.frames import headers, windows
from isotherm.aggregator.frames.boundary import owns_window
from isotherm.aggregator.kafka.output_producer import OutputProducer, OutputRecord
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.records import Attributes, Row
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS
from isotherm.aggregator.tracing.window_traces import WindowKey, WindowTrace, WindowTraces
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry

MAX_WINDOWS_IN_DRIVER = 10_000
"""Most open windows of which the driver takes the finished ones itself: 0.2 s of work and 10 MB."""

_MOST_ASKED, _MOST_TRACED = 2_000, 500
"""Windows with traced readings that a large batch may have, and those that go on with a trace: they are in its code."""

_log = logs.logger(__name__)


class WindowSink:
    """Writes the finished windows and groups of a batch, and returns when Kafka has acknowledged them."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        schema_ids: tuple[int, int],
        plans: Plans,
        devices_table: DevicesTable,
        metrics: Metrics,
        producer: OutputProducer,
        open_windows_before: Callable[[int], int | None],
        complete_after_ms: int | None = None,
        traces: WindowTraces | None = None,
    ) -> None:
        """`schema_ids` are those of aggregates and groups, `plans` those of the windowed query.

        `producer` sends the records of small batches.

        `open_windows_before` returns how many windows were open before a batch (by number), or None when that is not
        known. Windows that begin at `complete_after_ms` (epoch ms) or earlier are counted and not written. `traces` has
        the traced readings of the windows.
        """
        self._settings = settings
        self._judged_by = str(settings.judgement)
        self._complete_after_ms = complete_after_ms
        self._options = {**kafka_options, **SINK_OPTIONS}
        self._aggregate_id, self._group_id = schema_ids
        self._aggregate_record = records.aggregate_encoder(self._aggregate_id, settings.measures)
        self._group_record = records.group_encoder(self._group_id)
        self._plans = plans
        self._devices = devices_table
        self._metrics = metrics
        self._open_windows_before = open_windows_before
        self._producer = producer
        self._traces = traces

    def __call__(self, finished: DataFrame, batch_id: int) -> bool:
        """Write one batch; return whether there was anything to write.

        `finished` comes from `windows.in_epoch_ms`. Spark calls this again with the same rows when the batch is run
        again, and the revision is the same, too: the time of the batch as it was planned.
        """
        plan = self._plans.get(batch_id)
        if plan is None:
            raise RuntimeError(f"Spark does not know what it has planned for batch {batch_id}, which it runs")
        # Before the batch runs: Spark counts what a batch reads, and its open windows, as often as the batch is run.
        for boundary in self._settings.boundaries:
            finished = finished.where(owns_window(boundary))
        is_small = self._is_small(plan, finished.sparkSession)
        return self._write_small(finished, plan) if is_small else self._write_large(finished, plan)

    def _is_small(self, plan: PlannedBatch, session: SparkSession) -> bool:
        """Return whether the batch finishes so few windows, of so few devices, that the driver can take them."""
        if not self._has_new_watermark(plan):
            return True  # only a new watermark finishes windows
        most = self._open_windows_before(plan.batch_id)
        if most is None or most > MAX_WINDOWS_IN_DRIVER:
            return False
        return not self._settings.group_attributes or self._attributes(plan, session) is not None

    def _has_new_watermark(self, plan: PlannedBatch) -> bool:
        before = self._plans.get(plan.batch_id - 1)
        return plan.watermark_ms != (0 if before is None else before.watermark_ms)

    def _attributes(self, plan: PlannedBatch, session: SparkSession) -> Attributes | None:
        return self._devices.attributes_as_of(session, plan.batch_id)

    def _write_small(self, finished: DataFrame, plan: PlannedBatch) -> bool:
        derived = windows.with_derived(finished, self._settings.measures)
        rows: list[Row] = [{**row.asDict(recursive=True), "revision": plan.timestamp_ms} for row in derived.collect()]
        devices: Attributes | None = {}
        if rows and self._settings.group_attributes:
            devices = self._attributes(plan, finished.sparkSession)
        if devices is None:
            # Unreachable while only a new watermark finishes windows. Here it would cost wrong counts, and no window.
            return self._write_large(finished, plan)
        if rows and self._complete_after_ms is not None:
            rows = self._complete_rows(rows, self._complete_after_ms)
        if not rows:
            return False
        with self._traced([_key(row) for row in rows], plan) as traced:
            self._send(rows, traced)
        self._metrics.windows_emitted.inc(len(rows))
        self._metrics.duplicates.inc(sum(row.get("duplicates", 0) for row in rows))
        if self._settings.group_attributes:
            self._write_small_groups(rows, devices)
        return True

    def _send(self, rows: Sequence[Row], traced: Mapping[WindowKey, WindowTrace]) -> None:
        topic, judged_by = self._settings.output_topic, {headers.JUDGED_BY: self._judged_by.encode()}

        def record(row: Row) -> OutputRecord:
            trace = traced.get(_key(row)) if traced else None
            made = (topic, *self._aggregate_record(row))
            return made if trace is None else (*made, trace.headers)

        self._producer.send(map(record, rows), judged_by)

    def _traced_keys(self, rows: DataFrame, plan: PlannedBatch) -> list[WindowKey]:
        """Return those of the rows' windows that have traced readings."""
        ended = [] if self._traces is None else self._traces.ended(plan.watermark_ms, _MOST_ASKED)
        if not ended:
            return []
        # Not all that have ended need be in this batch: readings that came late, or were refused, are in no window.
        keys = headers.window_key()
        found = rows.select(keys.alias("key")).where(keys.isin([headers.text_of_key(*key) for key in ended])).collect()
        present = {row["key"] for row in found}
        return [key for key in ended if headers.text_of_key(*key) in present][:_MOST_TRACED]

    @contextmanager
    def _traced(self, keys: Sequence[WindowKey], plan: PlannedBatch) -> Iterator[Mapping[WindowKey, WindowTrace]]:
        """Give the traces of windows that the body writes; they end with it."""
        if self._traces is None:
            yield {}
            return
        traced = self._traces.of(keys)
        try:
            yield traced
        except BaseException as failure:
            for trace in traced.values():
                trace.end(str(failure))
            raise
        for trace in traced.values():
            trace.end()
        self._traces.published(keys, plan.watermark_ms)

    def _write_small_groups(self, rows: Sequence[Row], devices: Attributes) -> None:
        settings = self._settings
        groups = records.group(rows, devices, settings.group_attributes, settings.unknown_group)
        self._producer.send((settings.grouped_topic, *self._group_record(group)) for group in groups)
        self._metrics.groups_emitted.inc(len(groups))
        self._metrics.windows_without_device.inc(sum(row["device_id"] not in devices for row in rows))

    def _write_large(self, finished: DataFrame, plan: PlannedBatch) -> bool:
        measures = self._settings.measures
        # Persist, so that the state is read only once however often its rows are written.
        persisted = finished.persist(StorageLevel.MEMORY_AND_DISK)
        rows = windows.with_revision(windows.from_epoch_ms(persisted), plan.timestamp_ms)
        try:
            if self._complete_after_ms is not None:
                rows = self._complete(rows, self._complete_after_ms)
            # A job of its own counts the rows: an Observation never completes for rows that Kafka's sink writes.
            copies = F.sum("duplicates") if measures.leaves_copies_out else F.lit(0)
            ((count, duplicates),) = rows.agg(F.count(F.lit(1)), copies).collect()
            if count == 0:
                return False
            has_groups = bool(self._settings.group_attributes)
            # Before anything is written: this may read Kafka and fail, and the batch is run again then.
            devices = self._devices.as_of(finished.sparkSession, plan.batch_id) if has_groups else None
            judged_by = headers.made({headers.JUDGED_BY: F.lit(self._judged_by)})
            with self._traced(self._traced_keys(rows, plan), plan) as traced:
                added = {(*key,): trace.headers for key, trace in traced.items()}
                all_headers = headers.with_those_of_windows(judged_by, added)
                records_of_rows = windows.to_aggregate_topic(rows, self._aggregate_id, all_headers, measures)
                self._write(records_of_rows, self._settings.output_topic)
            self._metrics.windows_emitted.inc(count)
            self._metrics.duplicates.inc(duplicates or 0)
            # The aggregates need no device. They do not wait for the join.
            if devices is not None:
                self._write_groups(rows, devices)
            return True
        finally:
            persisted.unpersist()

    def _complete_rows(self, rows: Sequence[Row], complete_after_ms: int) -> list[Row]:
        """Return the windows whose readings are all in the input. Count the other windows."""
        complete = [row for row in rows if row["window_start"] > complete_after_ms]
        readings = sum(row["count"] for row in rows) - sum(row["count"] for row in complete)
        self._count_incomplete(len(rows) - len(complete), readings, complete_after_ms)
        return complete

    def _complete(self, rows: DataFrame, complete_after_ms: int) -> DataFrame:
        """Return the windows whose readings are all in the input. Count the other windows."""
        begins_too_early = F.unix_millis("window_start") <= complete_after_ms
        ((windows_finished, windows_skipped, readings_skipped),) = rows.agg(
            F.count(F.lit(1)), F.count_if(begins_too_early), F.sum(F.when(begins_too_early, F.col("count")))
        ).collect()
        # A batch without windows says nothing about those that follow.
        if windows_finished:
            self._count_incomplete(windows_skipped, readings_skipped or 0, complete_after_ms)
        return rows.where(~begins_too_early)

    def _count_incomplete(self, windows_skipped: int, readings_skipped: int, complete_after_ms: int) -> None:
        if not windows_skipped:
            # Windows are emitted in the order of their ends: all later windows begin after the bound.
            self._complete_after_ms = None
            return
        self._metrics.windows_incomplete.inc(windows_skipped)
        self._metrics.readings_incomplete.inc(readings_skipped)
        _log.warning(
            "windows are not published, because the input no longer has all their readings",
            windows=windows_skipped,
            readings=readings_skipped,
            complete_after_ms=complete_after_ms,
        )

    def _write_groups(self, rows: DataFrame, devices: DataFrame) -> None:
        settings, seen = self._settings, Observation()
        without_device = F.count_if(F.col(windows.IS_KNOWN).isNull()).alias("without_device")
        members = windows.with_devices(rows, devices).observe(seen, without_device)
        groups = windows.group(members, settings.group_attributes, settings.unknown_group).persist()
        try:
            count = groups.count()
            self._write(windows.to_group_topic(groups, self._group_id), settings.grouped_topic)
            self._metrics.groups_emitted.inc(count)
            # It is told of the first action on the plan, the count. An executor that is lost in it may count twice.
            self._metrics.windows_without_device.inc(seen.get["without_device"])
        finally:
            groups.unpersist()

    def _write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**self._options).option("topic", topic).save()


def _key(row: Row) -> WindowKey:
    return WindowKey(row["device_id"], row["metric"], row["window_start"])


def output_schema_ids(settings: AggregatorSettings, registry: SchemaRegistry) -> tuple[int, int]:
    """Return the schema ids of aggregates and of groups; 0 for groups when they are switched off.

    Raises SchemaNotRegisteredError and RegistryUnavailableError.
    """
    writer = windows.aggregate_schema(settings.measures)
    aggregate_id = registry.schema_id(f"{settings.output_topic}-value", writer)
    if not settings.group_attributes:
        return aggregate_id, 0
    return aggregate_id, registry.schema_id(f"{settings.grouped_topic}-value", windows.GROUP)

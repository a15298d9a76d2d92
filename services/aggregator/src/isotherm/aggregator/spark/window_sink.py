"""The sink of the windowed query: writes finished windows, and the groups made of them, to Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import windows
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.kafka_options import SINK_OPTIONS
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry

_log = logs.logger(__name__)


class WindowSink:
    """Writes the finished windows and groups of a batch, and returns when Kafka has acknowledged them."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kafka_options: Mapping[str, str],
        schema_ids: tuple[int, int],
        devices_table: DevicesTable,
        metrics: Metrics,
        complete_after_ms: int | None = None,
    ) -> None:
        """`schema_ids` are those of aggregates and groups.

        Windows that begin at `complete_after_ms` (epoch ms) or earlier are counted and not written.
        """
        self._settings = settings
        self._complete_after_ms = complete_after_ms
        self._options = {**kafka_options, **SINK_OPTIONS}
        self._aggregate_id, self._group_id = schema_ids
        self._devices = devices_table
        self._metrics = metrics

    def __call__(self, finished: DataFrame, batch_id: int) -> None:
        """Write one batch. Spark calls this again with the same rows when the batch is run again."""
        # Persist, so that the state is read only once however often its rows are written.
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
        """Return the windows whose readings are all in the input, and their number. Count the other windows."""
        begins_too_early = F.unix_millis("window_start") <= complete_after_ms
        incomplete = rows.where(begins_too_early)
        (skipped,) = incomplete.agg(F.count(F.lit(1)).alias("windows"), F.sum("count").alias("readings")).collect()
        if not skipped["windows"]:
            # Windows are emitted in the order of their ends: all later windows begin after the bound.
            self._complete_after_ms = None
        else:
            self._metrics.windows_incomplete.inc(skipped["windows"])
            self._metrics.readings_incomplete.inc(skipped["readings"])
            _log.warning(
                "windows are not published, because the input no longer has all their readings",
                windows=skipped["windows"],
                readings=skipped["readings"],
                complete_after_ms=complete_after_ms,
            )
        return rows.where(~begins_too_early), count - skipped["windows"]

    def _write_groups(self, rows: DataFrame, batch_id: int) -> None:
        settings = self._settings
        devices = self._devices.as_of(rows.sparkSession, batch_id)
        members = windows.with_devices(rows, devices)
        # Jobs of their own count the rows: an Observation never completes for rows that Kafka's sink writes.
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


def output_schema_ids(settings: AggregatorSettings, registry: SchemaRegistry) -> tuple[int, int]:
    """Return the schema ids of aggregates and of groups; 0 for groups when they are switched off.

    Raises SchemaNotRegisteredError and RegistryUnavailableError.
    """
    aggregate_id = registry.schema_id(f"{settings.output_topic}-value", windows.AGGREGATE)
    if not settings.group_attributes:
        return aggregate_id, 0
    return aggregate_id, registry.schema_id(f"{settings.grouped_topic}-value", windows.GROUP)

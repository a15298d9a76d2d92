"""The Prometheus metrics of the aggregator."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.aggregator.frames.readings import DEAD_LETTER_REASONS, FILTERED, LATE
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.progress import READINGS_OBSERVED, REJECTED_OBSERVED, Progress

PREFIX = "isotherm_aggregator_"
_UNKNOWN = float("nan")


class Standstill:
    """Measures for how long no work was done although there is work.

    Work is an unread record, a window that can end, or a query that does not run. The thread that serves the metrics
    reads the time, so it grows while the main loop waits, too.
    """

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._since_s: float | None = None
        self._done: Hashable = None

    def begin(self) -> None:
        """Record that there is work from now on, until `rest` is called."""
        self._since_s = self._elapsed_s()

    def rest(self) -> None:
        """Record that there is no work: all is read and no window can end, or the queries are paused or stopped."""
        self._since_s = None

    def work(self, done: Hashable) -> None:
        """Record that there is work. A changed value of `done` says that some work was done."""
        if self._since_s is None or done != self._done:
            self._since_s = self._elapsed_s()
        self._done = done

    def seconds(self) -> float:
        """Return the seconds since work was last done; 0 while there is no work."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._elapsed_s() - since_s


class CorrectionMetrics:
    """The counters and gauges of the corrections that the service makes by itself."""

    def __init__(self, counter: Callable[[str, str], Counter], gauge: Callable[[str, str], Gauge]) -> None:
        """`counter` and `gauge` make a metric of a name and a text."""
        self.windows = counter(
            "windows_corrected", "Windows published again because late readings were merged into them."
        )
        self.groups = counter("groups_corrected", "Groups published again after a correction.")
        self.merged = counter(
            "late_readings_merged",
            "Late readings whose windows were corrected. Copies count, and in sliding windows each window counts.",
        )
        self.not_merged = counter(
            "late_readings_not_merged",
            "Late readings whose windows are too old for the service to correct. `recompute` may do it.",
        )
        self.failed = counter(
            "corrections_failed", "Attempts to correct windows that ended with an error and are made again."
        )
        self.waiting = gauge(
            "corrections_waiting", "Window starts with late readings that wait until their windows are final."
        )


class RollupMetrics:
    """The counters of the windows that are made of others."""

    def __init__(self, counter: Callable[..., Counter]) -> None:
        """`counter` makes a metric of a name, a text, and names of labels."""
        self.published = counter(
            "rollup_windows_published", "Aggregates of the windows of the setting `windows`, by name.", "window"
        )
        self.incomplete = counter(
            "rollup_windows_incomplete",
            "Window starts of the setting `windows` that were not made or corrected, because retention has removed "
            "shorter windows of them.",
            "window",
        )
        self.failed = counter(
            "rollups_failed", "Attempts to make the windows of the setting `windows` that are made again."
        )


class Metrics:
    """The counters and gauges of one process."""

    read_until_ms: int | None = None
    """The time (epoch ms) until which both queries have read the input, and written what follows from it."""
    complete_after_ms: int | None = None
    """Windows that begin later are complete; of a new checkpoint earlier ones may lack readings, and are left out."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batches: Mapping[str, Progress] = {}
        """The last non-empty batch of each query."""
        self.watermark_ms: int | None = None
        """The watermark of the last batch of the windowed query: it has written every window that ends by then."""
        self.lags: Mapping[str, Mapping[Partition, int]] = {}
        """Unread records by query and partition."""
        self.input_rows = self._counter("input_records", "Records read or passed over, by query.", "query")
        self.passed_over = self._counter(
            "records_passed_over", "Records that the query of rejects did not read, because none is rejected."
        )
        self.on_time = self._counter("readings_aggregated", "Readings that went into windows.")
        self.late = self._counter("late_records", "Readings that went to the late topic.")
        self.dead_letters = self._counter("dead_letters", "Records that went to the dead-letter topic.", "reason")
        self.filtered = self._counter("readings_filtered", "Readings of which the condition `where` is not true.")
        self.duplicates = self._counter(
            "readings_duplicate", "Copies of readings on time that are in no window, by the setting `deduplicate`."
        )
        self.windows_emitted = self._counter("windows_emitted", "Aggregates written.")
        self.groups_emitted = self._counter("groups_emitted", "Group aggregates written.")
        self.windows_incomplete = self._counter(
            "windows_incomplete",
            "Aggregates that a new checkpoint did not write, because the input no longer has all their readings.",
        )
        self.readings_incomplete = self._counter(
            "readings_incomplete", "Readings in the aggregates that a new checkpoint did not write."
        )
        self.windows_without_device = self._counter(
            "windows_without_device", "Aggregates whose device is not in the devices topic."
        )
        self.corrections = CorrectionMetrics(self._counter, self._gauge)
        self.rollups = RollupMetrics(self._counter)
        self.dropped = self._counter(
            "rows_dropped_by_watermark", "Partial aggregates that the watermark dropped. An alarm."
        )
        self.progress_missed = self._counter(
            "progress_missed",
            "Batches whose progress Spark did not report, so that they are not counted here.",
            "query",
        )
        self.query_restarts = self._counter("query_restarts", "Restarts of a query in this process.", "query", "cause")
        self.batch_seconds = self._gauge("batch_duration_seconds", "Duration of the last micro-batch.", "query")
        self.rows_per_second = self._gauge("rows_per_second", "Records per second of the last micro-batch.", "query")
        self.watermark = self._gauge("watermark_seconds", "The watermark, in seconds since the epoch.")
        self.state_rows = self._gauge(
            "state_rows",
            "Open windows; with `deduplicate` the readings of open windows, too. NaN where the store counts none.",
        )
        self.lag = self._gauge("lag_records", "Unread records in the topic.", "query", "topic", "partition")
        self.standstill = Standstill()
        self._gauge(
            "standstill_seconds",
            "Time for which no work was done although there is work; 0 while idle or halted.",
        ).set_function(self.standstill.seconds)
        self.halted = self._gauge(
            "halted", "1 while the queries do not run because the target state is paused or stopped."
        )
        for reason in DEAD_LETTER_REASONS:
            self.dead_letters.labels(reason)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def add(self, query: str, progress: Progress) -> None:
        """Count one trigger of `query`."""
        self.input_rows.labels(query).inc(progress.input_rows)
        self.passed_over.inc(progress.passed_over)
        if progress.input_rows or progress.observed:
            self.batches = {**self.batches, query: progress}
            self.batch_seconds.labels(query).set(progress.duration_ms / 1000)
            if not progress.passed_over:
                self.rows_per_second.labels(query).set(progress.rows_per_second)
        if progress.watermark_ms is not None:
            self.watermark_ms = progress.watermark_ms
            self.watermark.set(progress.watermark_ms / 1000)
            self.state_rows.set(_UNKNOWN if progress.state_rows is None else progress.state_rows)
            self.dropped.inc(progress.dropped_rows)
        self.on_time.inc(progress.observed.get(READINGS_OBSERVED, {}).get("on_time") or 0)
        rejected = progress.observed.get(REJECTED_OBSERVED, {})
        self.late.inc(rejected.get(LATE) or 0)
        self.filtered.inc(rejected.get(FILTERED) or 0)
        for reason in DEAD_LETTER_REASONS:
            self.dead_letters.labels(reason).inc(rejected.get(reason) or 0)

    def set_lag(self, query: str, read_to: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Set the lag of `query`: the records between what it has read and the end offsets of the partitions."""
        lags = {partition: max(0, end - read_to.get(partition, 0)) for partition, end in ends.items()}
        for (topic, number), records in lags.items():
            self.lag.labels(query, topic, str(number)).set(records)
        self.lags = {**self.lags, query: lags}

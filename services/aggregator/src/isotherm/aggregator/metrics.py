"""What the aggregator counts, and how Spark's query progress becomes numbers (pure)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.aggregator.frames.readings import DEAD_LETTER_REASONS, LATE

Partition = tuple[str, int]

PREFIX = "isotherm_aggregator_"

READINGS_OBSERVED = "readings"
"""Observation of the windowed query: `on_time`, `newest_appended_ms`."""
REFUSED_OBSERVED = "refused"
"""Observation of the stateless query: a count for each of REASONS."""


@dataclass(frozen=True)
class Progress:
    """What Spark says of one trigger of a query (StreamingQueryProgress, as JSON)."""

    batch_id: int
    timestamp: str
    input_rows: int
    duration_ms: int
    watermark_ms: int | None
    read_to: Mapping[Partition, int] | None
    """The offset behind the last record read, by partition of the Kafka source; None before the first batch."""
    state_rows: int | None
    """Open windows; None when this start of the query has run no batch yet, and for a query without state."""
    dropped_rows: int
    observed: Mapping[str, Mapping[str, int | None]]
    missed: int = 0
    """Batches before this one of which no progress was seen, because it was asked for too late."""

    @property
    def rows_per_second(self) -> float:
        """Records read for each second that the batch took."""
        return self.input_rows * 1000 / max(1, self.duration_ms)

    @property
    def newest_appended_ms(self) -> int | None:
        """The newest append time among the readings that went into windows; None when there were none."""
        return self.observed.get(READINGS_OBSERVED, {}).get("newest_appended_ms")

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Read the JSON of a StreamingQueryProgress."""
        progress = json.loads(text)
        kafka = next(source for source in progress["sources"] if source["description"].startswith("KafkaV2"))
        watermark = progress.get("eventTime", {}).get("watermark")
        operators: Sequence[Mapping[str, Any]] = progress["stateOperators"]
        return cls(
            batch_id=progress["batchId"],
            timestamp=progress["timestamp"],
            input_rows=kafka["numInputRows"],
            duration_ms=progress.get("batchDuration", 0),
            watermark_ms=None if watermark is None else _epoch_ms(watermark),
            read_to=_partitions(kafka["endOffset"]),
            state_rows=sum(operator["numRowsTotal"] for operator in operators) if operators else None,
            dropped_rows=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
            observed=progress.get("observedMetrics", {}),
        )


def _epoch_ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def _partitions(offsets: Mapping[str, Mapping[str, int]] | None) -> Mapping[Partition, int] | None:
    if offsets is None:
        return None
    return {(topic, int(number)): offset for topic, numbers in offsets.items() for number, offset in numbers.items()}


class Standstill:
    """How long nothing was done although there is work: unread records, windows that may end, queries that do not run.

    It is asked from the thread that serves the metrics, so that it grows also while the main loop waits.
    """

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._since_s: float | None = None
        self._done: Hashable = None

    def begin(self) -> None:
        """There is work from now on, as long as nobody says that there is none."""
        self._since_s = self._elapsed_s()

    def rest(self) -> None:
        """There is nothing to do: everything is read and no window is open, or nobody wants it done."""
        self._since_s = None

    def work(self, done: Hashable) -> None:
        """There is something to do; `done` changes when some of it is done."""
        if self._since_s is None or done != self._done:
            self._since_s = self._elapsed_s()
        self._done = done

    def seconds(self) -> float:
        """Seconds since work was last done."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._elapsed_s() - since_s


class Metrics:
    """The counters and gauges of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batches: Mapping[str, Progress] = {}
        """The last batch of each query that had something to do."""
        self.lags: Mapping[str, Mapping[Partition, int]] = {}
        """Records not read yet, by query."""
        self.input_rows = self._counter("input_records", "Records read, by query.", "query")
        self.on_time = self._counter("readings_aggregated", "Readings that went into windows.")
        self.late = self._counter("late_records", "Readings that went to the late topic.")
        self.dead_letters = self._counter("dead_letters", "Records that went to the dead-letter topic.", "reason")
        self.windows_emitted = self._counter("windows_emitted", "Aggregates written.")
        self.groups_emitted = self._counter("groups_emitted", "Group aggregates written.")
        self.windows_incomplete = self._counter(
            "windows_incomplete",
            "Aggregates not written by a new checkpoint: the input lacks readings of them.",
        )
        self.readings_incomplete = self._counter(
            "readings_incomplete", "Readings in the aggregates that were not written after a new checkpoint."
        )
        self.windows_without_device = self._counter(
            "windows_without_device", "Aggregates whose device is not in the devices topic."
        )
        self.dropped = self._counter("rows_dropped_by_watermark", "Partial aggregates lost to the watermark: an alarm.")
        self.progress_missed = self._counter(
            "progress_missed", "Batches of which Spark's progress was not seen, and so not counted here.", "query"
        )
        self.query_restarts = self._counter(
            "query_restarts", "Queries started again within this process.", "query", "cause"
        )
        self.batch_seconds = self._gauge("batch_duration_seconds", "Duration of the last micro-batch.", "query")
        self.rows_per_second = self._gauge("rows_per_second", "Records a second of the last micro-batch.", "query")
        self.watermark = self._gauge("watermark_seconds", "The watermark, in seconds since the epoch.")
        self.state_rows = self._gauge("state_rows", "Open windows.")
        self.lag = self._gauge(
            "lag_records", "Records in the topic that are not read yet.", "query", "topic", "partition"
        )
        self.standstill = Standstill()
        self._gauge(
            "standstill_seconds",
            "Time for which no work was done although there is some; 0 while idle or halted.",
        ).set_function(self.standstill.seconds)
        self.halted = self._gauge("halted", "1 while the queries stand still because they are to: paused or stopped.")
        for reason in DEAD_LETTER_REASONS:
            self.dead_letters.labels(reason)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def add(self, query: str, progress: Progress) -> None:
        """Count one trigger of `query`."""
        self.input_rows.labels(query).inc(progress.input_rows)
        if progress.input_rows or progress.observed:
            self.batches = {**self.batches, query: progress}
            self.batch_seconds.labels(query).set(progress.duration_ms / 1000)
            self.rows_per_second.labels(query).set(progress.rows_per_second)
        if progress.watermark_ms is not None:
            self.watermark.set(progress.watermark_ms / 1000)
            self.state_rows.set(progress.state_rows or 0)
            self.dropped.inc(progress.dropped_rows)
        self.on_time.inc(progress.observed.get(READINGS_OBSERVED, {}).get("on_time") or 0)
        refused = progress.observed.get(REFUSED_OBSERVED, {})
        self.late.inc(refused.get(LATE) or 0)
        for reason in DEAD_LETTER_REASONS:
            self.dead_letters.labels(reason).inc(refused.get(reason) or 0)

    def set_lag(self, query: str, read_to: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Show how far `query` is behind the ends of the partitions."""
        lags = {partition: max(0, end - read_to.get(partition, 0)) for partition, end in ends.items()}
        for (topic, number), records in lags.items():
            self.lag.labels(query, topic, str(number)).set(records)
        self.lags = {**self.lags, query: lags}

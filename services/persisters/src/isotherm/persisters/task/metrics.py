"""What a task counts, under Kafka Connect's names where Connect has one (`sink-task-metrics`, `task-error-metrics`).

The outcomes of records are read from the lanes at the moment of asking, so that they are the very counts that are
committed with the offsets and survive `kill -9`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isotherm.persisters.task.accounting import Counts
from isotherm.persisters.task.in_flight_batch import Refusal
from isotherm.persisters.task.partition_buffers import Lane, Partition
from isotherm.persisters.task.recent import Recent

_LABELS = ["connector", "task"]
_PUT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PUT_ROWS = (1, 10, 50, 100, 250, 500, 1000, 2000, 5000, 10000)


class TaskMetrics:
    """The observer of one task's loop, and a collector for Prometheus."""

    def __init__(self, registry: CollectorRegistry, connector: str, task: int) -> None:
        self._labels = [connector, str(task)]
        self._lanes: Callable[[], Mapping[Partition, Lane]] = dict
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._last_error_ms = 0.0
        self._recent = {name: Recent() for name in ("put", "commit", "batch")}
        self._put_seconds = Histogram(
            "kafka_connect_sink_task_put_batch_seconds",
            "Time to write one batch to the sink.",
            _LABELS,
            registry=registry,
            buckets=_PUT_SECONDS,
        ).labels(*self._labels)
        self._put_rows = Histogram(
            "isotherm_persisters_batch_rows",
            "Rows of one write.",
            _LABELS,
            registry=registry,
            buckets=_PUT_ROWS,
        ).labels(*self._labels)
        registry.register(self)

    def follow(self, lanes: Callable[[], Mapping[Partition, Lane]]) -> None:
        """Read outcomes and lag from `lanes` whenever they are asked for."""
        self._lanes = lanes

    def wrote(self, rows: int, seconds: float) -> None:
        """One write is over."""
        self._put_seconds.observe(seconds)
        self._put_rows.observe(rows)
        with self._lock:
            self._counts["sent"] += rows
            self._recent["put"].observe(seconds * 1000)
            self._recent["batch"].observe(rows)

    def retried(self, rows: int) -> None:
        """Rows wait for another attempt."""
        self._add("retries", rows)

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Nothing to count here: the lane has counted."""

    def committed(self, seconds: float, failed: bool) -> None:
        """Offsets were committed, or not."""
        with self._lock:
            self._counts["commit_failed" if failed else "commits"] += 1
            self._recent["commit"].observe(seconds * 1000)

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Records were skipped or dead-lettered."""
        self._last_error_ms = time.time() * 1000

    def logged(self) -> None:
        """A sample of refused records was logged."""
        self._add("logged", 1)

    def letters_failed(self, letters: int) -> None:
        """Dead letters were not acknowledged."""
        self._add("letters_failed", letters)

    def totals(self) -> dict[str, int]:
        """The outcomes of all assigned partitions together, for the status."""
        total = Counts()
        for lane in list(self._lanes().values()):
            total.add(lane.counts)
        lost = sum(lane.lost for lane in list(self._lanes().values()))
        return {
            "read": total.read,
            "written": total.written,
            "dead_lettered": total.dead_lettered.total(),
            "skipped": total.skipped.total(),
            "filtered": total.filtered.total(),
            **({"lost_offsets": lost} if lost else {}),
        }

    def lag(self) -> dict[str, int]:
        """Records behind, by `topic-partition`."""
        return {f"{topic}-{partition}": lane.lag for (topic, partition), lane in self._lanes().items()}

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        lanes = dict(self._lanes())
        yield self._records(lanes)
        totals = self.totals()
        with self._lock:
            counts = Counter(self._counts)
            recent = {name: (one.highest, one.average) for name, one in self._recent.items()}
        sink, errors = "kafka_connect_sink_task_", "kafka_connect_task_error_"
        yield self._counter(sink + "sink_record_read", "Records whose outcome is settled.", totals["read"])
        yield self._counter(sink + "sink_record_send", "Rows handed to the sink.", counts["sent"])
        yield self._counter(sink + "offset_commit_completion", "Commits of offsets.", counts["commits"])
        yield self._counter(errors + "offset_commit_failures", "Commits that failed.", counts["commit_failed"])
        failures = totals["dead_lettered"] + totals["skipped"]
        yield self._counter(errors + "record_failures", "Records that could not be written.", failures)
        yield self._counter(errors + "records_skipped", "Records passed over by policy.", totals["skipped"])
        yield self._counter(errors + "retries", "Rows that were offered again.", counts["retries"])
        produced = totals["dead_lettered"]
        yield self._counter(errors + "deadletterqueue_produce_requests", "Dead letters acknowledged.", produced)
        failed = counts["letters_failed"]
        yield self._counter(errors + "deadletterqueue_produce_failures", "Dead letters not acknowledged.", failed)
        yield self._counter(errors + "errors_logged", "Lines in the log about refused records.", counts["logged"])
        yield self._gauge(sink + "offset_commit_seq_no", "Commits of offsets of this process.", counts["commits"])
        task = "kafka_connect_connector_task_"
        for place, name, doc in (
            (sink + "put_batch_{}_time_ms", "put", "time to write one batch"),
            (task + "offset_commit_{}_time_ms", "commit", "time to commit offsets"),
            (task + "batch_size_{}", "batch", "rows of one write"),
        ):
            highest, average = recent[name]
            yield self._gauge(place.format("max"), f"Longest or largest lately: {doc}.", highest)
            yield self._gauge(place.format("avg"), f"Average lately: {doc}.", average)
        last = self._last_error_ms
        yield self._gauge(errors + "last_error_timestamp", "When a record was refused last, epoch ms.", last)
        yield self._gauge(sink + "partition_count", "Partitions assigned.", len(lanes))
        lag = {partition: lane.lag for partition, lane in lanes.items()}
        yield self._gauge(sink + "sink_record_lag_max", "Most records behind.", max(lag.values(), default=0))
        active = sum(len(lane.waiting) for lane in lanes.values())
        yield self._gauge(sink + "sink_record_active_count", "Records read and waiting.", active)
        paused = sum(1 for lane in lanes.values() if lane.paused)
        yield self._gauge("isotherm_persisters_paused_lanes", "Partitions not read because the sink is slow.", paused)
        yield self._by_partition(lag)
        yield self._lost(lanes)

    def _records(self, lanes: Mapping[Partition, Lane]) -> Metric:
        records = CounterMetricFamily(
            "isotherm_persisters_records",
            "Records by outcome, exact over restarts: read = written + dead_lettered + skipped + filtered.",
            labels=[*_LABELS, "topic", "partition", "outcome", "reason"],
        )
        for (topic, partition), lane in lanes.items():
            place = [*self._labels, topic, str(partition)]
            records.add_metric([*place, "read", ""], lane.counts.read)
            records.add_metric([*place, "written", ""], lane.counts.written)
            for outcome in ("dead_lettered", "skipped", "filtered"):
                for reason, count in dict(getattr(lane.counts, outcome)).items():
                    records.add_metric([*place, outcome, reason], count)
        return records

    def _lost(self, lanes: Mapping[Partition, Lane]) -> Metric:
        family = CounterMetricFamily(
            "isotherm_persisters_lost_offsets",
            "Offsets that were gone from the topic before they were read, exact over restarts.",
            labels=[*_LABELS, "topic", "partition"],
        )
        for (topic, partition), lane in lanes.items():
            family.add_metric([*self._labels, topic, str(partition)], lane.lost)
        return family

    def _by_partition(self, lag: Mapping[Partition, int]) -> Metric:
        family = GaugeMetricFamily(
            "isotherm_persisters_lag_records", "Records behind.", labels=[*_LABELS, "topic", "partition"]
        )
        for (topic, partition), records in lag.items():
            family.add_metric([*self._labels, topic, str(partition)], records)
        return family

    def _counter(self, name: str, doc: str, value: float) -> Metric:
        family = CounterMetricFamily(name, doc, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _gauge(self, name: str, doc: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, doc, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _add(self, name: str, count: int) -> None:
        with self._lock:
            self._counts[name] += count

"""The metrics of a task, under Kafka Connect's names if Connect has one (`sink-task-metrics`, `task-error-metrics`).

Every scrape reads the outcomes of records from the partition buffers: they are the counts that are committed with the
offsets, so they survive `kill -9`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import Partition, PartitionBuffer
from isotherm.persisters.task.sampled_stat import SampledStat
from isotherm.persisters.task.stored_latency import StoredLatency

_LABELS = ["connector", "task"]
_PUT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PUT_ROWS = (1, 10, 50, 100, 250, 500, 1000, 2000, 5000, 10000)


class TaskMetrics:
    """The observer of one task's loop, and a collector for Prometheus."""

    def __init__(self, registry: CollectorRegistry, connector: str, task: int) -> None:
        self._labels = [connector, str(task)]
        self._buffers: Callable[[], Mapping[Partition, PartitionBuffer]] = dict
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._last_error_ms = 0.0
        self._latency = StoredLatency()
        self._stats = {name: SampledStat() for name in ("put", "commit", "batch")}
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

    def follow(self, buffers: Callable[[], Mapping[Partition, PartitionBuffer]]) -> None:
        """Read outcomes and lag from `buffers` at every scrape and heartbeat."""
        self._buffers = buffers

    def wrote(self, rows: int, seconds: float) -> None:
        """One write of `rows` rows to the sink ended."""
        self._put_seconds.observe(seconds)
        self._put_rows.observe(rows)
        with self._lock:
            self._counts["sent"] += rows
            self._stats["put"].observe(seconds * 1000)
            self._stats["batch"].observe(rows)

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        """The sink has taken these rows of `records`."""
        self._latency.observe(rows, records, time.time() * 1000)

    def traced(self, row: Row, records: Sequence[Record], trace_id: str) -> None:
        """The sink has taken a row of `records` that belongs to a trace."""
        self._latency.exemplify(row, records, trace_id, time.time() * 1000)

    def retried(self, rows: int) -> None:
        """Rows wait for another attempt."""
        self._add("retries", rows)

    def committed(self, seconds: float, failed: bool) -> None:
        """A commit of offsets took `seconds` seconds, and failed or not."""
        with self._lock:
            self._counts["commit_failed" if failed else "commits"] += 1
            self._stats["commit"].observe(seconds * 1000)

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Records were skipped or dead-lettered."""
        self._last_error_ms = time.time() * 1000

    def logged(self) -> None:
        """One line about failed records was logged."""
        self._add("logged", 1)

    def dead_letters_failed(self, records: int) -> None:
        """The dead letters of `records` records were not acknowledged."""
        self._add("dead_letters_failed", records)

    def totals(self) -> dict[str, int]:
        """Return the sums of the outcomes over all assigned partitions, for the status."""
        total = Counts()
        buffers = list(self._buffers().values())
        for buffer in buffers:
            total.add(buffer.counts)
        lost = sum(buffer.lost for buffer in buffers)
        return {
            "read": total.read,
            "written": total.written,
            "dead_lettered": total.dead_lettered.total(),
            "skipped": total.skipped.total(),
            "filtered": total.filtered.total(),
            **({"lost_offsets": lost} if lost else {}),
        }

    def lag(self) -> dict[str, int]:
        """Return how many records each partition is behind, by `topic-partition`."""
        return {f"{topic}-{partition}": buffer.lag for (topic, partition), buffer in self._buffers().items()}

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics but the histograms; Prometheus' registry calls it at every scrape."""
        buffers = dict(self._buffers())
        yield self._records(buffers)
        totals = self.totals()
        with self._lock:
            counts = Counter(self._counts)
            stats = {name: (stat.highest, stat.average) for name, stat in self._stats.items()}
        sink, errors = "kafka_connect_sink_task_", "kafka_connect_task_error_"
        yield self._counter(sink + "sink_record_read", "Records whose outcome is settled.", totals["read"])
        yield self._counter(sink + "sink_record_send", "Rows handed to the sink.", counts["sent"])
        yield self._counter(sink + "offset_commit_completion", "Commits of offsets.", counts["commits"])
        yield self._counter(errors + "offset_commit_failures", "Commits that failed.", counts["commit_failed"])
        failures = totals["dead_lettered"] + totals["skipped"]
        yield self._counter(errors + "record_failures", "Records that could not be written.", failures)
        yield self._counter(errors + "records_skipped", "Records passed over by policy.", totals["skipped"])
        yield self._counter(errors + "retries", "Rows that were written again.", counts["retries"])
        produced = totals["dead_lettered"]
        yield self._counter(errors + "deadletterqueue_produce_requests", "Dead letters acknowledged.", produced)
        failed = counts["dead_letters_failed"]
        yield self._counter(errors + "deadletterqueue_produce_failures", "Dead letters not acknowledged.", failed)
        yield self._counter(errors + "errors_logged", "Lines in the log about failed records.", counts["logged"])
        yield self._gauge(sink + "offset_commit_seq_no", "Commits of offsets of this process.", counts["commits"])
        task = "kafka_connect_connector_task_"
        for metric, name, doc in (
            (sink + "put_batch_{}_time_ms", "put", "time to write one batch"),
            (task + "offset_commit_{}_time_ms", "commit", "time to commit offsets"),
            (task + "batch_size_{}", "batch", "rows of one write"),
        ):
            highest, average = stats[name]
            yield self._gauge(metric.format("max"), f"Highest of the last minute: {doc}.", highest)
            yield self._gauge(metric.format("avg"), f"Average of the last minute: {doc}.", average)
        last = self._last_error_ms
        yield self._gauge(errors + "last_error_timestamp", "When a record failed last, epoch milliseconds.", last)
        yield self._gauge(sink + "partition_count", "Partitions assigned.", len(buffers))
        lag = {partition: buffer.lag for partition, buffer in buffers.items()}
        yield self._gauge(sink + "sink_record_lag_max", "Most records behind.", max(lag.values(), default=0))
        active = sum(len(buffer.waiting) for buffer in buffers.values())
        yield self._gauge(sink + "sink_record_active_count", "Records read and waiting.", active)
        paused = sum(1 for buffer in buffers.values() if buffer.paused)
        yield self._gauge(
            "isotherm_persisters_paused_partitions", "Partitions not read because the sink is slow.", paused
        )
        yield self._by_partition(lag)
        yield self._lost(buffers)
        yield self._latency.metric("isotherm_persisters_end_to_end_latency_seconds", _LABELS, self._labels)

    def _records(self, buffers: Mapping[Partition, PartitionBuffer]) -> Metric:
        records = CounterMetricFamily(
            "isotherm_persisters_records",
            "Records by outcome, exact over restarts: read = written + dead_lettered + skipped + filtered.",
            labels=[*_LABELS, "topic", "partition", "outcome", "reason"],
        )
        for (topic, partition), buffer in buffers.items():
            labels = [*self._labels, topic, str(partition)]
            records.add_metric([*labels, "read", ""], buffer.counts.read)
            records.add_metric([*labels, "written", ""], buffer.counts.written)
            for outcome in ("dead_lettered", "skipped", "filtered"):
                for reason, count in dict(getattr(buffer.counts, outcome)).items():
                    records.add_metric([*labels, outcome, reason], count)
        return records

    def _lost(self, buffers: Mapping[Partition, PartitionBuffer]) -> Metric:
        family = CounterMetricFamily(
            "isotherm_persisters_lost_offsets",
            "Offsets that were gone from the topic before they were read, exact over restarts.",
            labels=[*_LABELS, "topic", "partition"],
        )
        for (topic, partition), buffer in buffers.items():
            family.add_metric([*self._labels, topic, str(partition)], buffer.lost)
        return family

    def _by_partition(self, lag: Mapping[Partition, int]) -> Metric:
        family = GaugeMetricFamily(
            "isotherm_persisters_lag_records",
            "Records that the partition is behind.",
            labels=[*_LABELS, "topic", "partition"],
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

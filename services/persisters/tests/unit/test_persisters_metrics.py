"""Metrics: Kafka Connect's names where it has one, and recent maxima and averages."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.persisters.task.sampled_stat import SampledStat
from isotherm.servicekit.backoff import Backoff


def test_recent_values_are_forgotten_after_two_windows() -> None:
    now = [0.0]
    recent = SampledStat(10.0, lambda: now[0])
    assert (recent.highest, recent.average) == (0.0, 0.0)
    recent.observe(4.0)
    now[0] = 12.0
    recent.observe(2.0)
    assert (recent.highest, recent.average) == (4.0, 3.0)
    now[0] = 21.0
    assert (recent.highest, recent.average) == (2.0, 2.0)
    now[0] = 45.0
    assert (recent.highest, recent.average) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kafka_connect_sink_task_sink_record_read_total", 10),
        ("kafka_connect_sink_task_sink_record_send_total", 12),
        ("kafka_connect_sink_task_sink_record_active_count", 0),
        ("kafka_connect_sink_task_sink_record_lag_max", 5),
        ("kafka_connect_sink_task_partition_count", 1),
        ("kafka_connect_sink_task_offset_commit_seq_no", 1),
        ("kafka_connect_sink_task_offset_commit_completion_total", 1),
        ("kafka_connect_sink_task_put_batch_max_time_ms", 500),
        ("kafka_connect_sink_task_put_batch_avg_time_ms", 300),
        ("kafka_connect_connector_task_offset_commit_max_time_ms", 30),
        ("kafka_connect_connector_task_offset_commit_avg_time_ms", 20),
        ("kafka_connect_connector_task_batch_size_max", 8),
        ("kafka_connect_connector_task_batch_size_avg", 6),
        ("kafka_connect_task_error_record_failures_total", 3),
        ("kafka_connect_task_error_records_skipped_total", 1),
        ("kafka_connect_task_error_retries_total", 2),
        ("kafka_connect_task_error_errors_logged_total", 1),
        ("kafka_connect_task_error_deadletterqueue_produce_requests_total", 2),
        ("kafka_connect_task_error_deadletterqueue_produce_failures_total", 4),
    ],
)
def test_connects_names(name: str, expected: float) -> None:
    registry = CollectorRegistry()
    metrics = TaskMetrics(registry, "c", 0)
    counts = Counts(read=10, written=6)
    counts.dead_lettered["decode"] += 2
    counts.skipped["decode"] += 1
    counts.filtered["expired"] += 1
    buffer = PartitionBuffer(("t", 0), counts, Backoff(), position=10, committed=10, high_watermark=15)
    metrics.follow(lambda: {("t", 0): buffer})
    metrics.wrote(8, 0.5)
    metrics.wrote(4, 0.1)
    metrics.retried(2)
    metrics.committed(0.01, False)
    metrics.committed(0.03, True)
    metrics.logged()
    metrics.dead_letters_failed(4)
    assert registry.get_sample_value(name, {"connector": "c", "task": "0"}) == pytest.approx(expected)

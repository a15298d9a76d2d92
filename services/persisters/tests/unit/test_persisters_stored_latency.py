"""End-to-end latency: which rows are looked at, what they stand for, and where ingest begins."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from isotherm import kcql
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.persisters.task.stored_latency import EVENT, INGEST, StoredLatency

NOW_MS = 1_767_225_600_000.0
(STATEMENT,) = kcql.parse("INSERT INTO a SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")


def row(offset: int, event_ms: float, values: Any = None) -> Row:
    return Row(offset, "a", str(offset), values, int(event_ms), None, PLAN)


def record(offset: int, timestamp_ms: float) -> Record:
    return Record("t", 0, offset, int(timestamp_ms), None, b"", ())


def buckets(latency: StoredLatency, since: str) -> dict[str, float]:
    """The numbers of rows up to each limit, their sum and their count."""
    (metric,) = [latency.metric("m", [], [])]
    found = {}
    for sample in metric.samples:
        if sample.labels["since"] == since:
            found[sample.labels.get("le", sample.name)] = sample.value
    return found


def observed(rows: Sequence[Row], records: Sequence[Record] = ()) -> StoredLatency:
    latency = StoredLatency()
    latency.observe(rows, records, NOW_MS)
    return latency


@given(st.lists(st.integers(-10_000, 10_000_000), max_size=100))
def test_every_row_counts_whatever_the_samples(ages_ms: list[int]) -> None:
    latency = observed([row(number, NOW_MS - age) for number, age in enumerate(ages_ms)])
    for since in (EVENT, INGEST):
        found = buckets(latency, since)
        assert found["+Inf"] == found["m_count"] == len(ages_ms)
        assert 0 <= found["m_sum"] <= len(ages_ms) * max(0, *ages_ms, 0) / 1000 + 1e-6


def test_samples_stand_for_their_neighbours() -> None:
    # A quarter of 1,600 rows is older than a minute; the samples see just that.
    rows = [row(number, NOW_MS - (120_000 if number < 400 else 200)) for number in range(1_600)]
    found = buckets(observed(rows), EVENT)
    assert (found["0.1"], found["0.25"], found["60.0"], found["300.0"]) == (0, 1_200, 1_200, 1_600)
    assert found["m_sum"] == pytest.approx(400 * 120 + 1_200 * 0.2)


def test_a_few_rows_are_all_looked_at() -> None:
    found = buckets(observed([row(0, NOW_MS - 40), row(1, NOW_MS - 400), row(2, NOW_MS + 5_000)]), EVENT)
    assert (found["0.05"], found["0.5"]) == (2, 3)
    assert found["m_sum"] == pytest.approx(0.44)


@pytest.mark.parametrize(
    ("values", "expected_s"),
    [
        ({"ingest_time": int(NOW_MS - 2_000)}, 2.0),
        ({"ingest_time": datetime.fromtimestamp(NOW_MS / 1000 - 2, UTC)}, 2.0),
        ({"ingest_time": "yesterday"}, 7.0),
        ({"ingest_time": None}, 7.0),
        ({"value": 1}, 7.0),
        (["no", "record"], 7.0),
        (None, 7.0),
    ],
)
def test_ingest_is_the_records_own_time_or_kafkas(values: Any, expected_s: float) -> None:
    records = [record(offset, NOW_MS - 1_000 * offset) for offset in range(5, 10)]
    latency = observed([row(7, NOW_MS - 60_000, values)], records)
    assert buckets(latency, INGEST)["m_sum"] == pytest.approx(expected_s)
    assert buckets(latency, EVENT)["m_sum"] == pytest.approx(60.0)


def test_the_metric_of_a_task() -> None:
    registry = CollectorRegistry()
    metrics = TaskMetrics(registry, "c", 0)
    metrics.stored([row(0, 0)], [record(0, 0)])
    for since in ("event", "ingest"):
        labels = {"connector": "c", "task": "0", "since": since}
        assert registry.get_sample_value("isotherm_persisters_end_to_end_latency_seconds_count", labels) == 1

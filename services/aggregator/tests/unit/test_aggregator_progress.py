from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aggregator_plans import GivenPlans
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.metrics import Metrics, Standstill
from isotherm.aggregator.offsets import by_topic
from isotherm.aggregator.progress import Progress
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.batch_pacer import BatchPacer
from isotherm.aggregator.supervision.rejected_ranges import OffsetRange, RejectedRanges
from isotherm.aggregator.supervision.supervised_query import Cause, SupervisedQuery, cause_of
from isotherm.connector.state.status import State
from isotherm.servicekit.health import Health


def progress(**changes: Any) -> str:
    """What Spark 4.2.0 reports of a batch of the windowed query, shortened."""
    return json.dumps(
        {
            "batchId": 4,
            "timestamp": "2026-11-21T15:14:22.001Z",
            "batchDuration": 1379,
            "eventTime": {"watermark": "2026-11-21T15:14:10.500Z"},
            "stateOperators": [{"numRowsTotal": 7, "numRowsDroppedByWatermark": 2}],
            "sources": [
                {"description": "KafkaV2[Subscribe[c.clock]]", "endOffset": {"c.clock": {"0": 3}}, "numInputRows": 1},
                {
                    "description": "KafkaV2[Subscribe[thermostat.data]]",
                    "startOffset": {"thermostat.data": {"0": 1}},
                    "endOffset": {"thermostat.data": {"0": 12, "1": 9}},
                    "numInputRows": 21,
                },
            ],
            "observedMetrics": {"readings": {"on_time": 20, "newest_appended_ms": 1_700_000_000_000}},
            **changes,
        }
    )


def test_progress_is_that_of_the_input_not_of_the_clock() -> None:
    parsed = Progress.parse(progress())
    assert parsed.input_rows == 21
    assert parsed.read_from == {("thermostat.data", 0): 1}
    assert parsed.read_to == {("thermostat.data", 0): 12, ("thermostat.data", 1): 9}
    assert parsed.watermark_ms == 1_795_274_050_500
    assert (parsed.state_rows, parsed.dropped_rows) == (7, 2)
    assert parsed.newest_appended_ms == 1_700_000_000_000


def test_a_store_that_counts_no_rows_says_nothing_about_open_windows() -> None:
    parsed = Progress.parse(progress(), counts_state_rows=False)
    assert parsed.state_rows is None
    metrics = Metrics()
    metrics.add("windows", parsed)
    assert math.isnan(metrics.registry.get_sample_value("isotherm_aggregator_state_rows") or 0)
    assert "state_rows" not in Status(Health(), metrics).counts()


def test_progress_before_the_first_batch_has_no_offsets() -> None:
    source = {"description": "KafkaV2[Subscribe[t]]", "endOffset": None, "numInputRows": 0}
    parsed = Progress.parse(progress(sources=[source], stateOperators=[], eventTime={}, observedMetrics={}))
    assert parsed.read_to is None
    assert parsed.watermark_ms is None
    assert parsed.state_rows is None
    assert parsed.newest_appended_ms is None


def test_metrics_add_up_what_queries_did() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.add("windows", Progress.parse(progress()))
    metrics.add(
        "rejects", Progress.parse(progress(eventTime={}, observedMetrics={"rejected": {"late": 3, "future": 1}}))
    )
    metrics.set_lag("windows", {("t", 0): 5}, {("t", 0): 9, ("t", 1): 4})

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"isotherm_aggregator_{name}", labels)

    assert sample("input_records_total", query="windows") == 42
    assert sample("readings_aggregated_total") == 40
    assert sample("rows_dropped_by_watermark_total") == 4
    assert sample("late_records_total") == 3
    assert sample("dead_letters_total", reason="future") == 1
    assert sample("dead_letters_total", reason="corrupt") == 0
    assert sample("watermark_seconds") == 1_795_274_050.5
    assert sample("lag_records", query="windows", topic="t", partition="0") == 4
    assert sample("lag_records", query="windows", topic="t", partition="1") == 4


def test_the_status_tells_of_each_query_and_of_the_one_behind() -> None:
    metrics, health = Metrics(), Health()
    status = Status(health, metrics)
    assert status.state() is State.UNASSIGNED
    health.ready("start")
    assert status.state() is State.RUNNING
    health.not_ready("windows", "Kafka went away")
    assert status.state() is State.RESTARTING
    status.halted = State.PAUSED
    assert status.state() is State.PAUSED

    metrics.add("windows", Progress.parse(progress()))
    metrics.add("rejects", Progress.parse(progress(eventTime={}, batchDuration=500, observedMetrics={"rejected": {}})))
    counts = status.counts()
    assert (counts["windows_batch_ms"], counts["windows_rows_per_second"]) == (1379, 15)
    assert (counts["rejects_batch_ms"], counts["rejects_rows_per_second"]) == (500, 42)
    assert (counts["input_records"], counts["state_rows"]) == (42, 7)
    assert counts["watermark_ms"] == 1_795_274_050_500
    assert "lag_records" not in counts

    metrics.set_lag("windows", {("t", 0): 5}, {("t", 0): 9, ("t", 1): 4})
    metrics.set_lag("rejects", {("t", 0): 9, ("t", 1): 0}, {("t", 0): 9, ("t", 1): 6})
    assert status.lag() == {"t-0": 4, "t-1": 6}


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        ("[USER_RAISED_EXCEPTION] isotherm:new-schema-id:0000002A SQLSTATE: P0001", Cause.NEW_SCHEMA),
        ("Caused by: org.apache.kafka.common.errors.TimeoutException: Topic x not present", Cause.UNAVAILABLE),
        ("org.apache.kafka.common.errors.NotLeaderOrFollowerException: moved", Cause.UNAVAILABLE),
        ("raise BrokerError\nisotherm.aggregator.kafka.broker.BrokerError: Kafka does not answer", Cause.UNAVAILABLE),
        ("isotherm.servicekit.avro.RegistryUnavailableError: refused", Cause.UNAVAILABLE),
        ("isotherm.aggregator.checkpoint.objects.CheckpointUnavailableError: s3a://b/c", Cause.UNAVAILABLE),
        ("isotherm.aggregator.kafka.writer_journal.LeaseLostError: another one writes", Cause.UNAVAILABLE),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", Cause.UNAVAILABLE),
        ("org.apache.kafka.common.errors.RecordTooLargeException: 20000000 bytes", Cause.FAILURE),
        ("java.lang.OutOfMemoryError: Java heap space", Cause.FAILURE),
    ],
)
def test_the_cause_of_a_failure_is_in_its_text(failure: str, cause: Cause) -> None:
    assert cause_of(failure) is cause


def test_new_schema_ids_are_found_in_a_trace() -> None:
    ids = ("0000002A", "000F1206", "0000002A")
    text = " SQLSTATE: P0001 ... ".join(f"isotherm:new-schema-id:{found}" for found in ids)
    assert confluent_avro.new_schema_ids(text) == [42, 987_654]


class Reports:
    """A query that has made batches, of which Spark keeps the progress of some."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._jsq = self

    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return [SimpleNamespace(json=lambda text=text: text) for text in self.kept]

    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.recentProgress()[-1] if self.kept else None

    def batch(self, number: int, dropped: int = 0, open_windows: int = 1) -> None:
        states = [{"numRowsTotal": open_windows, "numRowsDroppedByWatermark": dropped}]
        self.kept.append(progress(batchId=number, timestamp=f"{number:06}", stateOperators=states))


def supervised(
    reports: Reports,
    pacer: BatchPacer | None = None,
    tells: RejectedRanges | None = None,
    asks: RejectedRanges | None = None,
) -> SupervisedQuery:
    plans = cast(QueryPlans, GivenPlans())
    return SupervisedQuery(
        "windows", lambda: cast(StreamingQuery, reports), plans, {}, pacer=pacer, tells=tells, asks=asks
    )


def test_no_batch_is_passed_over_without_saying_so() -> None:
    reports = Reports()
    query = supervised(reports)
    query.start()
    for number in range(40, 50):
        reports.batch(number, dropped=number == 41)
    first = query.new_progress()
    assert [one.batch_id for one in first] == list(range(40, 50))
    assert sum(one.dropped_rows for one in first) == 1
    assert not any(one.missed for one in first)
    reports.kept.clear()
    for number in range(53, 55):
        reports.batch(number)
    assert [(one.batch_id, one.missed) for one in query.new_progress()] == [(53, 3), (54, 0)]
    assert query.new_progress() == []


def test_open_windows_are_those_of_the_batch_before_or_not_known() -> None:
    reports = Reports()
    query = supervised(reports)
    assert query.open_windows_before(1) is None
    query.start()
    assert query.open_windows_before(1) is None
    reports.batch(4, open_windows=9)
    assert [query.open_windows_before(number) for number in (4, 5, 6)] == [None, 9, None]


def test_the_wait_for_the_commit_is_no_part_of_a_batch() -> None:
    reads_s = iter([0.0, 0.0, 0.0, 2.0, 2.0])
    pacer = BatchPacer(1_000, lambda _: False, lambda: next(reads_s))
    reports = Reports()
    query = supervised(reports, pacer)
    query.start()
    write = pacer.paced(lambda _rows, _batch_id: False)
    for number in (0, 1):
        write("rows", number)
        reports.batch(number)
    assert [one.duration_ms for one in query.new_progress()] == [1_379, 1_379 - 2_000]
    assert not query.is_holding


def test_records_that_were_passed_over_count_and_the_wait_for_the_other_query_does_not() -> None:
    reads_s = iter([0.0, 1.0])
    known = RejectedRanges(lambda: next(reads_s))
    offsets = OffsetRange({("thermostat.data", 0): 1}, {("thermostat.data", 0): 21})
    source = {"startOffset": by_topic(offsets.begins), "endOffset": by_topic(offsets.ends)}
    told, asked = Reports(), Reports()
    observed = {"readings": {"on_time": 20, "rejected": 0}}
    told.kept.append(progress(batchId=4, sources=[{**source, "numInputRows": 20}], observedMetrics=observed))
    asked.kept.append(progress(batchId=7, sources=[{**source, "numInputRows": 0}], observedMetrics={}))
    windowed, rejects = supervised(told, tells=known), supervised(asked, asks=known)
    windowed.start()
    rejects.start()
    assert len(windowed.new_progress()) == 1
    assert not known.may_hold_rejects(7, offsets)
    (batch,) = rejects.new_progress()
    assert (batch.input_rows, batch.passed_over, batch.duration_ms) == (20, 20, 1_379 - 1_000)


def test_a_service_that_rests_does_not_stand_still() -> None:
    now_s = 0.0
    still = Standstill(lambda: now_s)
    assert still.seconds() == 0
    still.begin()
    now_s = 900.0
    assert still.seconds() == 900
    still.rest()
    now_s = 10_000.0
    assert still.seconds() == 0
    still.work(("lag", 5))
    now_s = 10_060.0
    still.work(("lag", 5))
    assert still.seconds() == 60
    still.work(("lag", 4))
    assert still.seconds() == 0

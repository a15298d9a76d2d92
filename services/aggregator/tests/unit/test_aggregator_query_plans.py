"""What Spark says of its plans, in the Spark that the service is released with: these classes are not public API."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.objects import CheckpointUnavailableError
from isotherm.aggregator.checkpoint.plans import PlannedBatch
from isotherm.aggregator.spark import query_plans
from isotherm.aggregator.spark.hadoop_objects import HadoopObjects
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.supervision.supervised_query import Cause, cause_of

pytest_plugins = ("aggregator_spark",)
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

Seen = list[tuple[int, int, PlannedBatch | None, PlannedBatch | None]]
_TIMEOUT_S = 60


def start(spark: SparkSession, plans: QueryPlans, checkpoint: Path, seen: Seen, until: int) -> StreamingQuery:
    """Start a query whose batches note what is planned while they run, and wait until one with a number has."""
    is_there, may_note = threading.Event(), threading.Event()

    def note(_rows: DataFrame, batch_id: int) -> None:
        assert may_note.wait(_TIMEOUT_S)
        seen.append((batch_id, plans.newest(), plans.get(batch_id), plans.get(batch_id - 1)))
        if batch_id >= until:
            is_there.set()

    # Each trigger has a batch, which needs no server: the source counts by itself.
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    query = source.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint)).start()
    plans.follow(query)
    may_note.set()
    assert is_there.wait(_TIMEOUT_S)
    return query


def test_spark_says_what_a_batch_reads_while_it_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The offsets of this source are no partitions of Kafka.
    monkeypatch.setattr(query_plans, "by_partition", lambda offset: {("rate", 0): offset["offset"]})
    checkpoint = tmp_path / "query"
    plans, seen = QueryPlans(spark, f"file://{checkpoint}"), Seen()
    assert (plans.newest(), plans.get(0)) == (-1, None)
    start(spark, plans, checkpoint, seen, until=3).stop()
    for batch_id, newest, plan, before in seen[:4]:
        assert newest == batch_id
        assert plan is not None
        assert (plan.batch_id, plan.watermark_ms, plan.ends) == (batch_id, 0, {("rate", 0): 3 * (batch_id + 1)})
        assert (before is None) == (batch_id == 0)
        assert before is None or before.timestamp_ms <= plan.timestamp_ms

    text, other = plans.text(2), plans.text(1)
    assert text is not None
    assert other is not None
    assert plans.put_back({2: text, 99: text}) == [], "the same, and a batch that the checkpoint does not have"
    assert plans.put_back({1: other, 2: other}) == [2]
    assert plans.get(2) != seen[2][2]
    assert plans.put_back({1: other, 2: text}) == [2]
    assert plans.get(2) == seen[2][2]

    again, seen_again = QueryPlans(spark, f"file://{checkpoint}"), Seen()
    assert again.newest() == plans.newest() >= 3
    assert again.get(3) == seen[3][2]
    again.forget()
    last = again.newest()
    start(spark, again, checkpoint, seen_again, until=last + 1).stop()
    assert seen_again[0][0] in (last, last + 1)  # the batch that the stop interrupted is run again as planned
    assert all(newest == batch_id for batch_id, newest, _, _ in seen_again)


def test_a_plan_that_another_process_has_written_ends_the_query_and_the_next_start_takes_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    offsets, began = tmp_path / "query" / "offsets", list[int]()

    def run(until: int) -> StreamingQuery:
        def write(_rows: DataFrame, batch_id: int) -> None:
            began.append(batch_id)
            if batch_id == until:
                shutil.copy(offsets / f"{batch_id}", offsets / f"{batch_id + 1}")

        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
        checkpoint = str(tmp_path / "query")
        return source.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

    first = run(until=1)
    with pytest.raises(StreamingQueryException):
        first.awaitTermination(_TIMEOUT_S)
    assert began == [0, 1]
    assert cause_of(str(first.exception())) is Cause.UNAVAILABLE
    with pytest.raises(StreamingQueryException):
        run(until=4).awaitTermination(_TIMEOUT_S)
    assert began == [0, 1, 2, 3, 4]


def test_files_of_the_service_by_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    """As on S3 and HDFS, which have tests with their servers."""
    objects = HadoopObjects(spark, f"file://{tmp_path}/checkpoint")
    assert (objects.read("start.json"), objects.names(), objects.names("devices")) == (None, [], [])
    for content in (b"one", b"\x00\xff two"):
        objects.write("start.json", content)
        objects.write("devices/7.json", content)
        assert objects.read("devices/7.json") == content
    assert (sorted(objects.names()), objects.names("devices")) == (["devices", "start.json"], ["7.json"])
    objects.delete("devices/7.json")
    objects.delete("devices/7.json")
    assert objects.read("devices/7.json") is None


def test_a_file_system_that_spark_lacks_is_named(spark: SparkSession) -> None:
    with pytest.raises(CheckpointUnavailableError, match=r"s3a://bucket/c cannot be used: .*S3A"):
        HadoopObjects(spark, "s3a://bucket/c").read("start.json")

"""Joins a stream with history: each reading with the window that the aggregator published for a week before."""

from __future__ import annotations

import sys

from joining import Topics, main
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.streaming.query import StreamingQuery

AGE_MS = 7 * 24 * 3_600_000
CORRECTED_WITHIN_MS = 24 * 3_600_000
"""Corrections that were made within a day after their window count."""


def deviations(readings: DataFrame, history: DataFrame, window_ms: int) -> DataFrame:
    """Return the readings whose window a week before is in `history`, which has TemperatureAggregate's columns."""
    then_ms = F.unix_millis("event_time") - AGE_MS
    then = readings.withColumn("window_start", F.timestamp_millis(then_ms - then_ms % window_ms))
    joined = then.join(history, ["device_id", "metric", "window_start"])
    return joined.select(
        "device_id",
        "metric",
        F.unix_millis("event_time").alias("event_time_ms"),
        "value",
        F.col("mean").alias("mean_a_week_before"),
        F.col("revision").alias("revision_a_week_before"),
        (F.col("value") - F.col("mean")).alias("deviation"),
    )


def start(topics: Topics) -> StreamingQuery:
    """Start the job. Each batch reads the part of the history that it needs from the topic of aggregates."""
    settings = topics.settings

    def compare(batch: DataFrame, _batch_id: int) -> None:
        readings = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            times = readings.select(F.unix_millis("event_time").alias("ms")).agg(F.min("ms"), F.max("ms")).first()
            if times is None or times[0] is None:
                return
            earliest_ms, latest_ms = (time_ms - AGE_MS for time_ms in times)
            # The aggregator writes a window after it has begun, apart from the difference between clocks.
            history = topics.aggregates(
                earliest_ms - settings.window_ms - settings.max_skew_ms, latest_ms + CORRECTED_WITHIN_MS
            )
            rows = topics.to_result(deviations(readings, history, settings.window_ms))
            rows.write.format("kafka").options(**topics.result_options()).save()
        finally:
            readings.unpersist()

    return (
        topics.readings()
        .writeStream.queryName("against-last-week")
        .foreachBatch(compare)
        .option("checkpointLocation", f"{settings.checkpoint_dir}/against-last-week")
        .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
        .start()
    )


if __name__ == "__main__":
    sys.exit(main("Compares each reading with the same time a week before.", start))

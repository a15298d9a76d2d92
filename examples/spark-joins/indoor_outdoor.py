"""Joins two streams: the temperatures inside a home with those that its outdoor sensor measured at the same time."""

from __future__ import annotations

import sys

from joining import Topics, main
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.streaming.query import StreamingQuery

OUTDOORS = "outdoors"
"""The value of `room` for outdoor sensors."""
WITHIN_S = 30


def pairs(inside: DataFrame, outside: DataFrame, devices: DataFrame, delay_ms: int) -> DataFrame:
    """Return each indoor temperature with each outdoor one of the same home, measured at most WITHIN_S apart.

    `inside` and `outside` are streams of readings; `devices` has `device_id`, `home` and `room`. Spark keeps a reading
    as long as its partner may come: both watermarks are `delay_ms` behind, and the condition bounds the time between
    the two readings.
    """
    indoor = _placed(inside, devices, delay_ms).where(F.col("room") != OUTDOORS)
    outdoor = _placed(outside, devices, delay_ms).where(F.col("room") == OUTDOORS)
    apart = F.expr(f"INTERVAL {WITHIN_S} SECONDS")
    inside_at, outside_at = F.col("indoor.event_time"), F.col("outdoor.event_time")
    near = outside_at.between(inside_at - apart, inside_at + apart)
    same_home = F.col("indoor.home") == F.col("outdoor.home")
    joined = indoor.alias("indoor").join(outdoor.alias("outdoor"), same_home & near)
    return joined.select(
        "indoor.device_id",
        "indoor.home",
        "indoor.room",
        F.unix_millis("indoor.event_time").alias("event_time_ms"),
        F.col("indoor.value").alias("inside"),
        F.col("outdoor.device_id").alias("outdoor_device_id"),
        F.unix_millis("outdoor.event_time").alias("outdoor_event_time_ms"),
        F.col("outdoor.value").alias("outside"),
        (F.col("indoor.value") - F.col("outdoor.value")).alias("difference"),
    )


def start(topics: Topics) -> StreamingQuery:
    """Start the job with the devices as they are now."""
    settings = topics.settings
    rows = pairs(topics.readings(), topics.readings(), topics.devices(), settings.watermark_delay_ms)
    return (
        topics.to_result(rows)
        .writeStream.queryName("indoor-outdoor")
        .format("kafka")
        .options(**topics.result_options())
        .option("checkpointLocation", f"{settings.checkpoint_dir}/indoor-outdoor")
        .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
        .start()
    )


def _placed(readings: DataFrame, devices: DataFrame, delay_ms: int) -> DataFrame:
    temperatures = readings.withWatermark("event_time", f"{delay_ms} milliseconds").where("metric = 'temperature'")
    return temperatures.join(devices, "device_id").select("device_id", "home", "room", "event_time", "value")


if __name__ == "__main__":
    sys.exit(main("Joins the temperatures inside and outside of each home.", start))

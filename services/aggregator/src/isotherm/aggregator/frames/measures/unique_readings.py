"""Leaves out the copies of readings, by their identity (ADR 0260). Pure: data frames in, data frames out.

Copies may differ in ingest time and value. Then the one with the earliest ingest time counts, and of several such ones
that with the smallest value: the choice must not depend on the order in which Spark sees them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

IDENTITY = ("device_id", "metric", "event_time", "sequence")
"""The fields that two copies of a reading share: `isotherm.identity` of SensorReading."""


def first_copies(readings: DataFrame, bucket: Column) -> DataFrame:
    """Return each reading once, with `copies`, how many of it there are, and `bucket`, a window of its event time.

    In a streaming query the readings of a bucket come out when the watermark has passed its end. A key by the event
    time alone would not do: Spark drops a row whose time equals the watermark, and keeps one in a window that ends
    after it.
    """
    others = [name for name in readings.columns if name not in (*IDENTITY, "ingest_time", "value")]
    order = ("ingest_time", "value", *others)
    event_ms = F.unix_millis("event_time").alias("event_ms")
    return (
        readings.groupBy("device_id", "metric", bucket.alias("bucket"), event_ms, "sequence")
        .agg(F.count(F.lit(1)).alias("copies"), F.min(F.struct(*order)).alias("first"))
        .select("device_id", "metric", "bucket", "copies", *(F.col(f"first.{name}") for name in ("value", *others)))
    )


def distinct_readings(rows: DataFrame, by: Sequence[str], is_unique: Column) -> DataFrame:
    """Return rows of `value` (bytes) and `reading` without copies, apart for each value of the columns `by`.

    Where `is_unique`, two rows with the identity of one reading are copies, elsewhere two with the same bytes.
    """
    identity = F.struct(*(F.col(f"reading.{name}").alias(name) for name in IDENTITY))
    first = F.min_by(F.struct("value", "reading"), F.struct("reading.ingest_time", "reading.value", "value"))
    unique = rows.where(is_unique).groupBy(identity.alias("identity"), *by).agg(first.alias("first"))
    return rows.where(~is_unique).dropDuplicates(["value", *by]).unionByName(unique.select("first.*", *by))


def without_copies_of(late: DataFrame, on_time: DataFrame, by: Collection[str]) -> DataFrame:
    """Return the readings in `late` whose identity is not among those `on_time`, apart for each value of `by`."""
    return late.join(on_time, [*IDENTITY, *by], "left_anti")

"""Computes windows again with the late readings, and finds those that differ from the published ones.

Pure: data frames in, data frames out (ADR 0032).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from isotherm.aggregator.frames import confluent_avro, readings, windows
from isotherm.aggregator.frames.confluent_avro import SchemaIds

AGGREGATE_IDENTITY = ("device_id", "metric", "window_start", "window_end")
GROUP_IDENTITY = ("attribute", "group", "metric", "window_start", "window_end")

_EXACT = ("device_count", "count", "min", "max")
_TOLERANCE = 1e-9
"""Tolerance of sum, mean and stddev: relative, and absolute below 1. They depend on the order of the additions."""

_TYPES = {"string": StringType(), "long": LongType(), "double": DoubleType(), "timestamp": TimestampType()}


@dataclass(frozen=True)
class Span:
    """A span of event time, in epoch ms. It stands for the windows that lie completely within it."""

    from_ms: int
    to_ms: int

    def widened(self, window_ms: int, slide_ms: int) -> Span:
        """Return the span widened so that every window that overlaps it lies completely within it."""
        # The first window that contains `from_ms` is the one with the earliest end after it.
        first = (self.from_ms - window_ms) // slide_ms * slide_ms + slide_ms
        last = -(-self.to_ms // slide_ms) * slide_ms - slide_ms
        return Span(max(0, first), last + window_ms)


def with_reject_reason(records: DataFrame, ids: SchemaIds, reject_reason: Column) -> DataFrame:
    """Decode records of the input or of the late topic.

    Returns the columns `reading`, `reject_reason` and, for late records, the bytes in `late_value`. Persist the rows
    before they are filtered: Spark pushes a filter below the decoding, and decodes once more.
    """
    decoded = readings.decode(records, ids).withColumn("reject_reason", reject_reason)
    return decoded.select("reading", "reject_reason", F.when(_is_late(), F.col("value")).alias("late_value"))


def aggregated_readings(in_input: DataFrame, in_late_topic: DataFrame) -> DataFrame:
    """Return the readings that are on time or late, each once, as columns with `is_late`.

    Both arguments come from `with_reject_reason`. A late record is in the input and in the late topic, until the
    input's retention removes it. The late topic may hold it twice.
    """
    still_in_input = in_input.where(_is_late()).select("late_value").distinct()
    only_in_late_topic = (
        in_late_topic.where(_is_late()).join(still_in_input, "late_value", "left_anti").dropDuplicates(["late_value"])
    )
    both = in_input.where(F.col("reject_reason").isNull() | _is_late()).unionByName(only_in_late_topic)
    return both.select("reading.*", _is_late().alias("is_late"))


def within(rows: DataFrame, span: Span) -> DataFrame:
    """Return the aggregates or groups whose window lies completely within the span."""
    start, end = F.unix_millis("window_start"), F.unix_millis("window_end")
    return rows.where((start >= span.from_ms) & (end <= span.to_ms))


def measured_within(given: DataFrame, span: Span) -> DataFrame:
    """Return the readings that were measured within the span."""
    event_ms = F.unix_millis("event_time")
    return given.where((event_ms >= span.from_ms) & (event_ms < span.to_ms))


def aggregate(given: DataFrame, span: Span, window_ms: int, slide_ms: int | None, revision: int) -> DataFrame:
    """Return the windows of `span` over the readings, computed by `windows.aggregate`, with one revision."""
    inside = measured_within(given, span)
    return windows.with_revision(within(windows.aggregate(inside, window_ms, slide_ms), span), revision)


def published(records: DataFrame, ids: SchemaIds, schema: Mapping[str, Any], identity: Sequence[str]) -> DataFrame:
    """Return the highest revision of each identity in the records of an output topic, without undecodable records."""
    names = [field["name"] for field in schema["fields"]]
    shape = StructType([StructField(field["name"], _TYPES[_type_name(field["type"])]) for field in schema["fields"]])
    row = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(schema, names), shape)
    rows = records.select(row.alias("row")).where(F.col(f"row.{identity[0]}").isNotNull()).select("row.*")
    numbers = [name for name in names if name not in identity]
    newest = rows.groupBy(*identity).agg(F.max_by(F.struct(*numbers), "revision").alias("newest"))
    return newest.select(*identity, *(F.col(f"newest.{name}").alias(name) for name in numbers))


def changed(computed: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Return the rows of `computed` that are not published, or were published with other numbers."""
    numbers = [name for name in computed.columns if name not in (*identity, "revision")]
    known = published.select(*identity, *(F.col(name).alias(f"known_{name}") for name in numbers))
    same = F.lit(True)
    for name in numbers:
        now, before = F.col(name), F.col(f"known_{name}")
        if name in _EXACT:
            same = same & now.eqNullSafe(before)
        else:
            near = F.abs(now - before) <= F.lit(_TOLERANCE) * F.greatest(F.lit(1.0), F.abs(now), F.abs(before))
            same = same & F.coalesce(near, F.lit(False))
    return computed.join(known, list(identity), "left").where(~same).select(*computed.columns)


def without_losses(different: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Return the rows of `different` that have at least as many readings as the published row.

    A correction adds readings. A computed window with fewer readings lacks some of them: the topic was created again,
    or records were deleted unnoticed.
    """
    known = published.select(*identity, F.col("count").alias("known_count"))
    rows = different.join(known, list(identity), "left")
    return rows.where(F.coalesce(F.col("count") >= F.col("known_count"), F.lit(True))).select(*different.columns)


def lost(computed: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Return the rows of `published` that have more readings than the computed row, or no computed row at all."""
    counts = computed.select(*identity, F.col("count").alias("computed_count"))
    rows = published.join(counts, list(identity), "left")
    return rows.where(F.coalesce("computed_count", F.lit(0)) < F.col("count")).select(*published.columns)


def in_complete_windows(corrected: DataFrame, lost: DataFrame) -> DataFrame:
    """Return the rows of `corrected` in windows without a lost row: a group of any other window would be partial."""
    window = ["metric", "window_start", "window_end"]
    return corrected.join(lost.select(*window).distinct(), window, "left_anti").select(*corrected.columns)


def groups_of(
    computed: DataFrame, corrected: DataFrame, devices: DataFrame, attributes: Sequence[str], unknown_group: str
) -> DataFrame:
    """Return the groups of every window with a corrected aggregate, over all aggregates of that window."""
    touched = corrected.select("metric", "window_start", "window_end").distinct()
    whole = computed.join(touched, ["metric", "window_start", "window_end"], "left_semi")
    return windows.group(windows.with_devices(whole, devices), attributes, unknown_group)


def _is_late() -> Column:
    return F.col("reject_reason").eqNullSafe(readings.LATE)


def _type_name(avro: Any) -> str:
    if isinstance(avro, str):
        return avro
    return "timestamp" if avro.get("logicalType") == "timestamp-millis" else str(avro["type"])

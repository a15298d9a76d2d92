"""Windows made anew with the readings that came too late for them, and which of them differ from what was published.

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
"""Of sum, mean and stddev, relative, and absolute below 1: they depend on the order in which values are added."""

_TYPES = {"string": StringType(), "long": LongType(), "double": DoubleType(), "timestamp": TimestampType()}


@dataclass(frozen=True)
class Span:
    """A part of event time, in epoch ms; the windows that lie in it as a whole are meant."""

    from_ms: int
    to_ms: int

    def widened(self, window_ms: int, slide_ms: int) -> Span:
        """Widened so that every window that holds a moment of it lies in it as a whole."""
        # The first window that holds `from_ms` is the one that ends soonest after it.
        first = (self.from_ms - window_ms) // slide_ms * slide_ms + slide_ms
        last = -(-self.to_ms // slide_ms) * slide_ms - slide_ms
        return Span(max(0, first), last + window_ms)


def judged(records: DataFrame, ids: SchemaIds, verdict: Column) -> DataFrame:
    """Records of the input or of the late topic: `reading`, `verdict` and, of the late ones, the bytes (`late_value`).

    Keep the rows before they are filtered: a filter would be pushed below the decoding, and decode once more.
    """
    decoded = readings.decode(records, ids).withColumn("verdict", verdict)
    return decoded.select("reading", "verdict", F.when(_is_late(), F.col("value")).alias("late_value"))


def counted(in_input: DataFrame, in_late_topic: DataFrame) -> DataFrame:
    """The readings on time or late, as columns with `is_late`, each once; both arguments come from `judged`.

    What is late lies in both, until the input's retention has passed; and a record may lie in the late topic twice.
    """
    still_there = in_input.where(_is_late()).select("late_value").distinct()
    gone = in_late_topic.where(_is_late()).join(still_there, "late_value", "left_anti").dropDuplicates(["late_value"])
    both = in_input.where(F.col("verdict").isNull() | _is_late()).unionByName(gone)
    return both.select("reading.*", _is_late().alias("is_late"))


def within(rows: DataFrame, span: Span) -> DataFrame:
    """The aggregates or groups of which the whole window lies in the span."""
    start, end = F.unix_millis("window_start"), F.unix_millis("window_end")
    return rows.where((start >= span.from_ms) & (end <= span.to_ms))


def measured_within(given: DataFrame, span: Span) -> DataFrame:
    """The readings that were measured in the span."""
    event_ms = F.unix_millis("event_time")
    return given.where((event_ms >= span.from_ms) & (event_ms < span.to_ms))


def aggregate(given: DataFrame, span: Span, window_ms: int, slide_ms: int | None, revision: int) -> DataFrame:
    """The windows of `span` over the readings, as `windows.aggregate` makes them, under one revision."""
    inside = measured_within(given, span)
    return within(windows.aggregate(inside, window_ms, slide_ms), span).withColumn(
        "revision", F.lit(revision).cast("long")
    )


def published(records: DataFrame, ids: SchemaIds, schema: Mapping[str, Any], identity: Sequence[str]) -> DataFrame:
    """The highest revision of each identity in the records of an output topic; what cannot be read is left out."""
    names = [field["name"] for field in schema["fields"]]
    shape = StructType([StructField(field["name"], _TYPES[_type_name(field["type"])]) for field in schema["fields"]])
    row = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(schema, names), shape)
    rows = records.select(row.alias("row")).where(F.col(f"row.{identity[0]}").isNotNull()).select("row.*")
    numbers = [name for name in names if name not in identity]
    newest = rows.groupBy(*identity).agg(F.max_by(F.struct(*numbers), "revision").alias("newest"))
    return newest.select(*identity, *(F.col(f"newest.{name}").alias(name) for name in numbers))


def changed(computed: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows of `computed` that are not published yet, or were published with other numbers."""
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


def with_all_readings(different: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows of `different` that no published one has more readings than.

    A correction adds readings. A window that would lose some is made of a part: its topic was made anew, or records
    were deleted that nobody noticed.
    """
    known = published.select(*identity, F.col("count").alias("known_count"))
    rows = different.join(known, list(identity), "left")
    return rows.where(F.coalesce(F.col("count") >= F.col("known_count"), F.lit(True))).select(*different.columns)


def lacking(computed: DataFrame, published: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows of `published` that have more readings than their row of `computed`, or have none there any more."""
    found = computed.select(*identity, F.col("count").alias("found_count"))
    rows = published.join(found, list(identity), "left").where(F.coalesce("found_count", F.lit(0)) < F.col("count"))
    return rows.select(*published.columns)


def in_whole_windows(corrected: DataFrame, lacking: DataFrame) -> DataFrame:
    """Those of `corrected` in windows in which no device lacks readings: other groups would be partial."""
    window = ["metric", "window_start", "window_end"]
    return corrected.join(lacking.select(*window).distinct(), window, "left_anti").select(*corrected.columns)


def groups_of(
    computed: DataFrame, corrected: DataFrame, devices: DataFrame, attributes: Sequence[str], unknown_group: str
) -> DataFrame:
    """The groups of every window of which an aggregate was corrected, over all of the window's aggregates."""
    touched = corrected.select("metric", "window_start", "window_end").distinct()
    whole = computed.join(touched, ["metric", "window_start", "window_end"], "left_semi")
    return windows.group(windows.with_devices(whole, devices), attributes, unknown_group)


def _is_late() -> Column:
    return F.col("verdict").eqNullSafe(readings.LATE)


def _type_name(avro: Any) -> str:
    if isinstance(avro, str):
        return avro
    return "timestamp" if avro.get("logicalType") == "timestamp-millis" else str(avro["type"])

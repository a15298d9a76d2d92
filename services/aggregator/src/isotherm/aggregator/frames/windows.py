"""Aggregates readings to windows and groups, and encodes them as records. Pure: data frames in, data frames out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import confluent_avro, exact_sums
from isotherm.aggregator.frames.measures import distinct_counts, histograms, merged_numbers, unique_readings
from isotherm.aggregator.windowing.measures import NUMBERS, PLAIN, Measures
from isotherm.schemas import schema

AGGREGATE = schema("TemperatureAggregate", 1)
"""What is written while nothing is switched on that needs a later version, so that its readers see no change."""
GROUP = schema("TemperatureGroup", 1)

IS_KNOWN = "is_known"

_READING_COLUMNS = ("device_id", "metric", "value", "event_time")
_WINDOW = ("window_start", "window_end")


def aggregate_schema(measures: Measures) -> Mapping[str, Any]:
    """Return the version of TemperatureAggregate that has the fields for these measures."""
    return schema("TemperatureAggregate", measures.schema_version)


def with_clock(readings: DataFrame, clock: DataFrame, watermark_delay_ms: int, measures: Measures = PLAIN) -> DataFrame:
    """Return the readings, with what the measures need of them, and a watermark that only `clock` moves.

    `clock` has a column `event_time`. Its rows pass the watermark and are then filtered out. `clock` is the first part
    of the union, because a union takes the watermark of its first part. The readings do not pass the watermark: the
    event time of one reading says nothing about the readings that are still unread in another partition.
    """
    others = dict.fromkeys([*(["ingest_time"] if measures.deduplicate else []), *measures.reading_fields])
    measured = readings.select(*_READING_COLUMNS, *(name for name in others if name not in _READING_COLUMNS))
    nulls = {field.name: F.lit(None).cast(field.dataType).alias(field.name) for field in measured.schema}
    columns = {**nulls, "event_time": F.col("event_time")}
    ticks = clock.select(*columns.values()).withWatermark("event_time", f"{watermark_delay_ms} milliseconds")
    # Spark does not push a condition on the event time below the watermark; it would push any other condition.
    nothing = ticks.where(F.col("event_time") < F.timestamp_millis(F.lit(0)))
    return nothing.unionByName(measured)


def _measured(readings: DataFrame, measures: Measures) -> DataFrame:
    """Return the columns of readings that the windows are made of."""
    of_identity = ("ingest_time", "sequence") if measures.leaves_copies_out else ()
    return readings.select(*_READING_COLUMNS, *of_identity, *distinct_counts.values(measures.distinct))


def aggregate(
    readings: DataFrame,
    window_ms: int,
    slide_ms: int | None = None,
    measures: Measures = PLAIN,
    *,
    is_state_sorted: bool = False,
) -> DataFrame:
    """Return the aggregates by device, metric and window: identity and numbers of TemperatureAggregate.

    `with_derived` adds the fields that follow from these. `is_state_sorted` says that the state store sorts its keys:
    they begin with the window then, so that the rows which a batch touches lie together. It belongs to the checkpoint.
    """
    given, window = _measured(readings, measures), _window(F.col("event_time"), window_ms, slide_ms)
    if measures.leaves_copies_out:
        # Every window consists of whole buckets, and holds each of them as long as itself.
        bucket_ms = math.gcd(window_ms, slide_ms or window_ms)
        given = unique_readings.first_copies(given, _window(F.col("event_time"), bucket_ms, None))
        bucket = F.col("bucket")
        window = bucket.alias("window") if bucket_ms == window_ms else _window(bucket, window_ms, slide_ms)
    sketched = {distinct_counts.column_of(number): name for number, name in enumerate(measures.distinct)}
    numbers = _numbers(measures)
    sketches = [distinct_counts.sketch(column).alias(column) for column in sketched]
    if measures.percentiles:
        made = _by_bucket(given, window, measures, [*numbers, *sketches], list(sketched))
    else:
        keys = (window, "device_id", "metric") if is_state_sorted else ("device_id", "metric", window)
        made = given.groupBy(*keys).agg(*numbers, *sketches)
    # A column that is there keeps its name without an alias: Spark warns at each batch when it removes one.
    added = {
        "duplicates": F.col("duplicates") if measures.leaves_copies_out else F.lit(0).cast("long").alias("duplicates"),
        "histogram": F.col("histogram") if measures.percentiles else histograms.none().alias("histogram"),
        "sketches": distinct_counts.by_field({name: F.col(column) for column, name in sketched.items()}).alias(
            "sketches"
        ),
    }
    return made.select(
        "device_id",
        "metric",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "count",
        "sum",
        (F.col("sum") / F.col("count")).alias("mean"),
        "min",
        "max",
        "stddev",
        *(added[name] for name in measures.numbers if name in added),
    )


def _numbers(measures: Measures) -> list[Column]:
    """Return the aggregates of readings."""
    value = F.col("value")
    return [
        F.count(F.lit(1)).alias("count"),
        F.sum(value).alias("sum"),
        F.min(value).alias("min"),
        F.max(value).alias("max"),
        F.stddev_pop(value).alias("stddev"),
        *([F.sum(F.col("copies") - 1).alias("duplicates")] if measures.leaves_copies_out else []),
    ]


def _by_bucket(
    given: DataFrame, window: Column, measures: Measures, aggregates: Sequence[Column], sketched: Sequence[str]
) -> DataFrame:
    """Return the aggregates by device, metric and window with their histogram.

    Readings are aggregated by bucket of the histogram first, and the buckets of a window are merged when it ends: the
    state has a row for each bucket that a window has, and none grows with the number of readings.
    """
    names = [*NUMBERS, *(["duplicates"] if measures.leaves_copies_out else [])]
    index = histograms.index(F.col("value"), measures.relative_error).alias("index")
    buckets = given.groupBy("device_id", "metric", window, index).agg(*aggregates)
    bucket = F.struct("index", *names)
    together = (
        buckets.withColumn("mean", F.col("sum") / F.col("count"))
        .groupBy("device_id", "metric", "window")
        .agg(
            F.array_sort(F.collect_list(bucket)).alias("buckets"),
            *(F.hll_union_agg(name).alias(name) for name in sketched),
        )
    )
    numbers = F.aggregate(
        F.slice("buckets", F.lit(2), F.size("buckets")),
        merged_numbers.only(F.get("buckets", F.lit(0)), names),
        lambda one, other: merged_numbers.sum_of(one, other, names),
    )
    counts = F.transform("buckets", lambda one: F.struct(one["index"].alias("index"), one["count"].alias("count")))
    histogram = histograms.made(counts, measures.relative_error)
    return together.select(
        "device_id", "metric", "window", numbers.alias("numbers"), histogram.alias("histogram"), *sketched
    ).select("device_id", "metric", "window", "numbers.*", "histogram", *sketched)


def with_derived(aggregates: DataFrame, measures: Measures) -> DataFrame:
    """Return the aggregates with the fields of their records that follow from their numbers."""
    if measures.schema_version == 1:
        return aggregates
    row = F.struct("histogram", "count", "min", "max")
    return aggregates.withColumns(
        {
            "percentiles": histograms.percentiles(row, measures.percentiles),
            "distinct_counts": distinct_counts.estimates(F.col("sketches")),
        }
    )


def _window(time: Column, window_ms: int, slide_ms: int | None) -> Column:
    return F.window(time, f"{window_ms} milliseconds", f"{slide_ms or window_ms} milliseconds")


def in_epoch_ms(aggregates: DataFrame) -> DataFrame:
    """Return the aggregates with the bounds of their windows as numbers, so that Python can take them as they are."""
    return aggregates.withColumns({name: F.unix_millis(name) for name in _WINDOW})


def from_epoch_ms(rows: DataFrame) -> DataFrame:
    """Return aggregates with the bounds of their windows as times; the inverse of `in_epoch_ms`."""
    return rows.withColumns({name: F.timestamp_millis(name) for name in _WINDOW})


def with_revision(aggregates: DataFrame, revision: int) -> DataFrame:
    """Return the aggregates with their revision (epoch ms)."""
    return aggregates.withColumn("revision", F.lit(revision).cast("long"))


def with_devices(aggregates: DataFrame, devices: DataFrame) -> DataFrame:
    """Return the aggregates with the attributes of their devices, and IS_KNOWN: null for a device without metadata.

    `devices` has the column `device_id` and one column for each attribute.
    """
    return aggregates.join(devices.withColumn(IS_KNOWN, F.lit(True)), "device_id", "left")


def group(aggregates: DataFrame, attributes: Sequence[str], unknown_group: str) -> DataFrame:
    """Return the windows of devices that share the value of an attribute, with the columns of TemperatureGroup.

    `aggregates` come from `with_devices` and have a revision. A device whose attribute is not known is in the group
    `unknown_group`; with an empty `unknown_group` it is left out.

    Members are added where they are, in any order (`exact_sums`), so a group needs the same memory however many devices
    it has.
    """
    pairs = F.array(
        *(F.struct(F.lit(name).alias("attribute"), F.col(f"`{name}`").alias("group")) for name in attributes)
    )
    numbers = ("metric", "window_start", "window_end", "min", "max", "revision")
    # A member's digits are the same in each of its groups.
    members = _with_digits(aggregates.select(*numbers, "count", "sum", pairs.alias("pairs")))
    grouped = members.select(*numbers, "digits", F.inline("pairs"))
    named = (
        grouped.withColumn("group", F.coalesce("group", F.lit(unknown_group)))
        if unknown_group
        else grouped.where(F.col("group").isNotNull())
    )
    keys = ("attribute", "group", "metric", "window_start", "window_end")
    extremes = (F.min("min").alias("min"), F.max("max").alias("max"), F.max("revision").alias("revision"))
    by_position = (
        named.select(*keys, "min", "max", "revision", F.inline("digits"))
        .groupBy(*keys, "position")
        .agg(
            F.sum("digit").alias("digit"),
            F.sum("devices").alias("device_count"),
            F.sum("readings").alias("count"),
            *extremes,
        )
    )
    return (
        by_position.groupBy(*keys)
        .agg(
            F.sum("device_count").alias("device_count"),
            F.sum("count").alias("count"),
            F.collect_list(F.struct("position", "digit")).alias("digits"),
            *extremes,
        )
        .withColumn("mean", exact_sums.rounded(F.col("digits")) / F.col("count"))
        .drop("digits")
    )


def _with_digits(members: DataFrame) -> DataFrame:
    """Return the members with `digits`, one to three structs for the digits of their `sum`; the first counts a member.

    Each step is a projection of its own, so that Spark computes once what later steps name several times.
    """
    place, zero = F.col("place"), F.lit(0).cast("long")
    split = (
        members.withColumn("place", exact_sums.position(F.col("sum")))
        .withColumn("first", exact_sums.digit(F.col("sum"), place))
        .withColumn("after_first", exact_sums.rest(F.col("sum"), place, F.col("first")))
        .withColumn("second", exact_sums.digit(F.col("after_first"), place - 1))
        .withColumn("after_second", exact_sums.rest(F.col("after_first"), place - 1, F.col("second")))
        .withColumn("third", exact_sums.digit(F.col("after_second"), place - 2))
    )

    def entry(position: Column, digit: str, devices: int, readings: Column) -> Column:
        return F.struct(
            position.alias("position"),
            F.col(digit).alias("digit"),
            F.lit(devices).cast("long").alias("devices"),
            readings.alias("readings"),
        )

    entries = [
        entry(place, "first", 1, F.col("count")),
        entry(place - 1, "second", 0, zero),
        entry(place - 2, "third", 0, zero),
    ]
    needed = (
        F.when(F.col("third") != 0, F.array(*entries))
        .when(F.col("second") != 0, F.array(*entries[:2]))
        .otherwise(F.array(*entries[:1]))
    )
    return split.withColumn("digits", needed)


def to_aggregate_topic(aggregates: DataFrame, schema_id: int, headers: Column, measures: Measures = PLAIN) -> DataFrame:
    """Return the key, the value and the headers of each aggregate, for the Kafka sink.

    `schema_id` is that of `aggregate_schema` of the measures.
    """
    rows = with_derived(aggregates, measures)
    return _to_topic(rows, aggregate_schema(measures), schema_id, ("device_id", "metric"), headers)


def to_group_topic(groups: DataFrame, schema_id: int) -> DataFrame:
    """Return the key and value of each group, for the Kafka sink."""
    return _to_topic(groups, GROUP, schema_id, ("attribute", "group", "metric"))


def _to_topic(
    rows: DataFrame, writer: Mapping[str, Any], schema_id: int, names: Sequence[str], headers: Column | None = None
) -> DataFrame:
    key = F.concat_ws(
        "|",
        *(_percent_encoded(F.col(name)) for name in names),
        F.unix_millis("window_start").cast("string"),
        F.unix_millis("window_end").cast("string"),
    )
    record = F.struct(*(field["name"] for field in writer["fields"]))
    value = confluent_avro.encode(record, writer, schema_id)
    added = [] if headers is None else [headers.alias("headers")]
    return rows.select(key.alias("key"), value.alias("value"), *added)


def _percent_encoded(text: Column) -> Column:
    return F.replace(F.replace(text, F.lit("%"), F.lit("%25")), F.lit("|"), F.lit("%7C"))

"""Merges published windows into longer ones. Pure: data frames in, data frames out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames.measures import merged_numbers
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY
from isotherm.aggregator.windowing.measures import NUMBERS
from isotherm.aggregator.windowing.rollup_plan import Rollup


def new_starts(records: DataFrame, rollup: Rollup) -> DataFrame:
    """Return the starts (`start_ms`) of the roll-up's windows whose parts are among published records, each once.

    `rows` is the number of these records. Their keys name the windows, so nothing is decoded.
    """
    start_ms, end_ms = corrections.window_in_key(F.col("key"))
    of_parts = records.select(start_ms.alias("part_ms"), end_ms.alias("end_ms")).where(
        F.col("end_ms") - F.col("part_ms") == F.lit(rollup.part_ms)
    )
    starts = of_parts.select(_starts(F.col("part_ms"), rollup).alias("start_ms"))
    return starts.groupBy("start_ms").agg(F.count(F.lit(1)).alias("rows"))


def of_length(published: DataFrame, length_ms: int) -> DataFrame:
    """Return the published windows of one length: a topic may hold several."""
    return published.where(F.unix_millis("window_end") - F.unix_millis("window_start") == F.lit(length_ms))


def rolled_up(
    parts: DataFrame, rollup: Rollup, starts_ms: Collection[int], names: Sequence[str] = NUMBERS
) -> DataFrame:
    """Return the roll-up's windows that begin at `starts_ms`, made of published windows: identity and numbers.

    `parts` come from `corrections.published`; their newest rows count. They are merged in the order of time, so that
    the same parts always give the same bits.
    """
    start_ms = _starts(F.unix_millis("window_start"), rollup)
    part = F.struct("window_start", *(F.col(f"newest.{name}").alias(name) for name in names))
    together = (
        of_length(parts, rollup.part_ms)
        .select("device_id", "metric", start_ms.alias("start_ms"), part.alias("part"))
        .where(F.col("start_ms").isin(sorted(starts_ms)))
        .groupBy("device_id", "metric", "start_ms")
        .agg(F.array_sort(F.collect_list("part"), _by_time).alias("parts"))
    )
    numbers = F.aggregate(
        F.slice("parts", F.lit(2), F.size("parts")),
        merged_numbers.only(F.get("parts", F.lit(0)), names),
        lambda one, other: merged_numbers.sum_of(one, other, names),
    )
    return together.select(
        "device_id",
        "metric",
        F.timestamp_millis("start_ms").alias("window_start"),
        F.timestamp_millis(F.col("start_ms") + F.lit(rollup.length_ms)).alias("window_end"),
        numbers.alias("numbers"),
    ).select(*AGGREGATE_IDENTITY, "numbers.*")


def to_publish(
    made: DataFrame, published: DataFrame, incomplete_until_ms: int | None, names: Sequence[str] = NUMBERS
) -> DataFrame:
    """Return every window with its right numbers, and `is_new`: whether they are to be published.

    A window that was published with more readings than its parts have now stays: retention has removed some of them
    (`is_fewer`). Windows that begin at `incomplete_until_ms` or earlier are published only again: of the others nobody
    knows whether they have all their readings.
    """
    known = published.select(*AGGREGATE_IDENTITY, F.col("newest").alias("known"))
    both = made.select(*AGGREGATE_IDENTITY, F.struct(*names).alias("made")).join(
        known, list(AGGREGATE_IDENTITY), "full_outer"
    )
    made_, known_ = F.col("made"), F.col("known")
    if incomplete_until_ms is not None:
        is_complete = F.unix_millis("window_start") > F.lit(incomplete_until_ms)
        both = both.where(known_.isNotNull() | is_complete)
    is_fewer = known_.isNotNull() & merged_numbers.has_fewer(made_, known_, names)
    is_new = made_.isNotNull() & (known_.isNull() | ~merged_numbers.is_same(made_, known_, names))
    rows = both.withColumn("fewer", is_fewer).withColumn("other", is_new)
    return rows.select(
        *AGGREGATE_IDENTITY,
        *(F.when(F.col("fewer"), known_[name]).otherwise(made_[name]).alias(name) for name in names),
        (F.col("other") & ~F.col("fewer")).alias("is_new"),
        F.col("fewer").alias("is_fewer"),
    )


def _by_time(one: Column, other: Column) -> Column:
    """Return the order of two parts. Spark has none of its own for a part with a map."""
    return F.when(one["window_start"] < other["window_start"], -1).otherwise(1)


def _starts(part_ms: Column, rollup: Rollup) -> Column:
    """Return the start of the window that a part is in: of sliding windows one row for each of them."""
    last_ms = part_ms - F.pmod(part_ms, F.lit(rollup.step_ms))
    if rollup.slide_ms is None:
        return last_ms
    overlap_ms = rollup.length_ms // rollup.slide_ms * rollup.slide_ms
    starts = F.sequence(last_ms - F.lit(overlap_ms), last_ms, F.lit(rollup.slide_ms).cast("long"))
    return F.explode(F.filter(starts, lambda start: start + F.lit(rollup.length_ms) > part_ms))

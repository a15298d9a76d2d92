"""Merges late readings into the windows that were published without them. Pure: data frames in, data frames out.

A window's right numbers are those of its *original* row, which the windowed query or a rebuild from the input wrote,
merged with all late readings of that window, each once. A corrected row is never merged again. So a correction that is
run twice, killed, or run over copies of late readings gives the same numbers (ADR 0196).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import avro_types, confluent_avro, headers, readings, windows
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.frames.measures import merged_numbers, unique_readings
from isotherm.aggregator.frames.measures.merged_numbers import only
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.windowing.measures import NUMBERS, PLAIN, Measures

AGGREGATE_IDENTITY = ("device_id", "metric", "window_start", "window_end")
GROUP_IDENTITY = ("attribute", "group", "metric", "window_start", "window_end")

JUDGED_BY = "judged_by"
"""Column with the text of the judgement by which the readings of a row were judged."""

ANY = "any"
"""In place of a judgement: a reading is late by it that was judged late by whatever settings."""

_WINDOW = ("metric", "window_start", "window_end")
_MAX_LISTED_WINDOWS = 10_000
"""Up to so many windows are named in a filter, beside the span that they lie in."""


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


@dataclass(frozen=True)
class Scope:
    """The windows that a correction looks at."""

    span: Span
    starts_ms: frozenset[int] | None = None
    """The starts of the windows (epoch ms); None: all windows within the span."""

    def holds(self, start_ms: Column, end_ms: Column) -> Column:
        """Return whether a window with these bounds (epoch ms) is in the scope; null bounds are not."""
        inside = (start_ms >= self.span.from_ms) & (end_ms <= self.span.to_ms)
        if self.starts_ms is None or len(self.starts_ms) > _MAX_LISTED_WINDOWS:
            return inside
        return inside & start_ms.isin(sorted(self.starts_ms))


def as_appended_to_input(late_records: DataFrame) -> DataFrame:
    """Return records of the late topic with the `timestamp` that they had in the input, and their JUDGED_BY.

    Records of an earlier release lack both headers: they keep their own timestamp, and their JUDGED_BY is null.
    """
    appended_ms = headers.text_of(F.col("headers"), headers.APPENDED_MS).try_cast("long")
    return late_records.withColumns(
        {
            "timestamp": F.coalesce(F.timestamp_millis(appended_ms), F.col("timestamp")),
            JUDGED_BY: headers.text_of(F.col("headers"), headers.JUDGED_BY),
        }
    )


def late_by(
    judgements: Sequence[Judgement], present: Judgement, reject_reason: Callable[[Judgement], Column]
) -> Column:
    """Return the texts of those judgements by which a reading is late: an array column. ANY is one of them.

    A reading that was judged late once, or is late by the `present` judgement, is late by ANY. `reject_reason` gives
    the reason for which a reading is rejected by a judgement with the present condition `where`. Other conditions are
    not known: by their judgements those readings are late that were judged late by them.
    """

    def is_late(judgement: Judgement) -> Column:
        was_late = F.coalesce(F.col(JUDGED_BY).isin(judgement.lateness_texts), F.lit(False))
        if judgement.where_digest != present.where_digest:
            return was_late
        return F.coalesce(reject_reason(judgement) == readings.LATE, F.lit(False))

    was_read = F.col("reading.device_id").isNotNull()
    is_late_by_any = (was_read & F.col(JUDGED_BY).isNotNull()) | is_late(present)
    texts = [F.when(is_late(one), F.lit(str(one))) for one in judgements]
    return F.array_compact(F.array(*texts, F.when(is_late_by_any, F.lit(ANY))))


def late_readings(decoded: DataFrame, late_by: Column, unique_by: Collection[str] = ()) -> DataFrame:
    """Return the late readings in decoded records as their columns, with JUDGED_BY: by which judgement they are late.

    Each reading is there once for each text of `late_by`. The late topic may hold a record twice, and the input
    holds it, too: all these have the same bytes. By the texts of `unique_by` copies of a reading count once as well.
    """
    row = F.transform(late_by, lambda judged: F.struct("value", "reading", judged.alias(JUDGED_BY)))
    rows = decoded.select(F.inline(row))
    if unique_by:
        is_unique = F.col(JUDGED_BY).isin(sorted(unique_by))
        rows = unique_readings.distinct_readings(rows, [JUDGED_BY], is_unique)
    else:
        rows = rows.dropDuplicates(["value", JUDGED_BY])
    return rows.select("reading.*", JUDGED_BY)


def on_time_by(
    decoded: DataFrame, judgements: Sequence[Judgement], reject_reason: Callable[[Judgement], Column]
) -> DataFrame:
    """Return the identities of the readings in decoded records, with JUDGED_BY: by which judgement they are on time."""
    texts = F.array_compact(
        F.array(*(F.when(reject_reason(one).isNull(), F.lit(str(one))) for one in judgements)),
    )
    rows = decoded.select(F.inline(F.transform(texts, lambda text: F.struct("reading", text.alias(JUDGED_BY)))))
    return rows.select(*(f"reading.{name}" for name in unique_readings.IDENTITY), JUDGED_BY)


def judgements(published: DataFrame) -> set[Judgement]:
    """Return the judgements of the original rows in `published`. Runs a Spark job.

    Raises ValueError for a header that the aggregator does not write.
    """
    return {Judgement.parse(row[0]) for row in published.select(JUDGED_BY).distinct().collect()}


def aggregate_late(
    late: DataFrame,
    judgements: Sequence[Judgement],
    scope: Scope,
    window_ms: int,
    slide_ms: int | None,
    measures: Measures = PLAIN,
) -> DataFrame:
    """Return the windows of the scope over the readings of `late_readings`, by judgement (JUDGED_BY), ANY included."""

    def by(text: str) -> DataFrame:
        given = late.where(F.col(JUDGED_BY) == F.lit(text))
        return aggregate(given, scope, window_ms, slide_ms, measures.of_unique).withColumn(JUDGED_BY, F.lit(text))

    return reduce(DataFrame.union, map(by, [*map(str, judgements), ANY]))


def of_their_originals(late: DataFrame, published: DataFrame, present: Judgement) -> DataFrame:
    """Return those windows of `aggregate_late` whose readings were late for the window's original row.

    A window without an original row takes the readings that are late by ANY: no row has them. Where the `present`
    judgement calls them on time, its checkpoint does not publish the window, or there would be a row.
    """
    originals = published.where(F.col("original").isNotNull())
    known = originals.select(*AGGREGATE_IDENTITY, F.col(JUDGED_BY).alias("of_original"))
    both = late.join(known, list(AGGREGATE_IDENTITY), "left")
    fitting = both.where(F.col(JUDGED_BY) == F.coalesce("of_original", F.lit(ANY))).drop("of_original")
    is_any = F.col(JUDGED_BY) == F.lit(ANY)
    return fitting.withColumn(JUDGED_BY, F.when(is_any, F.lit(str(present))).otherwise(F.col(JUDGED_BY)))


def aggregate(
    given: DataFrame, scope: Scope, window_ms: int, slide_ms: int | None, measures: Measures = PLAIN
) -> DataFrame:
    """Return the windows of the scope over readings that were measured within its span."""
    rows = windows.aggregate(given, window_ms, slide_ms, measures)
    return rows.where(scope.holds(F.unix_millis("window_start"), F.unix_millis("window_end")))


def window_starts(late: DataFrame, window_ms: int, slide_ms: int | None) -> DataFrame:
    """Return the starts of the windows that readings belong to (`start_ms`), each once, with the number of readings."""
    length, slide = f"{window_ms} milliseconds", f"{slide_ms or window_ms} milliseconds"
    start_ms = F.unix_millis(F.window("event_time", length, slide)["start"]).alias("start_ms")
    return late.select(start_ms).groupBy("start_ms").agg(F.count(F.lit(1)).alias("readings"))


def published(
    records: DataFrame,
    ids: SchemaIds,
    schema: Mapping[str, Any],
    identity: Sequence[str],
    scope: Scope,
    present: Judgement,
) -> DataFrame:
    """Return what was published of each identity in the scope: the structs `newest` and `original`, and JUDGED_BY.

    Both structs have the numbers and the revision. `newest` is the row of the highest revision. `original` is that
    among the rows without late readings; null when there is none. `first_revision` is the lowest revision of such a
    row. JUDGED_BY is the judgement of `original`; the `present` one where the row has none, because an earlier release
    wrote it. The record's key says which window it is about, so only records of the scope are decoded.
    """
    names = [field["name"] for field in schema["fields"]]
    shape = avro_types.struct_of(schema)
    decoded = confluent_avro.decode(F.col("value"), ids, confluent_avro.projected(schema, names), shape)
    start_ms, end_ms = window_in_key(F.col("key"))
    is_original = headers.text_of(F.col("headers"), headers.LATE_READINGS).isNull()
    # No earlier release left copies out.
    unknown = F.lit(str(replace(present, deduplicate=False)))
    judged_by = F.coalesce(headers.text_of(F.col("headers"), headers.JUDGED_BY), unknown)
    rows = (
        records.where(scope.holds(start_ms, end_ms))
        .select(decoded.alias("row"), is_original.alias("is_original"), judged_by.alias(JUDGED_BY))
        .where(F.col(f"row.{identity[0]}").isNotNull())
        .select("row.*", "is_original", JUDGED_BY)
    )
    numbers = F.struct(*(name for name in names if name not in identity))
    of_original = F.when(F.col("is_original"), F.col("revision"))
    return rows.groupBy(*identity).agg(
        F.max_by(numbers, F.col("revision")).alias("newest"),
        F.max_by(numbers, of_original).alias("original"),
        F.min(of_original).alias("first_revision"),
        F.coalesce(F.max_by(JUDGED_BY, of_original), F.lit(str(present))).alias(JUDGED_BY),
    )


def window_in_key(key: Column) -> tuple[Column, Column]:
    """Return the bounds of the window (epoch ms) that the key of a published record names; null for other keys."""
    text = key.cast("string")
    start_ms, end_ms = (F.split_part(text, F.lit("|"), F.lit(place)).try_cast("long") for place in (-2, -1))
    return start_ms, end_ms


def with_rebuilt(
    published: DataFrame, rebuilt: DataFrame, present: Judgement, names: Sequence[str] = NUMBERS
) -> DataFrame:
    """Replace the originals by windows that were computed again from the input; return them as `published` does.

    `present` is the judgement by which they were computed. An original with more readings than the rebuilt window
    stays: the input has lost some of them (ADR 0038), or by its judgement fewer readings were late. The column
    `is_rebuilt` tells which originals have other numbers or another judgement now, `is_incomplete` which ones stayed.
    """
    numbers = F.struct(*names, F.lit(0).cast("long").alias("revision"))
    both = published.join(
        rebuilt.select(*AGGREGATE_IDENTITY, numbers.alias("rebuilt")), list(AGGREGATE_IDENTITY), "full_outer"
    )
    computed = F.col("rebuilt")
    # A published row has its derived fields as well.
    original = F.when(F.col("original").isNotNull(), only(F.col("original"), [*names, "revision"]))
    is_incomplete = original.isNotNull() & merged_numbers.has_fewer(computed, original, names)
    is_equal = merged_numbers.is_same(computed, original, names) & (F.col(JUDGED_BY) == F.lit(str(present)))
    is_other = computed.isNotNull() & (original.isNull() | ~is_equal)
    return both.select(
        *AGGREGATE_IDENTITY,
        "newest",
        F.when(is_incomplete, original).otherwise(computed).alias("original"),
        F.when(is_incomplete, F.col(JUDGED_BY)).otherwise(F.lit(str(present))).alias(JUDGED_BY),
        (is_other & ~is_incomplete).alias("is_rebuilt"),
        is_incomplete.alias("is_incomplete"),
    )


def merged(published: DataFrame, late: DataFrame, names: Sequence[str] = NUMBERS) -> DataFrame:
    """Return every published or late window of the scope with its right numbers.

    `published` has the columns `is_rebuilt` and `is_incomplete` of `with_rebuilt`, `late` comes from
    `of_their_originals`. The result has the identity, `names` and JUDGED_BY, `late_readings` (how many of them are in
    the numbers), and what is to be done:

    - `original`, where it is not null, is to be published as the window's original,
    - the numbers are to be published as a correction where `is_correction`.

    Corrections add readings. Where there would be fewer than in the newest row, `is_fewer`, the newest row counts and
    nothing is published.
    """
    late_numbers = late.select(*AGGREGATE_IDENTITY, F.struct(*names).alias("late"), F.col(JUDGED_BY).alias("late_by"))
    both = published.join(late_numbers, list(AGGREGATE_IDENTITY), "full_outer")
    newest, original, added = F.col("newest"), F.col("original"), F.col("late")
    is_rebuilt = F.coalesce("is_rebuilt", F.lit(False))
    # Without late readings in the topic the newest row counts, be it a correction: it has what retention removed.
    right = (
        F.when(added.isNull() & (is_rebuilt | newest.isNull()), only(original, names))
        .when(added.isNull(), only(newest, names))
        .when(original.isNull(), only(added, names))
        .otherwise(merged_numbers.sum_of(original, added, names))
    )
    is_fewer = newest.isNotNull() & merged_numbers.has_fewer(F.col("right"), newest, names)
    is_other = newest.isNull() | is_rebuilt | ~merged_numbers.is_same(F.col("right"), newest, names)
    rows = both.withColumn("right", right).withColumn("fewer", is_fewer)
    return rows.select(
        *AGGREGATE_IDENTITY,
        *(F.when(F.col("fewer"), newest[name]).otherwise(F.col(f"right.{name}")).alias(name) for name in names),
        F.coalesce(JUDGED_BY, "late_by").alias(JUDGED_BY),
        F.coalesce(added["count"], F.lit(0)).alias("late_readings"),
        F.when(is_rebuilt & ~F.col("fewer"), only(original, names)).alias("original"),
        (added.isNotNull() & is_other & ~F.col("fewer")).alias("is_correction"),
        (F.col("fewer") | F.coalesce("is_incomplete", F.lit(False))).alias("is_fewer"),
    )


def touched_windows(rows: DataFrame) -> DataFrame:
    """Return the metric and the bounds of the windows with late readings or a rebuilt original.

    `rows` come from `merged`. Windows whose rows are right already are among them: a correction may have been killed
    before it published its groups.
    """
    is_touched = (F.col("late_readings") > 0) | F.col("original").isNotNull()
    return rows.where(is_touched).select(*_WINDOW).distinct()


def groups(
    rows: DataFrame, touched: DataFrame, devices: DataFrame, attributes: Sequence[str], unknown_group: str
) -> DataFrame:
    """Return the groups of the `touched` windows, over all rows of these windows."""
    whole = rows.join(touched, list(_WINDOW), "left_semi")
    return windows.group(windows.with_devices(whole, devices), attributes, unknown_group)


def changed_groups(computed: DataFrame, published: DataFrame) -> DataFrame:
    """Return the groups that are not published, or were published with other numbers."""
    numbers = ("device_count", "count", "mean", "min", "max")
    known = published.select(*GROUP_IDENTITY, "newest")
    is_equal = F.col("newest").isNotNull() & merged_numbers.is_same(F.struct(*numbers), F.col("newest"), numbers)
    both = computed.join(known, list(GROUP_IDENTITY), "left")
    return both.where(~F.coalesce(is_equal, F.lit(False))).select(*computed.columns)

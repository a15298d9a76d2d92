"""The rules of `watermark.boundary` as expressions of Spark, for many records at once. Pure."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.watermark.boundary import Boundary


def owns_record(boundary: Boundary) -> Column:
    """Return whether this aggregator answers for a decoded record, as `Boundary.owns_record` says.

    The records have the columns `timestamp` and `reading`.
    """
    appended_ms = F.unix_millis("timestamp")
    is_in_overlap = (appended_ms >= boundary.begin_ms) & (appended_ms < boundary.end_ms)
    event_ms = F.when(is_in_overlap, F.unix_millis("reading.event_time"))
    is_before = F.coalesce(event_ms, appended_ms) < boundary.at_ms
    return is_before if boundary.is_former else ~is_before


def owns_window(boundary: Boundary) -> Column:
    """Return whether this aggregator publishes a window, by its column `window_start` in epoch ms."""
    is_before = F.col("window_start") < boundary.at_ms
    return is_before if boundary.is_former else ~is_before

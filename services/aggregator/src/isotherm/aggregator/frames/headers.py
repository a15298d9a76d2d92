"""The Kafka headers that the aggregator adds to its records. Pure: columns in, columns out."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

JUDGED_BY = "aggregator.judged_by"
"""Header of windows and late readings: the settings by which readings were judged (`watermark.judgement`)."""
APPENDED_MS = "aggregator.appended_ms"
"""Header of a late reading: when the broker appended it to its input topic, in epoch ms."""
LATE_READINGS = "aggregator.late_readings"
"""Header of a corrected window: how many late readings are in it. An original window does not have it."""

_SEPARATOR = "\x1f"
_TYPE = "array<struct<key:string,value:binary>>"


def made(texts: Mapping[str, Column]) -> Column:
    """Return headers with these texts, by name."""
    entries = [
        F.struct(F.lit(name).alias("key"), F.encode(text.cast("string"), "UTF-8").alias("value"))
        for name, text in texts.items()
    ]
    return F.array(*entries).cast(_TYPE)


def with_those_of_windows(common: Column, added: Mapping[tuple[str, str, int], Mapping[str, bytes]]) -> Column:
    """Return the headers of rows that are windows: `common`, and those of some windows.

    `added` has these by device, metric and start of the window in epoch ms.
    """
    if not added:
        return common
    entries: list[Column] = []
    for (device_id, metric, start_ms), headers in added.items():
        texts = {name: F.lit(value.decode()) for name, value in headers.items()}
        entries += [F.lit(text_of_key(device_id, metric, start_ms)), made(texts)]
    found = F.element_at(F.create_map(*entries), window_key())
    return F.concat(common, F.coalesce(found, F.array().cast(_TYPE)))


def window_key() -> Column:
    """Return what tells one window from the others, as text."""
    return F.concat_ws(_SEPARATOR, "device_id", "metric", F.unix_millis("window_start").cast("string"))


def text_of_key(device_id: str, metric: str, start_ms: int) -> str:
    """Return the text of `window_key` for a window."""
    return _SEPARATOR.join((device_id, metric, str(start_ms)))


def without(headers: Column, *names: str) -> Column:
    """Return headers without those of some names. No headers are an empty array."""
    return F.filter(F.coalesce(headers, F.array().cast(_TYPE)), lambda header: ~header["key"].isin(*names))


def text_of(headers: Column, name: str) -> Column:
    """Return the text of the first header of a name; null without such a header."""
    values = F.filter(headers, lambda header: header["key"] == name)
    return F.get(values, F.lit(0))["value"].cast("string")

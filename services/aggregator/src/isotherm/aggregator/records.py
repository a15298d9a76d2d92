"""The output records of a small batch of finished windows, made by the driver itself. Pure.

A Spark job costs the same for a hundred windows as for a hundred thousand: it is planned, compiled and shared out.
`frames.windows` makes the same records from data frames. Both ways give the same bytes, because a batch that is run
again after a crash may take the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isotherm.aggregator.exact_sum import exact_sum
from isotherm.aggregator.frames.windows import GROUP, aggregate_schema
from isotherm.aggregator.windowing.measures import PLAIN, Measures
from isotherm.servicekit import avro

Row = Mapping[str, Any]
"""A window or a group with the fields of its record; times in epoch ms."""
Attributes = Mapping[str, Sequence[str | None]]
"""The values of the attributes by device id, in the order of the attributes."""
Record = tuple[bytes, bytes]
"""Key and value."""


def aggregate_encoder(schema_id: int, measures: Measures = PLAIN) -> Callable[[Row], Record]:
    """Return a function from a window to its record. `schema_id` is that of the schema of these measures."""
    return _encoder(aggregate_schema(measures), schema_id, ("device_id", "metric"))


def group_encoder(schema_id: int) -> Callable[[Row], Record]:
    """Return a function from a group to its record."""
    return _encoder(GROUP, schema_id, ("attribute", "group", "metric"))


def group(windows: Sequence[Row], devices: Attributes, attributes: Sequence[str], unknown_group: str) -> list[Row]:
    """Return the groups of the windows, as `frames.windows.group` does.

    A device whose attribute is not known is in the group `unknown_group`; with an empty `unknown_group` it is left out.
    """
    members: dict[tuple[Any, ...], list[Row]] = {}
    nothing = [None] * len(attributes)
    for window in windows:
        for attribute, value in zip(attributes, devices.get(window["device_id"], nothing), strict=True):
            name = unknown_group or None if value is None else value
            if name is not None:
                key = attribute, name, window["metric"], window["window_start"], window["window_end"]
                members.setdefault(key, []).append(window)
    return [_group(key, rows) for key, rows in members.items()]


def _group(key: tuple[Any, ...], rows: Sequence[Row]) -> Row:
    attribute, name, metric, start_ms, end_ms = key
    count = sum(row["count"] for row in rows)
    total = exact_sum(row["sum"] for row in rows)
    return {
        "attribute": attribute,
        "group": name,
        "metric": metric,
        "window_start": start_ms,
        "window_end": end_ms,
        "device_count": len(rows),
        "count": count,
        "mean": total / count,
        "min": min(row["min"] for row in rows),
        "max": max(row["max"] for row in rows),
        "revision": max(row["revision"] for row in rows),
    }


def _encoder(writer: Mapping[str, Any], schema_id: int, names: Sequence[str]) -> Callable[[Row], Record]:
    encode = avro.encoder(dict(writer), schema_id)

    def record(row: Row) -> Record:
        texts = [*(_percent_encoded(row[name]) for name in names), str(row["window_start"]), str(row["window_end"])]
        return "|".join(texts).encode(), encode(row)

    return record


def _percent_encoded(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C")

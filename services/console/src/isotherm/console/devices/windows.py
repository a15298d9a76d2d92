"""A device's aggregates: which records are its own, and which of them count. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import isotherm.schemas
from isotherm.kcql.dates import epoch_ms

TOPIC = "temperatures.aggregated"
SCHEMA = isotherm.schemas.schema("TemperatureAggregate", 1)


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured of one metric from `start_ms` to before `end_ms` (epoch)."""

    metric: str
    start_ms: int
    end_ms: int
    count: int
    mean: float
    min: float
    max: float
    stddev: float
    revision: int


def key_prefix(device_id: str) -> bytes:
    """How the keys of a device's aggregates begin: ids escape what separates the key's parts (see the topic's file)."""
    return (device_id.replace("%", "%25").replace("|", "%7C") + "|").encode()


def window_of(record: Mapping[str, Any]) -> Window:
    """The window of a TemperatureAggregate record, decoded."""
    return Window(
        record["metric"],
        epoch_ms(record["window_start"]),
        epoch_ms(record["window_end"]),
        record["count"],
        record["mean"],
        record["min"],
        record["max"],
        record["stddev"],
        record["revision"],
    )


def by_metric(windows: Iterable[Window]) -> dict[str, list[Window]]:
    """The windows of each metric by time, of each the highest revision; those whose numbers overflowed are left out."""
    newest: dict[tuple[str, int, int], Window] = {}
    for window in windows:
        identity = (window.metric, window.start_ms, window.end_ms)
        if identity not in newest or window.revision > newest[identity].revision:
            newest[identity] = window
    found: dict[str, list[Window]] = {}
    for identity in sorted(newest):
        window = newest[identity]
        if all(math.isfinite(value) for value in (window.min, window.mean, window.max)):
            found.setdefault(window.metric, []).append(window)
    return found

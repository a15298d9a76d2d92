"""A device's window aggregates: the prefix of their keys, and the newest revision of each. Pure."""

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
    """The aggregate of one metric from `start_ms` to before `end_ms` (epoch milliseconds)."""

    metric: str
    start_ms: int
    end_ms: int
    count: int
    mean: float
    min: float
    max: float
    stddev: float
    revision: int


def escaped(text: str) -> str:
    """Return a part of a key, in which the separator `|` is percent-encoded (see the topic's YAML)."""
    return text.replace("%", "%25").replace("|", "%7C")


def key_prefix(device_id: str) -> bytes:
    """Return the prefix of the keys of a device's aggregates."""
    return f"{escaped(device_id)}|".encode()


def window_of(record: Mapping[str, Any]) -> Window:
    """Read a decoded TemperatureAggregate record."""
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
    """Return each metric's windows by time: only the highest revisions, and only those with finite numbers."""
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

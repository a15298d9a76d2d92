"""A reading, and which ones no rule may see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

TOO_MANY_METRICS = "too-many-metrics"

_REVISIONS = 2**62


class RefusedReadingError(Exception):
    """A reading that cannot be taken in: it is a dead letter. `reason` is how it is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reading(NamedTuple):
    """One measurement of one quantity by one device; times are epoch ms, UTC."""

    device_id: str
    metric: str
    value: float
    unit: str
    event_time_ms: int
    ingest_time_ms: int
    sequence: int = 0
    """The device's own number, 0 if unknown. That of a window's mean is negative, and higher for a later revision."""

    @property
    def position(self) -> tuple[int, int]:
        """Where it stands among the readings of its metric: with device and metric its identity."""
        return (self.event_time_ms, self.sequence)


def refusal(reading: Reading, max_skew_ms: int) -> str | None:
    """Why the rules must not see a reading: `not-finite`, `future`, or None when they may.

    A time far in the future would become the device's newest, and hide everything that it measures until then.
    """
    if not math.isfinite(reading.value):
        return "not-finite"
    if reading.event_time_ms > reading.ingest_time_ms + max_skew_ms:
        return "future"
    return None


def reading_of(record: Mapping[str, Any]) -> Reading:
    """The reading in a SensorReading record whose times are epoch ms."""
    return Reading(
        record["device_id"],
        record["metric"],
        record["value"],
        record["unit"],
        record["event_time"],
        record["ingest_time"],
        record["sequence"],
    )


def reading_of_window(record: Mapping[str, Any], taken_in_ms: int) -> Reading:
    """The reading that a TemperatureAggregate record stands for; its `window_end` is epoch ms.

    A window's mean is known when it has ended. Aggregates carry no unit, and no time of taking in.
    """
    # Never 0 or above: no revision continues a numbering, nor is it newer than a window that has had its turn.
    sequence = record["revision"] - _REVISIONS
    return Reading(
        record["device_id"], record["metric"], record["mean"], "", record["window_end"], taken_in_ms, sequence
    )

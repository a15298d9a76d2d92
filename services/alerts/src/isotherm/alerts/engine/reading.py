"""A reading as the rules see it, and the readings that they must not see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

TOO_MANY_METRICS = "too-many-metrics"

_MAX_REVISION = 2**62


class RejectedReadingError(Exception):
    """The reading is a dead-letter record. `reason` is the label under which it is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reading(NamedTuple):
    """One measurement of one metric by one device. Times are epoch ms (UTC)."""

    device_id: str
    metric: str
    value: float
    unit: str
    event_time_ms: int
    ingest_time_ms: int
    sequence: int = 0
    """The device's number, 0 if unknown. For the mean of a window it is negative, and higher for a later revision."""

    @property
    def position(self) -> tuple[int, int]:
        """The order among the readings of the metric. Together with device and metric it is the reading's identity."""
        return (self.event_time_ms, self.sequence)


def filter_reason(reading: Reading, max_skew_ms: int) -> str | None:
    """Return why the rules must not see a reading, `not-finite` or `future`; None when they may see it.

    A time far in the future would become the device's newest time, and every reading until then would be stale.
    """
    if not math.isfinite(reading.value):
        return "not-finite"
    if reading.event_time_ms > reading.ingest_time_ms + max_skew_ms:
        return "future"
    return None


def reading_of(record: Mapping[str, Any]) -> Reading:
    """Return the reading in a SensorReading record whose times are epoch ms."""
    return Reading(
        record["device_id"],
        record["metric"],
        record["value"],
        record["unit"],
        record["event_time"],
        record["ingest_time"],
        record["sequence"],
    )


def reading_of_window(record: Mapping[str, Any], ingest_time_ms: int) -> Reading:
    """Return the mean of a TemperatureAggregate record (`window_end` in epoch ms) as a reading at the window's end.

    Aggregates carry no unit and no ingest time, so the caller gives the latter.
    """
    # The number is always negative: a revision never continues a sequence, and after one revision of a window was
    # applied, no other revision is newer.
    sequence = record["revision"] - _MAX_REVISION
    return Reading(
        record["device_id"], record["metric"], record["mean"], "", record["window_end"], ingest_time_ms, sequence
    )

"""Where a metric is heading: its change per hour, smoothed over the last readings. Pure."""

from __future__ import annotations

import math

from isotherm.alerts.engine.device_state import Point

HOUR_MS = 3_600_000
MEMORY_MS = 600_000
"""A change that lasts so long makes two thirds of the trend, whatever the distance of the readings."""


def followed(trend_per_hour: float | None, before: Point, now: Point) -> float | None:
    """The trend after a reading, in the metric's unit per hour; None while it is not known.

    `before` is the reading before, its time negative when there was none; a later reading of the same time changes
    nothing. Exponentially weighted by time, so that it needs no memory but itself, and two readings within a
    millisecond make no cliff of what they differ by. It begins at 0.
    """
    passed_ms = now[0] - before[0]
    if before[0] < 0 or passed_ms <= 0:
        return trend_per_hour
    change_per_hour = (now[1] - before[1]) * HOUR_MS / passed_ms
    weight = -math.expm1(-passed_ms / MEMORY_MS)
    followed_per_hour = (trend_per_hour or 0.0) * (1.0 - weight) + change_per_hour * weight
    # Values at the ends of what a double holds have no trend that one could hold.
    return followed_per_hour if math.isfinite(followed_per_hour) else None

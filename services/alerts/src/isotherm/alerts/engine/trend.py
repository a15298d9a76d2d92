"""The trend of a metric: its change per hour, smoothed over the last readings. Pure."""

from __future__ import annotations

import math

from isotherm.alerts.engine.device_state import Point

HOUR_MS = 3_600_000
TIME_CONSTANT_MS = 600_000
"""A change that lasts this long makes up two thirds of the trend, whatever the interval between readings."""


def followed(trend_per_hour: float | None, before: Point, now: Point) -> float | None:
    """Return the trend after a reading, in the metric's unit per hour; None while it is not known.

    `before` is the previous reading; its time is negative when there was none. A reading with the same time changes
    nothing. The trend begins at 0 and is weighted exponentially by time: it needs no other state, and two readings
    within a millisecond do not make it jump.
    """
    passed_ms = now[0] - before[0]
    if before[0] < 0 or passed_ms <= 0:
        return trend_per_hour
    change_per_hour = (now[1] - before[1]) * HOUR_MS / passed_ms
    weight = -math.expm1(-passed_ms / TIME_CONSTANT_MS)
    followed_per_hour = (trend_per_hour or 0.0) * (1.0 - weight) + change_per_hour * weight
    # The trend between values near the limits of a double exceeds these limits.
    return followed_per_hour if math.isfinite(followed_per_hour) else None

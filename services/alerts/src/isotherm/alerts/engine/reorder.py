"""A small buffer that lets the readings of one metric of one device pass in order of event time.

A reading that continues the device's own numbering passes at once. Any other waits until `window_ms` of event time
have gone by, in case one that was measured before it is still under way. What comes after its turn is stale: a
duplicate, or later than the window allows. Of the revisions of an aggregate, which have negative numbers, the highest
waits; once one has had its turn, every other is stale.
"""

from __future__ import annotations

from bisect import bisect_left

from isotherm.alerts.engine.device_state import Held, MetricMemory

MAX_HELD = 64
"""Readings of one metric that wait; one more lets the first of them pass."""
MAX_HELD_OF_DEVICE = 256
"""Readings of all metrics of a device that wait; one more lets the first of them pass."""


def offer(metric: MetricMemory, reading: Held) -> bool:
    """Take a reading in; False when it is stale, and nothing has changed. `release` says what may pass."""
    position = (reading.event_time_ms, reading.sequence)
    if position <= (metric.event_time_ms, metric.sequence):
        return False
    at = bisect_left(metric.held, position, key=lambda one: (one.event_time_ms, one.sequence))
    if at < len(metric.held) and metric.held[at][:2] == position:
        return False
    if reading.sequence < 0:
        if at < len(metric.held) and metric.held[at].event_time_ms == reading.event_time_ms:
            return False
        if at and metric.held[at - 1].event_time_ms == reading.event_time_ms:
            at -= 1
            del metric.held[at]
    metric.held.insert(at, reading)
    metric.newest_ms = max(metric.newest_ms, reading.event_time_ms)
    return True


def release(metric: MetricMemory, window_ms: int, now_ms: int | None = None, *, crowded: bool = False) -> Held | None:
    """The next reading whose turn has come, which becomes the metric's position; None when all have to wait.

    `now_ms` is a time up to which everything that was measured `window_ms` before it has arrived. When it is too
    `crowded`, the first does not have to wait.
    """
    if not metric.held:
        return None
    first = metric.held[0]
    expires_ms = first.event_time_ms + window_ms
    follows = first.sequence == metric.sequence + 1
    late_enough = expires_ms <= metric.newest_ms or (now_ms is not None and expires_ms <= now_ms)
    if not (follows or late_enough or crowded or len(metric.held) > MAX_HELD):
        return None
    del metric.held[0]
    metric.event_time_ms, metric.sequence, metric.value, metric.unit = first
    metric.sequence = max(metric.sequence, 0)
    return first


def due_ms(metric: MetricMemory, window_ms: int) -> int | None:
    """When the first waiting reading has waited long enough; None when none waits."""
    return metric.held[0].event_time_ms + window_ms if metric.held else None

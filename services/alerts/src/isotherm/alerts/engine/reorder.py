"""A small buffer that releases the readings of one metric of one device in order of event time.

A reading with the device's next sequence number is released at once, and so is every reading of a metric whose last
`TRUSTED` readings have come in order, with numbers, without or with gaps. Any other reading waits until `window_ms` of
event time have passed, because a reading that was measured before it may still arrive. A reading at or before the
position is stale: it is a duplicate, or later than the window allows. One that is no duplicate shows that the readings
do not come in order, and the next ones wait again. Revisions of an aggregate have negative sequence
numbers: the highest revision waits, and after one was released all others are stale.
"""

from __future__ import annotations

from bisect import bisect_left

from isotherm.alerts.engine.device_state import BufferedReading, MetricState

MAX_BUFFERED = 64
"""Limit of the buffered readings of one metric. One more releases the first of them."""
MAX_BUFFERED_OF_DEVICE = 256
"""Limit of the buffered readings of all metrics of a device. One more releases the first of them."""

TRUSTED = 32
"""After so many readings that have come in order, none waits."""
RECENT = 4
"""How many event times tell a stale reading that comes for the first time from a duplicate."""


def offer(metric: MetricState, reading: BufferedReading) -> bool:
    """Buffer a reading; return False, and change nothing, when it is stale. `release` returns what may pass."""
    position = (reading.event_time_ms, reading.sequence)
    if position <= (metric.event_time_ms, metric.sequence):
        if is_first_disorder(metric, reading.event_time_ms):
            _note_time(metric, reading.event_time_ms)
            metric.in_order = 0
        return False
    at = bisect_left(metric.buffered, position, key=lambda one: (one.event_time_ms, one.sequence))
    if at < len(metric.buffered) and metric.buffered[at][:2] == position:
        return False
    if reading.sequence < 0:
        if at < len(metric.buffered) and metric.buffered[at].event_time_ms == reading.event_time_ms:
            return False
        if at and metric.buffered[at - 1].event_time_ms == reading.event_time_ms:
            at -= 1
            del metric.buffered[at]
    metric.buffered.insert(at, reading)
    if reading.event_time_ms < metric.newest_ms:
        metric.in_order = 0
    elif reading.sequence >= 0:
        # The first revision of a window has to wait for the others, in whatever order windows come.
        metric.in_order = min(metric.in_order + 1, TRUSTED)
    metric.newest_ms = max(metric.newest_ms, reading.event_time_ms)
    _note_time(metric, reading.event_time_ms)
    return True


def is_first_disorder(metric: MetricState, event_time_ms: int) -> bool:
    """Return whether a stale reading is known to come for the first time: only then may it change the state."""
    recent = metric.recent
    return bool(recent) and event_time_ms > recent[0] and event_time_ms not in recent


def _note_time(metric: MetricState, event_time_ms: int) -> None:
    at = bisect_left(metric.recent, event_time_ms)
    if metric.recent[at : at + 1] != [event_time_ms]:
        metric.recent.insert(at, event_time_ms)
        if len(metric.recent) > RECENT:
            del metric.recent[0]


def release(
    metric: MetricState, window_ms: int, now_ms: int | None = None, *, over_limit: bool = False
) -> BufferedReading | None:
    """Remove and return the next reading that may pass, and make it the metric's position; None when all have to wait.

    At `now_ms`, everything that was measured before `now_ms - window_ms` has arrived. With `over_limit` the first
    reading does not have to wait.
    """
    if not metric.buffered:
        return None
    first = metric.buffered[0]
    expires_ms = first.event_time_ms + window_ms
    is_next = first.sequence == metric.sequence + 1
    has_waited = expires_ms <= metric.newest_ms or (now_ms is not None and expires_ms <= now_ms)
    is_trusted = metric.in_order >= TRUSTED
    if not (is_next or has_waited or is_trusted or over_limit or len(metric.buffered) > MAX_BUFFERED):
        return None
    del metric.buffered[0]
    metric.event_time_ms, metric.sequence, metric.value, metric.unit = first
    metric.sequence = max(metric.sequence, 0)
    return first


def due_ms(metric: MetricState, window_ms: int) -> int | None:
    """Return when the first buffered reading has waited long enough (epoch ms); None when none waits."""
    return metric.buffered[0].event_time_ms + window_ms if metric.buffered else None

"""The rhythm of a metric: its usual gap between two readings, and after how long without one it is silent. Pure.

The usual gap is the median of the gaps, followed step by step from the mean of the first ones: a longer gap raises it,
a shorter one lowers it, by a share that falls with the number of gaps. Every gap counts, also one that was longer than
the limit of silence. Beside it the longest of the last gaps is kept, as a multiple of the usual one that fades, and
pauses that come back.

The compiled code computes the same in the same order of operations (`hotpath/rhythm.pxi`).
"""

from __future__ import annotations

from isotherm.alerts.engine.device_state import MetricState
from isotherm.alerts.rules.kinds import Bounds

MIN_GAPS = 5
"""How many gaps must be known before a metric can be silent."""
SETTLED_GAPS = 64
"""How many gaps show that a metric is regular. Until then it is treated as an irregular one."""
MAX_GAPS = 512
"""How many gaps the step of the median counts at most."""
_STEP = 1.5
"""The median moves by this share, divided by the number of gaps: best for gaps of a Poisson process."""
_MEAN_GAPS = 8
"""The mean of the first gaps is where the median begins: from the first gap alone it would take long to come up."""
_RUN, _RUN_STEP = 24, 0.25
"""After so many gaps in a row on one side of the median the rhythm is another one: then it moves by this share."""
_FEW_GAPS = 24
"""The spare time of a metric of which so many gaps are known is doubled."""
_LONGEST_FADES = 1.0 - 1.0 / 256
_LONGEST_GAPS = 8.0
"""The longest gap counts for at most so many usual gaps."""
_LONGEST_FACTOR = 5.0
"""A metric is not silent before its longest gap has passed so many times."""
_PAUSE_FACTOR = 1.5
"""Nor before a pause that comes back has passed so many times."""
_PAUSE_LASTS = 32
"""A pause is forgotten when so many times its length has passed without another one."""


def learn(metric: MetricState, gap_ms: int, limit_ms: int | None) -> None:
    """Take the gap before the reading at the position of a metric into its rhythm.

    Args:
        metric: its position is the reading that ends the gap.
        gap_ms: time since the reading before; nothing is learned from 0 or less.
        limit_ms: after how long without a reading the metric was silent; None while that was not known.
    """
    if gap_ms <= 0:
        return
    if limit_ms is not None and gap_ms > limit_ms and _learn_pause(metric, gap_ms):
        return
    _keep_pause(metric, gap_ms)
    gap = float(gap_ms)
    metric.intervals_seen = min(metric.intervals_seen + 1, MAX_GAPS)
    if metric.intervals_seen <= _MEAN_GAPS:
        metric.interval_ms += (gap - metric.interval_ms) / metric.intervals_seen
    elif gap > metric.interval_ms:
        metric.run = metric.run + 1 if metric.run > 0 else 1
        metric.interval_ms = min(metric.interval_ms * (1.0 + _step(metric)), gap)
    elif gap < metric.interval_ms:
        metric.run = metric.run - 1 if metric.run < 0 else -1
        metric.interval_ms = max(metric.interval_ms * (1.0 - _step(metric)), gap)
    else:
        metric.run = 0
    metric.longest_ms = max(min(gap, _LONGEST_GAPS * metric.interval_ms), metric.longest_ms * _LONGEST_FADES)


def _step(metric: MetricState) -> float:
    if abs(metric.run) >= _RUN:
        return _RUN_STEP
    return _STEP / metric.intervals_seen


def _learn_pause(metric: MetricState, gap_ms: int) -> bool:
    """Take a gap beyond the limit as a pause; return whether it is the second in a row and so begins another rhythm."""
    at_ms = metric.event_time_ms
    if metric.pause_ms and metric.pause_at_ms == at_ms - gap_ms:
        metric.interval_ms = metric.longest_ms = float(min(gap_ms, metric.pause_ms))
        metric.intervals_seen, metric.run = SETTLED_GAPS, 0
        metric.pause_ms = metric.pause_at_ms = metric.accepted_ms = 0
        return True
    if metric.pause_ms and at_ms - metric.pause_at_ms <= _PAUSE_LASTS * metric.pause_ms:
        metric.accepted_ms = int(_PAUSE_FACTOR * min(gap_ms, metric.pause_ms))
    metric.pause_ms, metric.pause_at_ms = gap_ms, at_ms
    return False


def _keep_pause(metric: MetricState, gap_ms: int) -> None:
    """Keep the pause while gaps like it come back, and forget it when they do not."""
    at_ms = metric.event_time_ms
    if not metric.pause_ms or metric.pause_at_ms == at_ms:
        return
    if metric.accepted_ms and 2 * gap_ms >= metric.pause_ms:
        metric.pause_at_ms = at_ms
        metric.accepted_ms = max(metric.accepted_ms, gap_ms + gap_ms // 4)
    elif at_ms - metric.pause_at_ms > _PAUSE_LASTS * metric.pause_ms:
        metric.pause_ms = metric.pause_at_ms = metric.accepted_ms = 0


def limit_ms(metric: MetricState, bounds: Bounds) -> int | None:
    """Return after how long without a reading a metric is silent by its own rhythm, in ms; None while it has none.

    `bounds` are those of the rule `silent`.
    """
    seen = metric.intervals_seen
    if seen < MIN_GAPS:
        return None
    usual_ms, intervals = metric.interval_ms, bounds["intervals"]
    spare = max(bounds["cautious_intervals"] - intervals, 0.0)
    if seen < SETTLED_GAPS:
        # The fewer gaps, the less is known of their median.
        limit = (intervals + spare * (1.0 + _FEW_GAPS / seen)) * usual_ms
    else:
        limit = max(intervals * usual_ms, min(_LONGEST_FACTOR * metric.longest_ms, (intervals + spare) * usual_ms))
    # No sum with a time may exceed an int64 of the compiled code.
    return max(int(min(limit, MAX_LIMIT_MS)), metric.accepted_ms, int(bounds["min_ms"]))


MAX_LIMIT_MS = 2.0**60

"""Judges the silences of single metrics. A metric learns its own rhythm, so the truth knows bounds of its limit only.

A metric is silent no sooner than `least_ms` after its last reading, and at the latest after `MOST_GAPS` times the
longest gap that it has shown, if the device goes on meanwhile. When the silence ends is exact.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_GAPS = 2
"""The rule's `intervals` and `cautious_intervals`, which the settings of the world make the same."""
_KNOWN_READINGS = 10
"""With so many readings a metric has a rhythm, whatever of them counts."""

States = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""The records of a metric's silences, by `opened_at` and state."""


@dataclass(frozen=True)
class MetricLife:
    """Event times of the readings of a metric, and of the others of its device; both ascending."""

    times: list[int]
    others: list[int]
    forgotten_ms: int | None
    """When the device is forgotten."""


def findings(name: str, life: MetricLife, states: States, least_ms: int) -> Iterator[str]:
    """Return what is wrong with the silences of a metric: too early, too late, missing, or closed at another time."""
    for opened_at, alert in sorted(states.items()):
        about = f"{name}/{opened_at}"
        index = bisect_right(life.times, opened_at)
        then = life.times[index] if index < len(life.times) else None
        if not index or opened_at - life.times[index - 1] < least_ms:
            yield f"{about} opened although the metric had given a reading"
        if not any(opened_at < at and (then is None or at <= then) for at in life.others):
            yield f"{about} opened although nothing shows that the device went on"
        if "opened" in alert and alert["opened"]["updated_at"] != opened_at:
            yield f"{about} opened says {alert['opened']['updated_at']}"
        must = life.forgotten_ms if then is None else then
        closed = alert["closed"]["updated_at"] if "closed" in alert else None
        if closed != must:
            yield f"{about} closed at {closed}, not {must}"
    for begin, end in _clear_silences(life, least_ms):
        if not any(begin < opened_at <= end for opened_at in states):
            yield f"{name} is missing between {begin} and {end}"


def _clear_silences(life: MetricLife, least_ms: int) -> Iterator[tuple[int, int]]:
    """Return times in which the metric was silent by any rhythm that it can have, while the device was not."""
    longest_ms = 0
    for index, (last, then) in enumerate(itertools.zip_longest(life.times, life.times[1:])):
        if index:
            longest_ms = max(longest_ms, last - life.times[index - 1])
        if index + 1 < _KNOWN_READINGS:
            continue
        most_ms = max(least_ms, MOST_GAPS * longest_ms)
        begin = last
        for before, at in itertools.pairwise([last, *(one for one in life.others if last < one)]):
            if then is not None and at >= then:
                break
            # After a silence of the device the metric has its whole limit to come back.
            begin = at if at - before > least_ms else begin
            if at - begin > most_ms:
                yield last, at
                break

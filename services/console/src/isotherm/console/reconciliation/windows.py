"""Whether a window has its readings: by sums first, and by the readings themselves where the sums differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from isotherm.console.reconciliation.findings import Finding, Kind, finding_key
from isotherm.console.reconciliation.readings import (
    Content,
    Measurement,
    Series,
    StoredReading,
    Sum,
    WindowRow,
    sum_of,
)
from isotherm.console.trace.model import TopicPartitionOffset

HOP = "aggregator"
_MOST_NAMED = 10
_MOST_SETS = 5_000
"""So many sets of late readings are tried at most."""


class Window(NamedTuple):
    """Which window."""

    series: Series
    start_ms: int
    end_ms: int

    @property
    def identity(self) -> Mapping[str, str]:
        """The fields of its identity."""
        device, metric = self.series
        return {
            "device_id": device,
            "metric": metric,
            "window_start": str(self.start_ms),
            "window_end": str(self.end_ms),
        }

    @property
    def finding_key(self) -> str:
        """The key of a finding about it."""
        return finding_key(HOP, self.identity)


class Aside(NamedTuple):
    """The readings of a window that the aggregator has set aside."""

    late: Mapping[Content, float]
    """Copies, with their values. They may be in the window or not yet: corrections come when the aggregator says so."""
    refused: Collection[TopicPartitionOffset]
    """The records that it refused: they are in no window."""


def is_plain(row: WindowRow | None, every: Sum, aside: Aside) -> bool:
    """Whether sums alone show that a window is right. If not, its readings decide: there may be copies among them."""
    if aside.refused:
        return False
    if row is None:
        return every.readings == len(aside.late)
    if every.equals(row):
        return True
    less = sum_of(aside.late.values())
    rest = Sum(every.readings - less.readings, every.total - less.total, every.magnitude - less.magnitude)
    has_sum = rest.readings == row.readings and rest.is_near(row.total) and rest.is_near(row.mean * row.readings)
    # Whether a late reading was the smallest or largest one does not show without looking.
    return has_sum and every.low <= row.low and row.high <= every.high


def judge(
    window: Window,
    row: WindowRow | None,
    readings: Sequence[StoredReading],
    aside: Aside,
    topic: str,
    *,
    deduplicate: bool,
) -> Finding | None:
    """Compare a window with its readings: those in time, and any of the late ones.

    Args:
        window: which window.
        row: its newest revision; None if it was not published.
        readings: all readings of its time, copies and those set aside among them.
        aside: those set aside.
        topic: the topic of windows.
        deduplicate: whether of several copies of a reading one counts.

    Returns:
        None if the window is right.
    """
    accepted = [one for one in readings if one.place not in aside.refused]
    counting = _once(accepted) if deduplicate else accepted
    late = [one for one in counting if one.content in aside.late]
    in_time = [one for one in counting if one.content not in aside.late]
    if row is None:
        if not in_time:
            return None
        return _finding(window, Kind.MISSING, topic, in_time, row, in_time)
    if _is_made_of(row, in_time, late):
        return None
    if row.readings < len(in_time):
        return _finding(window, Kind.INCOMPLETE, topic, in_time, row, _explaining(row, in_time, missing=1))
    if row.readings > len(counting):
        named = _explaining(row, counting, missing=-1)
        return _finding(window, Kind.SURPLUS, topic, counting, row, named)
    return _finding(window, Kind.DIFFERENT, topic, in_time, row, ())


def _is_made_of(row: WindowRow, in_time: Sequence[StoredReading], late: Sequence[StoredReading]) -> bool:
    """Whether a window has all readings in time and some of the late ones, whichever they are."""
    more = row.readings - len(in_time)
    if not 0 <= more <= len(late):
        return False
    if more in (0, len(late)) or math.comb(len(late), more) <= _MOST_SETS:
        sets: Iterable[Sequence[StoredReading]] = combinations(late, more)
        return any(_sum([*in_time, *some]).equals(row) for some in sets)
    # So many that trying them all would take long: then the sum only has to be possible.
    values, base = sorted(one.value for one in late), _sum(in_time)
    least, most = (base.total + sum(part) for part in (values[:more], values[len(values) - more :]))
    error = _sum([*in_time, *late]).error
    return least - error <= row.total <= most + error


def _sum(readings: Collection[StoredReading]) -> Sum:
    return sum_of(one.value for one in readings)


def _once(readings: Sequence[StoredReading]) -> list[StoredReading]:
    """Return one of all copies of a reading: that with the earliest ingest time, then that with the smallest value."""
    by_measurement: dict[Measurement, StoredReading] = {}
    for one in sorted(readings, key=lambda one: (one.ingest_ms, one.value)):
        by_measurement.setdefault(one.measurement, one)
    return list(by_measurement.values())


def _explaining(row: WindowRow, of: Sequence[StoredReading], *, missing: int) -> Sequence[StoredReading]:
    """Return the readings of which one alone, left out or counted twice, explains the window's numbers."""
    if len(of) - row.readings != missing:
        return ()
    every = _sum(of)
    return [one for one in of if every.is_near(row.total + missing * one.value)]


def _finding(
    window: Window,
    kind: Kind,
    topic: str,
    expected: Sequence[StoredReading],
    row: WindowRow | None,
    named: Sequence[StoredReading],
) -> Finding:
    should, last = _sum(expected), max(named or expected, key=lambda one: one.place.offset, default=None)
    return Finding(
        hop=HOP,
        kind=kind,
        topic=topic,
        identity=window.identity,
        expected=f"{should.readings} readings with the sum {should.total:.9g}",
        found="nothing" if row is None else f"{row.readings} readings with the sum {row.total:.9g}",
        readings=tuple(_named(one) for one in named[:_MOST_NAMED]),
        last_seen=row.place if row is not None else None if last is None else last.place,
    )


def _named(one: StoredReading) -> Mapping[str, str]:
    event_ms, sequence = one.measurement
    return {"event_time": str(event_ms), "sequence": str(sequence), "value": repr(one.value), "record": str(one.place)}

"""Whether every reading of a span is in its windows, and every window has its readings. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.cli.reconciliation.report import Identity, Line, some
from isotherm.cli.reconciliation.tally import Measured, Series, Span, Tally, Window, all_series

_SUM_ERROR = 1e-9
"""How far a sum of doubles may be off, as a part of the sum of their magnitudes: the order of adding is not known."""


@dataclass
class _Found:
    """What the comparison of all series has found."""

    readings: int = 0
    copies: int = 0
    covered: int = 0
    late: int = 0
    missing: list[Identity] = field(default_factory=list)
    """Readings that lack one of their windows and are not late."""
    windows: int = 0
    short: list[Identity] = field(default_factory=list)
    over: list[Identity] = field(default_factory=list)
    different: list[Identity] = field(default_factory=list)


def lines(tally: Tally, readings_topic: str, windows_topic: str) -> tuple[Line, Line]:
    """Return the line of the readings and the line of their windows.

    A window has the readings of its time. Late ones may be in it or not yet: corrections come when the aggregator says
    so. Copies are in it or not, as `deduplicate` says. Windows that reach beyond the span are not compared, but their
    readings have a window.
    """
    found, grids = _Found(), _grids(tally)
    for series in all_series(tally):
        _compare(series, tally, grids, found)
    lost = []
    if found.missing:
        lost.append(f"{len(found.missing)} not in all their windows, neither late nor refused: {some(found.missing)}")
    if not tally.records:
        lost.append("no reading of the span is stored")
    of_readings = Line(
        readings_topic,
        {
            "records": tally.records,
            "readings": found.readings,
            "extra copies": found.copies,
            "in windows": found.covered,
            "late": found.late,
            "dead letters": tally.dead_readings,
            "missing": len(found.missing),
        },
        tuple(lost),
    )
    of_windows = Line(
        windows_topic,
        {
            "records": tally.window_records,
            "windows": found.windows,
            "too few readings": len(found.short),
            "too many readings": len(found.over),
            "another sum": len(found.different),
        },
        tuple(
            f"{len(windows)} windows with {what}: {some(windows)}"
            for windows, what in (
                (found.short, "too few readings"),
                (found.over, "too many readings"),
                (found.different, "another sum"),
            )
            if windows
        ),
    )
    return of_readings, of_windows


class _Grid(NamedTuple):
    """Where windows of one length begin, as far as those that were published show."""

    length_ms: int
    slide_ms: int
    phase_ms: int

    def of(self, time_ms: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of every window that has a time."""
        start_ms = time_ms - (time_ms - self.phase_ms) % self.slide_ms
        while start_ms + self.length_ms > time_ms:
            yield start_ms, start_ms + self.length_ms
            start_ms -= self.slide_ms


def _grids(tally: Tally) -> list[_Grid]:
    starts: dict[int, set[int]] = {}
    for of_series in tally.windows.values():
        for start_ms, end_ms in of_series:
            starts.setdefault(end_ms - start_ms, set()).add(start_ms)
    found = []
    for length_ms, of in starts.items():
        first_ms = min(of)
        slide_ms = math.gcd(length_ms, *(start_ms - first_ms for start_ms in of))
        found.append(_Grid(length_ms, slide_ms, first_ms % slide_ms))
    return found


def _compare(series: Series, tally: Tally, grids: Sequence[_Grid], found: _Found) -> None:
    stored = tally.readings.get(series)
    readings = [] if stored is None else stored.in_order()
    of_late = tally.late.get(series)
    late = set() if of_late is None else {one.identity for one in of_late.in_order()}
    published = tally.windows.get(series, {})
    last: tuple[int, int] | None = None
    for one in readings:
        if one.identity == last:
            found.copies += 1
            continue
        last = one.identity
        found.readings += 1
        found.late += last in late
        if _is_in_all(one.event_ms, published, grids, tally.span):
            found.covered += 1
        elif last not in late:
            found.missing.append((*series, *last))
    times = [one.event_ms for one in readings]
    for window in sorted(published.values()):
        if _is_inside(tally.span, window.start_ms, window.end_ms):
            found.windows += 1
            inside = readings[bisect_left(times, window.start_ms) : bisect_left(times, window.end_ms)]
            _judge(window, inside, late, (*series, window.start_ms), found)


def _is_in_all(time_ms: int, published: Collection[tuple[int, int]], grids: Sequence[_Grid], span: Span) -> bool:
    """Whether every window of a time was published; where all of them reach beyond the span, any one."""
    expected = [one for grid in grids for one in grid.of(time_ms)]
    inside = [one for one in expected if _is_inside(span, *one)]
    if inside:
        return all(one in published for one in inside)
    return any(one in published for one in expected)


def _is_inside(span: Span, start_ms: int, end_ms: int) -> bool:
    return span.start_ms <= start_ms and end_ms <= span.end_ms


def _judge(
    window: Window,
    inside: Sequence[Measured],
    late: Collection[tuple[int, int]],
    identity: Identity,
    found: _Found,
) -> None:
    """Compare a window with the readings of its time: with and without late ones, with and without copies."""
    in_time = [one for one in inside if one.identity not in late]
    likely = [inside, in_time, _once(inside), _once(in_time)]
    if window.readings < min(map(len, likely)):
        found.short.append(identity)
    elif window.readings > len(inside):
        found.over.append(identity)
    else:
        counted = [of for of in likely if len(of) == window.readings]
        if counted and not any(_has_sum(window, of) for of in counted):
            found.different.append(identity)


def _once(readings: Sequence[Measured]) -> list[Measured]:
    return list({one.identity: one for one in readings}.values())


def _has_sum(window: Window, readings: Sequence[Measured]) -> bool:
    size = math.fsum(abs(one.value) for one in readings)
    return abs(window.total - math.fsum(one.value for one in readings)) <= _SUM_ERROR * size

"""The chart of one metric's windows: a line of means in a band from minimum to maximum. SVG geometry, no markup."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from isotherm.console.devices.windows import Window

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 30
"""Margins around the plot in pixels."""
_TICKS = 5
_DAY_MS = 86_400_000
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


class Run(NamedTuple):
    """Consecutive windows without a gap, as points of SVG."""

    line: str
    band: str


class Tick(NamedTuple):
    """A line of the grid with its label."""

    at: float
    """Position in pixels: x of a time, y of a value."""
    label: str


@dataclass(frozen=True)
class Chart:
    """The geometry of the whole chart."""

    runs: tuple[Run, ...]
    times: tuple[Tick, ...]
    values: tuple[Tick, ...]


class _Scale(NamedTuple):
    """Maps numbers from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        # Subtract halves: the difference of two large numbers may overflow.
        share = (number / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def draw(windows: Sequence[Window]) -> Chart:
    """Lay out the windows of one metric: at least one, sorted by time, with finite numbers."""
    low, high = _spread(min(one.min for one in windows), max(one.max for one in windows))
    begin, end = windows[0].start_ms, max(one.end_ms for one in windows)
    x = _Scale(begin, max(end, begin + 1), LEFT, WIDTH - RIGHT)
    y = _Scale(low, high, HEIGHT - BOTTOM, TOP)
    return Chart(
        tuple(_run(run, x, y) for run in _runs(windows)),
        tuple(_time_ticks(begin, end, x)),
        tuple(_value_ticks(low, high, y)),
    )


def _spread(low: float, high: float) -> tuple[float, float]:
    """Return the range of values to show, widened where all values are nearly the same."""
    room = max(abs(low), abs(high), 1.0) * 1e-6
    if high / 2 - low / 2 > room:
        return low, high
    return max(low - 1 - room, -1.7e308), min(high + 1 + room, 1.7e308)


def _runs(windows: Sequence[Window]) -> Iterator[list[Window]]:
    run: list[Window] = []
    for window in windows:
        if run and window.start_ms > run[-1].end_ms:
            yield run
            run = []
        run.append(window)
    yield run


def _run(windows: Sequence[Window], x: _Scale, y: _Scale) -> Run:
    ends = [(x(one.start_ms), x(one.end_ms), one) for one in windows]
    line = [point for start, end, one in ends for point in ((start, y(one.mean)), (end, y(one.mean)))]
    above = [point for start, end, one in ends for point in ((start, y(one.max)), (end, y(one.max)))]
    below = [point for start, end, one in ends for point in ((start, y(one.min)), (end, y(one.min)))]
    return Run(_points(line), _points(above + below[::-1]))


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _time_ticks(begin_ms: int, end_ms: int, x: _Scale) -> Iterator[Tick]:
    span_ms = end_ms - begin_ms
    step_ms = next((one * 1_000 for one in _STEPS_S if one * 1_000 * _TICKS >= span_ms), 0)
    step_ms = step_ms or math.ceil(span_ms / _TICKS / _DAY_MS) * _DAY_MS
    shape = "%m-%d %H:%M" if span_ms > _DAY_MS else "%H:%M" if step_ms >= 60_000 else "%H:%M:%S"
    for at_ms in range(-(-begin_ms // step_ms) * step_ms, end_ms + 1, step_ms):
        yield Tick(round(x(at_ms), 1), datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(shape))


def _value_ticks(low: float, high: float, y: _Scale) -> Iterator[Tick]:
    step = _round_step((high / 2 - low / 2) / _TICKS * 2)
    first = math.ceil(low / step)
    for number in range(first, math.floor(high / step) + 1):
        yield Tick(round(y(number * step), 1), f"{number * step:.6g}")


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((one * power for one in (1, 2, 5) if one * power >= least), 10 * power)

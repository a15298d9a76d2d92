"""A device's windows: their keys, their newest revision, and their chart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm.console.devices.windows import (
    TOPIC,
    Window,
    by_metric,
    key_prefix,
    window_of,
)
from isotherm.console.pages.drawing import chart

NUMBERS = st.floats(-1.7e308, 1.7e308)


def window(start_ms: int, length_ms: int = 10_000, low: float = 20.0, revision: int = 1, metric: str = "t") -> Window:
    return Window(metric, start_ms, start_ms + length_ms, 3, low + 0.5, low, low + 1, 0.4, revision)


@st.composite
def windows(draw: st.DrawFn) -> list[Window]:
    """Windows one after the other, with gaps here and there."""
    at, length, found = draw(st.integers(0, 4 * 10**12)), draw(st.integers(1, 10**8)), []
    for gap in draw(st.lists(st.integers(0, 3), min_size=1, max_size=20)):
        at += gap * length
        low, mean, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
        found.append(Window("t", at, at + length, 1, mean, low, high, 0.0, 1))
        at += length
    return found


def points(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


@given(windows())
def test_everything_is_drawn_inside_the_frame(given_windows: list[Window]) -> None:
    drawn = chart.draw(given_windows)
    positions = [position for run in drawn.runs for position in points(run.line) + points(run.band)]
    assert all(chart.LEFT <= x <= chart.WIDTH - chart.RIGHT for x, _ in positions)
    assert all(chart.TOP <= y <= chart.HEIGHT - chart.BOTTOM for _, y in positions)
    assert sum(len(points(run.line)) for run in drawn.runs) == 2 * len(given_windows)
    assert all(chart.LEFT <= tick.at <= chart.WIDTH - chart.RIGHT for tick in drawn.times)
    assert all(chart.TOP <= tick.at <= chart.HEIGHT - chart.BOTTOM for tick in drawn.values)
    assert len(drawn.values) <= 12
    assert len(drawn.times) <= 12


@given(windows())
def test_a_line_breaks_where_a_window_is_missing(given_windows: list[Window]) -> None:
    gaps = sum(later.start_ms > one.end_ms for one, later in pairwise(given_windows))
    assert len(chart.draw(given_windows).runs) == gaps + 1


@given(windows())
def test_the_line_runs_inside_its_band(given_windows: list[Window]) -> None:
    for run in chart.draw(given_windows).runs:
        line, band = points(run.line), points(run.band)
        above, below = band[: len(line)], band[len(line) :][::-1]
        # Downwards y grows.
        assert all(high[1] <= mean[1] <= low[1] for high, mean, low in zip(above, line, below, strict=True))


def test_the_axes_have_round_numbers_and_times() -> None:
    drawn = chart.draw([window(1_767_225_600_000 + n * 10_000, low=20.0 + n / 10) for n in range(30)])
    assert [tick.label for tick in drawn.values] == ["20", "21", "22", "23"]
    assert [tick.label for tick in drawn.times] == ["00:00", "00:01", "00:02", "00:03", "00:04", "00:05"]
    flat = chart.draw([Window("t", 0, 1_000, 1, 5.0, 5.0, 5.0, 0.0, 1)])
    assert "5" in [tick.label for tick in flat.values]


def test_the_highest_revision_counts_in_whatever_order_they_come() -> None:
    first, second, corrected = window(0), window(10_000), window(0, low=30.0, revision=2)
    broken = Window("t", 20_000, 30_000, 1, float("nan"), 1.0, float("inf"), 0.0, 1)
    for order in ([corrected, second, first, broken], [broken, first, corrected, second]):
        assert by_metric(order) == {"t": [corrected, second]}
    assert list(by_metric([window(0, metric="b"), window(0, metric="a")])) == ["a", "b"]


@pytest.mark.parametrize("example", isotherm.schemas.examples(TOPIC), ids=lambda one: str(one.name))
def test_a_device_knows_its_windows_by_their_keys(example: isotherm.schemas.Example) -> None:
    assert example.key.encode().startswith(key_prefix(example.value["device_id"]))
    assert not example.key.encode().startswith(key_prefix(example.value["device_id"][:-1]))
    assert window_of(example.value).start_ms == example.value["window_start"]

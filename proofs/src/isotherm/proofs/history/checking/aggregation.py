"""Windows as `docs/explanation/watermarks.md` defines them, computed from the readings of a topic."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from isotherm.proofs.history.checking.identities import Digest, Identity, Position, identity_of
from isotherm.proofs.history.format import WindowSettings

WindowKey = tuple[str, str, int, int]
"""Device, metric, start, end (epoch ms)."""
ReadingClass = Literal["on-time", "late", "rejected"]

TOLERANCE = 1e-9
"""Relative (below 1 absolute) difference allowed in sum, mean and stddev."""
_LATEST_TIME_MS = 253_402_300_799_999
_LARGEST_VALUE = 1e100
_READING_IDENTITY = ("device_id", "metric", "event_time", "sequence")


class PublishedWindow(NamedTuple):
    """One revision of a window in its topic; ordered by revision."""

    revision: int
    line: int
    digest: Digest
    readings: int
    total: float
    mean: float
    lowest: float
    highest: float
    stddev: float
    late_readings: int
    """How many late readings a correction merged into it; 0: it is an original row."""

    @classmethod
    def of(cls, value: Mapping[str, Any], digest: Digest, line: int, late_readings: int) -> Self:
        """Take the numbers of a TemperatureAggregate, and the header of a corrected one."""
        numbers = [value[name] for name in ("count", "sum", "mean", "min", "max", "stddev")]
        return cls._make([value["revision"], line, digest, *numbers, late_readings])


@dataclass(slots=True)
class ExpectedWindow:
    """The readings of a window, those on time apart from the late ones."""

    first_line: int
    last_line: int
    values: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))


class ExpectedWindows:
    """The windows that the readings of the input make, and the readings that belong into no window."""

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self.windows: dict[WindowKey, ExpectedWindow] = {}
        self.late: dict[Identity, list[int]] = defaultdict(list)
        """Lines of the late records, by identity."""
        self.rejected: dict[Position, int] = {}
        """Line of a reading that has to become a dead-letter record, by position."""

    def add(self, value: Mapping[str, Any], appended_ms: int, position: Position, line: int) -> None:
        """Add a reading of the input."""
        kind = reading_class(value, appended_ms, self.settings)
        if kind == "rejected":
            self.rejected[position] = line
            return
        if kind == "late":
            self.late[identity_of([value[name] for name in _READING_IDENTITY])].append(line)
        for start, end in windows_of(value["event_time"], self.settings):
            key = (value["device_id"], value["metric"], start, end)
            window = self.windows.get(key)
            if window is None:
                window = self.windows[key] = ExpectedWindow(line, line)
            window.last_line = line
            (window.values if kind == "on-time" else window.late).append(float(value["value"]))


def window_key(value: Mapping[str, Any]) -> WindowKey:
    """The identity of a TemperatureAggregate."""
    return (value["device_id"], value["metric"], value["window_start"], value["window_end"])


def reading_class(value: Mapping[str, Any], appended_ms: int, settings: WindowSettings) -> ReadingClass:
    """The class of a reading by its event, ingest and append time, and its value."""
    event_ms, ingest_ms, number = value["event_time"], value["ingest_time"], float(value["value"])
    in_range = 0 <= event_ms <= _LATEST_TIME_MS and 0 <= ingest_ms <= _LATEST_TIME_MS
    if not in_range or not math.isfinite(number) or abs(number) > _LARGEST_VALUE:
        return "rejected"
    if event_ms > ingest_ms + settings.max_skew_ms:
        return "rejected"
    held_back = appended_ms > ingest_ms + settings.max_publish_delay_ms
    return "late" if held_back or event_ms < ingest_ms - settings.allowed_lateness_ms else "on-time"


def windows_of(event_ms: int, settings: WindowSettings) -> Iterator[tuple[int, int]]:
    """Start and end of each window that holds a time: aligned to the epoch, the end exclusive."""
    slide_ms = settings.slide_ms or settings.window_ms
    newest = event_ms // slide_ms * slide_ms
    for start in range(newest, event_ms - settings.window_ms, -slide_ms):
        yield start, start + settings.window_ms


def correction_difference(published: PublishedWindow, window: ExpectedWindow) -> str | None:
    """What is wrong with a corrected row; None when its numbers can be right.

    Copies of a late reading with the same bytes count once, and a correction may have come between two late readings:
    then it is not known which of them are in the row.
    """
    merged = published.late_readings
    if merged > len(window.late):
        return f"{merged} late readings are merged into it, and it has {len(window.late)}"
    if merged == len(window.late):
        return difference(published, window.values + window.late)
    if published.readings != len(window.values) + merged:
        return f"count is {published.readings}, not {len(window.values)} and {merged} late"
    lowest, highest = (kind(window.values + window.late) for kind in (min, max))
    if not lowest <= published.lowest <= published.highest <= highest:
        return f"min is {published.lowest} and max {published.highest}, beyond {lowest} and {highest}"
    return None


def difference(published: PublishedWindow, values: array[float]) -> str | None:
    """The first number of a window that is not that of its values; None when all agree."""
    if published.readings != len(values):
        return f"count is {published.readings}, not {len(values)}"
    total = math.fsum(values)
    mean = total / len(values)
    stddev = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    for name, got, want in (("min", published.lowest, min(values)), ("max", published.highest, max(values))):
        if got != want:
            return f"{name} is {got}, not {want}"
    for name, got, want in (
        ("sum", published.total, total),
        ("mean", published.mean, mean),
        ("stddev", published.stddev, stddev),
    ):
        if not math.isclose(got, want, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"{name} is {got}, not {want}"
    return None

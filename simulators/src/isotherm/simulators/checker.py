"""An independent recount of the aggregation in plain Python, without Spark and without the aggregator's code.

Its input are the records of the input topic; its result is compared with the records of the output topics. Records are
mappings as an Avro reader returns them; times are `datetime` (UTC) or epoch milliseconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

ReadingClass = Literal["on-time", "late", "future", "not-finite", "too-large", "out-of-range"]
WindowKey = tuple[str, str, int, int]
"""device_id, metric, window start and end in epoch ms."""
GroupKey = tuple[str, str, str, int, int]
"""attribute, group, metric, window start and end in epoch ms."""

TOLERANCE = 1e-9
"""The allowed relative (below 1 absolute) difference in sum, mean and stddev; count, min and max are exact."""

_LATEST_TIME_MS = 253_402_300_799_999
_LARGEST_VALUE = 1e100
_EXACT = ("device_count", "count", "min", "max")
_CLOSE = ("sum", "mean", "stddev")


@dataclass(frozen=True)
class Rules:
    """The aggregator's settings that decide the class and the windows of a reading; times in ms."""

    window_ms: int
    allowed_lateness_ms: int
    max_skew_ms: int
    slide_ms: int | None = None
    publish_delay_ms: int | None = None
    """None: the broker's append time does not matter."""


def epoch_ms(time: datetime | int) -> int:
    """Return a time as epoch ms."""
    return time if isinstance(time, int) else round(time.timestamp() * 1000)


def classify(reading: Mapping[str, Any], rules: Rules) -> ReadingClass:
    """Return the class of a decoded reading: on time, late, or the reason why it is rejected.

    `appended_time`, when the mapping has it beside the record's fields, is the broker's append time.
    """
    event_ms, ingest_ms = epoch_ms(reading["event_time"]), epoch_ms(reading["ingest_time"])
    if not (0 <= event_ms <= _LATEST_TIME_MS and 0 <= ingest_ms <= _LATEST_TIME_MS):
        return "out-of-range"
    if not math.isfinite(reading["value"]):
        return "not-finite"
    if abs(reading["value"]) > _LARGEST_VALUE:
        return "too-large"
    if event_ms > ingest_ms + rules.max_skew_ms:
        return "future"
    delay_ms, appended = rules.publish_delay_ms, reading.get("appended_time")
    is_held = delay_ms is not None and appended is not None and epoch_ms(appended) > ingest_ms + delay_ms
    return "late" if is_held or event_ms < ingest_ms - rules.allowed_lateness_ms else "on-time"


def windows_of(event_ms: int, rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield start and end of every window that holds a time; windows are aligned to the epoch."""
    slide_ms = rules.slide_ms or rules.window_ms
    start = event_ms - event_ms % slide_ms
    while start > event_ms - rules.window_ms:
        yield start, start + rules.window_ms
        start -= slide_ms


def expected_windows(readings: Iterable[Mapping[str, Any]], rules: Rules) -> dict[WindowKey, dict[str, float]]:
    """Return count, sum, mean, min, max and stddev of every window of the readings that are on time."""
    values: dict[WindowKey, list[float]] = defaultdict(list)
    for reading in readings:
        if classify(reading, rules) == "on-time":
            for start, end in windows_of(epoch_ms(reading["event_time"]), rules):
                values[reading["device_id"], reading["metric"], start, end].append(reading["value"])
    return {key: _statistics(window) for key, window in values.items()}


def _statistics(values: Sequence[float]) -> dict[str, float]:
    total = math.fsum(values)
    mean = total / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return {
        "count": len(values),
        "sum": total,
        "mean": mean,
        "min": min(values),
        "max": max(values),
        "stddev": math.sqrt(variance),
    }


def expected_groups(
    windows: Mapping[WindowKey, Mapping[str, float]],
    devices: Mapping[str, Mapping[str, Any]],
    attributes: Sequence[str],
    unknown_group: str = "unknown",
) -> dict[GroupKey, dict[str, float]]:
    """Combine the windows of devices that share an attribute; an empty `unknown_group` omits devices without it."""
    members: dict[GroupKey, list[Mapping[str, float]]] = defaultdict(list)
    for (device_id, metric, start, end), window in windows.items():
        for attribute in attributes:
            group = devices.get(device_id, {}).get(attribute)
            if group is None and not unknown_group:
                continue
            members[attribute, unknown_group if group is None else group, metric, start, end].append(window)
    return {
        key: {
            "device_count": len(inside),
            "count": sum(window["count"] for window in inside),
            "mean": math.fsum(window["sum"] for window in inside) / sum(window["count"] for window in inside),
            "min": min(window["min"] for window in inside),
            "max": max(window["max"] for window in inside),
        }
        for key, inside in members.items()
    }


def window_key(aggregate: Mapping[str, Any]) -> WindowKey:
    """Return the identity of a TemperatureAggregate."""
    return (aggregate["device_id"], aggregate["metric"], *_window(aggregate))


def group_key(group: Mapping[str, Any]) -> GroupKey:
    """Return the identity of a TemperatureGroup."""
    return (group["attribute"], group["group"], group["metric"], *_window(group))


def _window(record: Mapping[str, Any]) -> tuple[int, int]:
    return epoch_ms(record["window_start"]), epoch_ms(record["window_end"])


def latest(
    keyed: Iterable[tuple[WindowKey | GroupKey, Mapping[str, Any]]],
) -> tuple[dict[WindowKey | GroupKey, Mapping[str, Any]], list[str]]:
    """Return the newest revision of each identity, and a problem for each revision that has two different records."""
    newest: dict[WindowKey | GroupKey, Mapping[str, Any]] = {}
    problems = []
    for key, record in keyed:
        held = newest.get(key)
        if held is None or record["revision"] > held["revision"]:
            newest[key] = record
        elif record["revision"] == held["revision"] and dict(record) != dict(held):
            problems.append(f"{key}: revision {record['revision']} has {dict(record)} and {dict(held)}")
    return newest, problems


def mismatches(
    expected: Mapping[Any, Mapping[str, float]], found: Mapping[Any, Mapping[str, Any]], limit: int = 20
) -> list[str]:
    """Describe the differences in at most `limit` lines: missing, not expected, or with other numbers."""
    problems = [f"missing: {key} {dict(expected[key])}" for key in sorted(expected.keys() - found.keys())[:limit]]
    problems += [f"not expected: {key} {dict(found[key])}" for key in sorted(found.keys() - expected.keys())[:limit]]
    for key in expected.keys() & found.keys():
        wrong = {
            name: (want, found[key][name])
            for name, want in expected[key].items()
            if not _agree(name, want, found[key][name])
        }
        if wrong:
            problems.append(f"other numbers (expected, found): {key} {wrong}")
    return problems[:limit]


def _agree(name: str, want: float, got: float) -> bool:
    if name in _EXACT:
        return want == got
    assert name in _CLOSE, f"{name} is no number of an aggregate"
    return math.isclose(want, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE)

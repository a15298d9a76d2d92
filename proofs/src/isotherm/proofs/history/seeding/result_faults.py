"""Faults of what was computed: windows, groups, late readings, alerts."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.proofs.history.seeding.changeable_history import History, fault
from isotherm.proofs.history.seeding.simulated_suite import (
    ALERTS,
    DEAD,
    GROUPED,
    LATE,
    WINDOWS,
    Line,
)


def _change_window(history: History, name: str, by: float) -> None:
    value = history.chance.choice(history.records(WINDOWS))["value"]
    value[name] += by


@fault("wrong-window")
def miscount_window(history: History) -> None:
    """Count a reading too many."""
    _change_window(history, "count", 1)


@fault("wrong-window")
def change_sum(history: History) -> None:
    """Change a window's sum by a millionth."""
    _change_window(history, "sum", 1e-3)


@fault("wrong-window")
def change_minimum(history: History) -> None:
    """Change a window's minimum by the smallest amount."""
    _change_window(history, "min", -1e-12)


@fault("wrong-window")
def change_maximum(history: History) -> None:
    """Change a window's maximum."""
    _change_window(history, "max", 1e-12)


@fault("wrong-window")
def change_deviation(history: History) -> None:
    """Change a window's standard deviation."""
    _change_window(history, "stddev", 1e-6)


@fault("wrong-window")
def lose_window(history: History) -> None:
    """Publish a window never."""
    history.drop(history.chance.choice(history.records(WINDOWS)))


@fault("wrong-window")
def double_window(history: History) -> None:
    """Publish a window again, with the same revision and other numbers."""
    record = history.append(history.chance.choice(history.records(WINDOWS)))
    record["value"]["count"] += 1


@fault("wrong-window")
def shift_window(history: History) -> None:
    """Publish a window that is not aligned."""
    value = history.chance.choice(history.records(WINDOWS))["value"]
    value["window_start"] += 5_000
    value["window_end"] += 5_000


@fault("wrong-window")
def lose_group(history: History) -> None:
    """Publish a group never."""
    history.drop(history.one("record", topic=GROUPED))


@fault("wrong-window")
def omit_device_of_group(history: History) -> None:
    """Leave a device's window out of its group."""
    history.one("record", topic=GROUPED)["value"]["device_count"] -= 1


@fault("wrong-window")
def change_mean_of_group(history: History) -> None:
    """Change a group's mean."""
    history.one("record", topic=GROUPED)["value"]["mean"] += 1e-6


@fault("wrong-window")
def count_late_reading(history: History) -> None:
    """Count a late reading in its window without a recomputation."""
    late = history.one("record", topic=LATE)["value"]
    start = late["event_time"] // 10_000 * 10_000
    originals = [one["value"] for one in history.all("record", topic=WINDOWS) if not _merges(one)]
    for window in originals:
        if window["device_id"] == late["device_id"] and window["window_start"] == start:
            window["count"] += 1
            window["sum"] += late["value"]


@fault("wrong-window")
def hide_correction(history: History) -> None:
    """Merge late readings into a window without telling."""
    del _corrected(history)["late_readings"]


@fault("wrong-window")
def merge_twice(history: History) -> None:
    """Merge the late readings of a window twice."""
    record = _corrected(history)
    window, merged = record["value"], record["late_readings"]
    window["count"] += merged
    record["late_readings"] += merged


@fault("wrong-window")
def lose_original(history: History) -> None:
    """Publish a window only with its late readings, though it has others."""
    corrected = _corrected(history, lambda one: one["value"]["count"] > one["late_readings"])
    history.drop(*(one for one in history.all("record", id=corrected["id"], topic=WINDOWS) if not _merges(one)))


def _merges(record: Line) -> bool:
    return "late_readings" in record


def _corrected(history: History, is_wanted: Callable[[Line], bool] = lambda _record: True) -> Line:
    return next(one for one in history.all("record", topic=WINDOWS) if _merges(one) and is_wanted(one))


@fault("wrong-window")
def lose_late_reading(history: History) -> None:
    """Drop a late reading."""
    history.drop(*history.all("record", topic=LATE, id=history.one("record", topic=LATE)["id"]))


@fault("wrong-window")
def lose_future_reading(history: History) -> None:
    """Drop the dead letters of a reading of the future."""
    origin = history.one("dead-letter", topic=DEAD)["origin"]
    history.drop(*history.all("dead-letter", topic=DEAD, origin=origin))


def _alert(history: History, state: str) -> list[Line]:
    alert_id = history.one("record", topic=ALERTS)["value"]["alert_id"]
    return [one for one in history.all("record", topic=ALERTS) if one["id"] == [alert_id, state]]


@fault("wrong-alert")
def lose_alert(history: History) -> None:
    """Open and close an alert never."""
    history.drop(*_alert(history, "opened"), *_alert(history, "closed"))


@fault("wrong-alert")
def leave_alert_open(history: History) -> None:
    """Close an alert never."""
    history.drop(*_alert(history, "closed"))


@fault("wrong-alert")
def close_unopened_alert(history: History) -> None:
    """Close an alert that never opened."""
    history.drop(*_alert(history, "opened"))


@fault("wrong-alert")
def double_alert(history: History) -> None:
    """Open a second alert for one incident."""
    opened = _alert(history, "opened")[0]
    value = opened["value"] | {"alert_id": "again", "opened_at": opened["value"]["opened_at"] + 1}
    history.append(opened, id=["again", "opened"], value=value)


@fault("wrong-alert")
def repeat_alert_with_other_contents(history: History) -> None:
    """Repeat an alert's state with another severity."""
    history.append(_alert(history, "opened")[0])["value"]["severity"] = "critical"


@fault("wrong-alert")
def resolve_alert_at_another_time(history: History) -> None:
    """Close an alert a second late."""
    for record in _alert(history, "closed"):
        record["value"]["closed_at"] += 1_000

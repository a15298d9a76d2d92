from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from isotherm.simulators import checker

RULES = checker.Rules(window_ms=10_000, allowed_lateness_ms=5_000, max_skew_ms=2_000)


def reading(**changes: Any) -> dict[str, Any]:
    return {"device_id": "d", "metric": "m", "value": 1.0, "event_time": 10_000, "ingest_time": 11_000, **changes}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "on-time"),
        ({"ingest_time": 15_000}, "on-time"),
        ({"ingest_time": 15_001}, "late"),
        ({"ingest_time": 8_000}, "on-time"),
        ({"ingest_time": 7_999}, "future"),
        ({"value": float("inf")}, "not-finite"),
        ({"event_time": -1}, "out-of-range"),
        ({"event_time": datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)}, "on-time"),
    ],
)
def test_the_class_of_a_reading_depends_on_the_record_alone(changes: dict[str, Any], verdict: str) -> None:
    assert checker.classify(reading(**changes), RULES) == verdict


def test_windows_overlap_when_they_slide() -> None:
    sliding = checker.Rules(window_ms=10_000, allowed_lateness_ms=0, max_skew_ms=0, slide_ms=4_000)
    assert sorted(checker.windows_of(12_000, sliding)) == [(4_000, 14_000), (8_000, 18_000), (12_000, 22_000)]
    assert list(checker.windows_of(19_999, RULES)) == [(10_000, 20_000)]


def test_a_window_has_the_statistics_of_its_readings() -> None:
    sent = [reading(value=2.0), reading(value=4.0, event_time=9_999), reading(value=6.0), reading(ingest_time=99_000)]
    windows = checker.expected_windows(sent, RULES)
    assert windows["d", "m", 10_000, 20_000] == {
        "count": 2, "sum": 8.0, "mean": 4.0, "min": 2.0, "max": 6.0, "stddev": 2.0,
    }  # fmt: skip
    assert set(windows) == {("d", "m", 0, 10_000), ("d", "m", 10_000, 20_000)}


def test_groups_add_up_the_windows_of_their_devices() -> None:
    sent = [reading(device_id=name, value=value) for name, value in (("a", 1.0), ("a", 3.0), ("b", 8.0), ("c", 5.0))]
    windows = checker.expected_windows(sent, RULES)
    devices: dict[str, dict[str, Any]] = {"a": {"home": "x"}, "b": {"home": "x"}, "c": {"home": None}}
    groups = checker.expected_groups(windows, devices, ["home"])
    numbers = {"device_count": 2, "count": 3, "mean": 4.0, "min": 1.0, "max": 8.0}
    assert groups["home", "x", "m", 10_000, 20_000] == numbers
    assert groups["home", "unknown", "m", 10_000, 20_000]["count"] == 1
    assert len(checker.expected_groups(windows, devices, ["home"], unknown_group="")) == 1


def test_every_kind_of_difference_is_found() -> None:
    key, other = ("d", "m", 0, 10), ("e", "m", 0, 10)
    numbers = {"count": 1, "sum": 2.0, "mean": 2.0, "min": 2.0, "max": 2.0, "stddev": 0.0}
    assert checker.mismatches({key: numbers}, {key: {**numbers, "revision": 5, "sum": 2.0 + 1e-12}}) == []
    assert checker.mismatches({key: numbers}, {})[0].startswith("missing")
    assert checker.mismatches({}, {other: numbers})[0].startswith("not expected")
    assert "'count': (1, 2)" in checker.mismatches({key: numbers}, {key: {**numbers, "count": 2}})[0]
    assert "'sum'" in checker.mismatches({key: numbers}, {key: {**numbers, "sum": 2.00001}})[0]


def test_the_highest_revision_counts_and_one_revision_has_one_content() -> None:
    key = ("d", "m", 0, 10)
    first, corrected = {"revision": 1, "count": 1}, {"revision": 2, "count": 2}
    newest, problems = checker.latest([(key, corrected), (key, first), (key, dict(corrected))])
    assert (newest, problems) == ({key: corrected}, [])
    assert len(checker.latest([(key, first), (key, {"revision": 1, "count": 9})])[1]) == 1

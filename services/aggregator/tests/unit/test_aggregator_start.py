from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.objects import LocalObjects
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import (
    PartitionStart,
    StartPosition,
    complete_after_ms,
    parse,
)
from isotherm.aggregator.watermark.timeliness import Timeliness

BOUNDS = Timeliness(allowed_lateness_ms=5_000, max_skew_ms=2_000, max_publish_delay_ms=3_000)
NOW_MS = 1_000_000


def settings(**changes: Any) -> AggregatorSettings:
    return AggregatorSettings(checkpoint_dir="c", jars_dir=Path("j"), **changes)


def bound(*found: PartitionStart, recreated: dict[str, int] | None = None) -> int | None:
    parts = {("t", number): each for number, each in enumerate(found)}
    return complete_after_ms(parts, recreated or {}, NOW_MS, BOUNDS)


def test_a_topic_that_has_everything_has_no_bound() -> None:
    assert bound(PartitionStart(0, 7), PartitionStart(0, None)) is None


def test_the_partition_that_lacks_most_decides_for_all() -> None:
    assert bound(PartitionStart(5, 100_000), PartitionStart(9, 200_000), PartitionStart(0, 300_000)) == 205_000


def test_of_an_emptied_partition_everything_up_to_now_is_gone() -> None:
    assert bound(PartitionStart(5, None), PartitionStart(0, 100_000)) == NOW_MS + 5_000


def test_what_a_start_time_skips_was_appended_before_it() -> None:
    assert bound(PartitionStart(5, 900_000, skipped_before_ms=400_000)) == 405_000
    assert bound(PartitionStart(5, None, skipped_before_ms=400_000)) == 405_000


def test_a_topic_that_was_made_anew_lacks_what_the_one_before_it_held() -> None:
    assert bound(PartitionStart(0, 100_000), recreated={"t": 100_000}) == 105_000


@given(
    kept=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3_000), st.integers(-9_000, 2_000)), min_size=1),
    gone=st.lists(st.tuples(st.integers(0, 3_000), st.integers(-9_000, 2_000)), min_size=1),
)
def test_no_reading_that_is_gone_lies_in_a_window_behind_the_bound(
    kept: list[tuple[int, int, int]], gone: list[tuple[int, int]]
) -> None:
    first_ms = min(appended for appended, _, _ in kept)
    found = bound(PartitionStart(len(gone), first_ms))
    assert found is not None
    for ahead_ms, measured_ms in gone:
        # Appended no later than what follows it, by an ingest service whose clock is ahead of the broker's.
        assert first_ms + ahead_ms + measured_ms <= found


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("earliest-complete", None),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ('{"t": {"0": 17, "3": 0}}', {("t", 0): 17, ("t", 3): 0}),
    ],
)
def test_what_start_from_means(text: str, meaning: object) -> None:
    assert parse(text) == meaning
    assert settings(start_from=text).start_from == text


@pytest.mark.parametrize(
    "text", ["earliest", "", "yesterday", '{"t": 3}', '{"t": {"x": 3}}', '{"t": {"0": -2}}', "[1]"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        settings(start_from=text)


def test_a_checkpoint_keeps_where_it_begins(tmp_path: Path) -> None:
    folder = CheckpointFolder(LocalObjects(tmp_path), "aggregator", 1)
    assert folder.load_start() is None
    start = StartPosition({("t", 0): 5, ("t", 1): 0}, 205_000)
    folder.save_start(start, "earliest-complete")
    assert folder.load_start() == (start, "earliest-complete")

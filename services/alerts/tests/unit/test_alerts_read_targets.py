"""Up to which time a partition is read, under a load that always leaves something to read."""

from __future__ import annotations

from faust.types import TP

from isotherm.alerts.stream.end_offsets import ReadTargets

PARTITION, OTHER = TP("in", 0), TP("in", 1)


def read_until(targets: ReadTargets, at_ms: int, end: int, position: int) -> int | None:
    """What the service learns when it asks at a time: the end offset, and how far it has read."""
    for time_ms, offset in targets.of(PARTITION, at_ms, end):
        if position >= offset:
            targets.reach(PARTITION)
            return time_ms
    return None


def test_a_partition_at_its_end_is_read_until_now() -> None:
    targets = ReadTargets()
    assert [read_until(targets, now_ms, 5, 5) for now_ms in (1_000, 2_000)] == [1_000, 2_000]


def test_under_a_steady_load_the_end_of_a_moment_ago_is_reached() -> None:
    targets = ReadTargets()
    # Each second a hundred records come, and ten are always still to be read.
    found = [read_until(targets, second * 1_000, second * 100, second * 100 - 10) for second in range(1, 7)]
    assert found == [None, 1_000, None, 3_000, None, 5_000]


def test_a_partition_that_is_not_read_on_stays_where_it_was() -> None:
    targets = ReadTargets()
    found = [read_until(targets, second * 1_000, second * 100, 50) for second in range(1, 5)]
    assert found == [None] * 4


def test_partitions_have_targets_of_their_own_and_a_rebalance_clears_them() -> None:
    targets = ReadTargets()
    targets.of(PARTITION, 1_000, 100)
    assert targets.of(OTHER, 2_000, 7) == ((2_000, 7), (2_000, 7))
    assert targets.of(PARTITION, 2_000, 200)[1] == (1_000, 100)
    targets.clear()
    assert targets.of(PARTITION, 3_000, 300)[1] == (3_000, 300)

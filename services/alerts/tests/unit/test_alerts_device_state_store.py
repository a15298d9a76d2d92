"""A changelog that another process has written last: compaction keeps the last state, not the newest."""

from __future__ import annotations

import pytest

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates

OLDER, NEWER = (changelog.encode(DeviceRuleState(revision=revision), 0) for revision in (1, 2))
OTHER = changelog.encode(DeviceRuleState(revision=2, last_seen_ms=7), 0)


def recovered(*values: bytes | None, store: DeviceStateStore | None = None) -> DeviceStateStore:
    store = store or DeviceStateStore()
    for value in values:
        store.restore(0, "d", value)
    store.own([0])
    return store


@pytest.mark.parametrize("late", [OLDER, OTHER], ids=["an older revision", "another of the same revision"])
def test_a_memory_that_is_not_the_last_of_the_changelog_is_written_anew(late: bytes) -> None:
    store = recovered(OLDER, NEWER, late)
    assert list(store.pop_rewrites()) == [(0, "d", NEWER)]
    assert list(store.pop_rewrites()) == []
    # What compaction leaves when it is written.
    assert recovered(NEWER).partitions[0].state("d").revision == 2


@pytest.mark.parametrize(
    "values",
    [(OLDER, NEWER), (NEWER, NEWER), (NEWER, OLDER, NEWER), (NEWER, OLDER, None)],
    ids=["in order", "twice", "written anew already", "forgotten"],
)
def test_a_memory_that_is_the_last_of_the_changelog_is_left_alone(values: tuple[bytes | None, ...]) -> None:
    assert list(recovered(*values).pop_rewrites()) == []


def test_a_memory_in_use_is_told_from_what_another_process_wrote() -> None:
    store = recovered(NEWER)
    assert store.partitions[0].state("d").revision == 2
    assert list(recovered(OLDER, NEWER, store=store).pop_rewrites()) == []
    ((_, device_id, value),) = recovered(NEWER, OTHER, store=store).pop_rewrites()
    assert (device_id, changelog.decode(value)) == ("d", DeviceRuleState(revision=2))
    assert changelog.due_of(value) == 0


def test_another_process_has_the_partition_now() -> None:
    store = recovered(NEWER, OLDER)
    store.own([1])
    assert list(store.pop_rewrites()) == []


def test_a_device_that_is_due_soon_again_and_again_leaves_no_trace_of_its_later_times() -> None:
    """Its readings wait for order, and it is forgotten in a month: each turn would leave an entry for the month."""
    partition = DeviceStateStore().partitions.setdefault(0, PartitionStates())
    month_ms, turns = 30 * 86_400_000, 10_000
    for turn in range(turns):
        now_ms = turn * 10_000
        partition.schedule("d", now_ms + month_ms)
        partition.schedule("d", now_ms + 5_000)
        partition.schedule("e", month_ms)
        assert list(partition.pop_due(now_ms + 5_000)) == ["d"]
    assert len(partition._queue) < 1_000
    assert list(partition.pop_due(month_ms)) == ["e"]
    partition.schedule("d", 2 * month_ms)
    assert list(partition.pop_due(2 * month_ms)) == ["d"]

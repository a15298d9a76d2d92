"""A changelog in which another process has written last: compaction keeps what is last, not what is newest."""

from __future__ import annotations

import pytest

from isotherm.alerts.engine import device_state as changelog
from isotherm.alerts.engine.device_state import DeviceMemory
from isotherm.alerts.stream.device_state_store import Fleet

OLDER, NEWER = (changelog.encode(DeviceMemory(revision=revision), 0) for revision in (1, 2))
OTHER = changelog.encode(DeviceMemory(revision=2, last_seen_ms=7), 0)


def recovered(*values: bytes | None, fleet: Fleet | None = None) -> Fleet:
    fleet = fleet or Fleet()
    for value in values:
        fleet.restore(0, "d", value)
    fleet.own([0])
    return fleet


@pytest.mark.parametrize("late", [OLDER, OTHER], ids=["an older revision", "another of the same revision"])
def test_a_memory_that_is_not_the_last_of_the_changelog_is_written_anew(late: bytes) -> None:
    fleet = recovered(OLDER, NEWER, late)
    assert list(fleet.overtaken()) == [(0, "d", NEWER)]
    assert list(fleet.overtaken()) == []
    # What compaction leaves when it is written.
    assert recovered(NEWER).partitions[0].memory("d").revision == 2


@pytest.mark.parametrize(
    "values",
    [(OLDER, NEWER), (NEWER, NEWER), (NEWER, OLDER, NEWER), (NEWER, OLDER, None)],
    ids=["in order", "twice", "written anew already", "forgotten"],
)
def test_a_memory_that_is_the_last_of_the_changelog_is_left_alone(values: tuple[bytes | None, ...]) -> None:
    assert list(recovered(*values).overtaken()) == []


def test_a_memory_in_use_is_told_from_what_another_process_wrote() -> None:
    fleet = recovered(NEWER)
    assert fleet.partitions[0].memory("d").revision == 2
    assert list(recovered(OLDER, NEWER, fleet=fleet).overtaken()) == []
    ((_, device_id, value),) = recovered(NEWER, OTHER, fleet=fleet).overtaken()
    assert (device_id, changelog.decode(value)) == ("d", DeviceMemory(revision=2))
    assert changelog.due_of(value) == 0


def test_another_process_has_the_partition_now() -> None:
    fleet = recovered(NEWER, OLDER)
    fleet.own([1])
    assert list(fleet.overtaken()) == []

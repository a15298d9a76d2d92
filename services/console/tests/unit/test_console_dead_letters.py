"""Which dead-letter records are handled, and what their headers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.console.dead_letters.progress import Progress, TooScatteredError, progress_of
from isotherm.console.dead_letters.record import PendingRecord, QueuedRecord, batches, take_first, without_copies

OFFSETS = st.sets(st.integers(0, 60), max_size=40)
SIZES = st.lists(st.integers(0, 500), max_size=40)


@given(st.lists(OFFSETS, max_size=5), st.integers(0, 20))
def test_handled_records_stay_handled_through_commits(steps: list[set[int]], position: int) -> None:
    progress = Progress(position)
    for step in steps:
        progress = progress.with_handled((one, one) for one in step)
        progress = progress_of(progress.position, progress.metadata())
    done = {one for step in steps for one in step} | set(range(position))
    assert {one for one in range(80) if progress.is_handled(one)} == done


@given(OFFSETS)
def test_ranges_are_as_few_as_can_be(offsets: set[int]) -> None:
    progress = Progress().with_handled((one, one) for one in offsets)
    ends = [end for first, last in progress.ranges for end in (first, last)]
    assert ends == sorted(ends)
    assert all(
        after > before + 1 for (_, before), (after, _) in zip(progress.ranges, progress.ranges[1:], strict=False)
    )
    assert all(first > progress.position for first, _ in progress.ranges)


def test_records_that_the_topic_has_dropped_are_handled() -> None:
    assert Progress(3, ((7, 8),)).starting_at(7) == Progress(9)
    assert Progress(3).starting_at(2) == Progress(3)


def test_metadata_of_another_program_is_ignored() -> None:
    assert progress_of(5, "written=3") == Progress(5)
    assert progress_of(5, "") == Progress(5)


def test_too_many_separate_ranges_are_refused() -> None:
    scattered = Progress().with_handled((one, one) for one in range(100_001, 110_001, 2))
    with pytest.raises(TooScatteredError, match="oldest open records first"):
        scattered.metadata()


def queued(**error: str) -> QueuedRecord:
    headers: list[tuple[str, str | bytes | None]] = [("mqtt.topic", b"a")]
    headers += [("__connect.errors." + name.replace("_", "."), text.encode()) for name, text in error.items()]
    return QueuedRecord("c.dead-letters", 0, 4, 1_000, b"k", b"v", headers)


def test_copies_of_a_failed_record_count_once() -> None:
    """The aggregator writes dead-letter records at least once."""
    first, copy = (queued(topic="t", partition="3", offset="7", connector_name="aggregator") for _ in range(2))
    other = queued(topic="t", partition="3", offset="7", connector_name="alerts")
    next_one = queued(topic="t", partition="3", offset="8", connector_name="aggregator")
    unnamed = queued(topic="t", partition="3")
    given = [first, other, copy, next_one, unnamed, unnamed]
    assert without_copies(given, []) == [first, other, next_one, unnamed, unnamed]
    replayed = {first.failed_record: None, next_one.failed_record: None}
    assert without_copies(given, [one for one in replayed if one is not None]) == [other, unnamed, unnamed]


def test_a_replayed_record_equals_the_original() -> None:
    record = queued(topic="t", partition="3", exception_message="no").original()
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (
        b"k",
        b"v",
        [("mqtt.topic", b"a")],
        1_000,
    )


def test_a_record_that_was_never_in_a_topic_has_no_origin() -> None:
    assert queued(topic="t", partition="3").origin == ("t", 3)
    assert queued(exception_message="no").origin is None
    for partition in ("x", "-1", "9" * 5_000, "\N{ARABIC-INDIC DIGIT THREE}"):
        assert queued(topic="t", partition=partition).origin is None


def of_sizes(sizes: list[int]) -> list[QueuedRecord]:
    return [
        QueuedRecord("c.dead-letters", 0, n, 1_000, b"k", bytes(size), [("h", None)]) for n, size in enumerate(sizes)
    ]


@given(SIZES, st.integers(1, 20), st.integers(1, 2_000))
def test_pages_of_records_are_bounded_and_omit_none(sizes: list[int], limit: int, max_bytes: int) -> None:
    records = of_sizes(sizes)
    seen: list[QueuedRecord] = []
    is_cut = True
    while is_cut:
        found, is_cut = take_first(records[len(seen) :], limit, max_bytes)
        assert len(found) <= limit
        assert sum(one.size_bytes for one in found[:-1]) < max_bytes
        assert found or not is_cut, "a record is shown whatever its size"
        seen += found
    assert seen == records


@given(SIZES, st.integers(1, 20), st.integers(1, 2_000))
def test_batches_of_records_are_bounded_and_omit_none(sizes: list[int], most: int, max_bytes: int) -> None:
    entries = [PendingRecord(record, record.offset) for record in of_sizes(sizes)]
    made = list(batches(entries, most, max_bytes))
    assert [entry for batch in made for entry in batch] == entries
    for batch in made:
        assert 1 <= len(batch) <= most
        assert sum(entry.record.size_bytes for entry in batch[:-1]) < max_bytes


def test_the_size_of_a_record_counts_key_value_and_headers() -> None:
    assert QueuedRecord("t", 0, 0, 0, b"key", b"value", [("ab", b"12"), ("c", None)]).size_bytes == 13
    assert QueuedRecord("t", 0, 0, 0, None, None, []).size_bytes == 0

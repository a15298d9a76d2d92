"""Which dead letters are done, and what a letter says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.console.dead_letters.record import (
    DeadLetterRecord,
    PendingRecord,
    Progress,
    TooScatteredError,
    batches,
    progress_of,
    reasons,
    take_first,
    without_copies,
)

OFFSETS = st.sets(st.integers(0, 60), max_size=40)
SIZES = st.lists(st.integers(0, 500), max_size=40)


@given(st.lists(OFFSETS, max_size=5), st.integers(0, 20))
def test_what_is_done_is_what_was_said_to_be_done_and_survives_a_commit(steps: list[set[int]], position: int) -> None:
    progress = Progress(position)
    for step in steps:
        progress = progress.with_done((one, one) for one in step)
        progress = progress_of(progress.position, progress.metadata())
    done = {one for step in steps for one in step} | set(range(position))
    assert {one for one in range(80) if progress.is_done(one)} == done


@given(OFFSETS)
def test_ranges_are_as_few_as_can_be(offsets: set[int]) -> None:
    progress = Progress().with_done((one, one) for one in offsets)
    ends = [end for first, last in progress.ranges for end in (first, last)]
    assert ends == sorted(ends)
    assert all(
        after > before + 1 for (_, before), (after, _) in zip(progress.ranges, progress.ranges[1:], strict=False)
    )
    assert all(first > progress.position for first, _ in progress.ranges)


def test_what_the_topic_has_dropped_is_done() -> None:
    assert Progress(3, ((7, 8),)).beyond(7) == Progress(9)
    assert Progress(3).beyond(2) == Progress(3)


def test_metadata_of_somebody_else_says_nothing() -> None:
    assert progress_of(5, "written=3") == Progress(5)
    assert progress_of(5, "") == Progress(5)


def test_too_many_separate_stretches_are_refused() -> None:
    scattered = Progress().with_done((one, one) for one in range(100_001, 110_001, 2))
    with pytest.raises(TooScatteredError, match="oldest open ones first"):
        scattered.metadata()


def letter(**why: str) -> DeadLetterRecord:
    headers: list[tuple[str, str | bytes | None]] = [("mqtt.topic", b"a")]
    headers += [("__connect.errors." + name.replace("_", "."), text.encode()) for name, text in why.items()]
    return DeadLetterRecord("c.dead-letters", 0, 4, 1_000, b"k", b"v", headers)


def test_copies_of_a_letter_are_one_record() -> None:
    """The aggregator writes letters at least once."""
    first, copy = (letter(topic="t", partition="3", offset="7", connector_name="aggregator") for _ in range(2))
    other = letter(topic="t", partition="3", offset="7", connector_name="alerts")
    next_one = letter(topic="t", partition="3", offset="8", connector_name="aggregator")
    unnamed = letter(topic="t", partition="3")
    given = [first, other, copy, next_one, unnamed, unnamed]
    assert without_copies(given, []) == [first, other, next_one, unnamed, unnamed]
    replayed = {first.refused_record: None, next_one.refused_record: None}
    assert without_copies(given, [one for one in replayed if one is not None]) == [other, unnamed, unnamed]


def test_a_replayed_record_is_what_it_was() -> None:
    record = letter(topic="t", partition="3", exception_message="no").as_record()
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (
        b"k",
        b"v",
        [("mqtt.topic", b"a")],
        1_000,
    )


def test_what_was_never_in_a_topic_has_no_origin() -> None:
    assert letter(topic="t", partition="3").origin == ("t", 3)
    assert letter(exception_message="no").origin is None
    for partition in ("x", "-1", "9" * 5_000, "\N{ARABIC-INDIC DIGIT THREE}"):
        assert letter(topic="t", partition=partition).origin is None


def test_the_most_frequent_reason_comes_first() -> None:
    letters = [letter(exception_class_name=f"a.b.{name}") for name in ("One", "Two", "Two")]
    assert list(reasons(letters).items()) == [("Two", 2), ("One", 1)]


def of_sizes(sizes: list[int]) -> list[DeadLetterRecord]:
    return [DeadLetterRecord("c.dead-letters", 0, n, 1_000, b"k", bytes(size), [("h", None)]) for n, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 20), st.integers(1, 2_000))
def test_pages_of_letters_are_bounded_and_leave_none_out(sizes: list[int], limit: int, most_bytes: int) -> None:
    letters = of_sizes(sizes)
    seen: list[DeadLetterRecord] = []
    is_cut = True
    while is_cut:
        found, is_cut = take_first(letters[len(seen) :], limit, most_bytes)
        assert len(found) <= limit
        assert sum(one.size_bytes for one in found[:-1]) < most_bytes
        assert found or not is_cut, "whatever its size, a letter is shown"
        seen += found
    assert seen == letters


@given(SIZES, st.integers(1, 20), st.integers(1, 2_000))
def test_batches_of_letters_are_bounded_and_leave_none_out(sizes: list[int], most: int, most_bytes: int) -> None:
    entries = [PendingRecord(letter, letter.offset) for letter in of_sizes(sizes)]
    made = list(batches(entries, most, most_bytes))
    assert [entry for batch in made for entry in batch] == entries
    for batch in made:
        assert 1 <= len(batch) <= most
        assert sum(entry.letter.size_bytes for entry in batch[:-1]) < most_bytes


def test_the_size_of_a_letter_is_all_that_it_holds() -> None:
    assert DeadLetterRecord("t", 0, 0, 0, b"key", b"value", [("ab", b"12"), ("c", None)]).size_bytes == 13
    assert DeadLetterRecord("t", 0, 0, 0, None, None, []).size_bytes == 0

"""Counts in the metadata of committed offsets."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.buffers.accounting import Counts

REASONS = st.dictionaries(st.text("abc_", min_size=1, max_size=8), st.integers(1, 10**12), max_size=4).map(Counter)
NUMBERS = st.integers(0, 10**12)
COUNTS = st.builds(Counts, NUMBERS, NUMBERS, REASONS, REASONS, REASONS, NUMBERS)


@given(COUNTS)
def test_metadata_round_trips(counts: Counts) -> None:
    assert Counts.from_metadata(counts.to_metadata()) == counts


@given(COUNTS, COUNTS)
def test_what_was_read_settled_and_lost_is_added_each_by_itself(one: Counts, other: Counts) -> None:
    before = one.read, one.settled, one.lost
    one.add(other)
    assert (one.read, one.settled, one.lost) == (
        before[0] + other.read,
        before[1] + other.settled,
        before[2] + other.lost,
    )


def test_metadata_from_before_read_was_counted_by_itself() -> None:
    counts = Counts.from_metadata('{"v":1,"written":3,"skipped":{"decode":2}}')
    assert (counts.read, counts.settled) == (5, 5)


@pytest.mark.parametrize(
    "text",
    [
        *[None, "", "not json", "[]", "3", '{"v":2,"written":1}', '{"v":1}', '{"v":1,"written":1,"skipped":{"a":"b"}}'],
        '{"v":1,"written":1e999}',
        "[" * 4_000,
    ],
)
def test_another_programs_metadata_counts_as_none(text: str | None) -> None:
    assert Counts.from_metadata(text) == Counts()

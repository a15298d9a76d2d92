"""Which offsets an Iceberg table holds, compared with plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.iceberg.offset_ranges import (
    MOST_RANGES,
    Held,
    OffsetRanges,
    Source,
    from_property,
    to_property,
)

_OFFSETS = st.integers(0, 30)
_ADDED = st.lists(st.tuples(_OFFSETS, _OFFSETS, st.sets(_OFFSETS, max_size=4)), max_size=6)


def _made(added: list[tuple[int, int, set[int]]]) -> tuple[OffsetRanges, set[int]]:
    ranges, wanted = OffsetRanges(), set()
    for begin, end, without in added:
        ranges = ranges.plus(begin, end, without=without)
        wanted |= set(range(begin, end)) - without
    return ranges, wanted


@given(_ADDED)
def test_the_ranges_are_the_set(added: list[tuple[int, int, set[int]]]) -> None:
    ranges, wanted = _made(added)
    assert {offset for offset in range(-1, 32) if offset in ranges} == wanted
    flat = [bound for one in ranges.ranges for bound in one]
    assert flat == sorted(set(flat)), "in order, apart, and none is empty"


@given(_ADDED)
def test_a_snapshot_property_says_the_same(added: list[tuple[int, int, set[int]]]) -> None:
    held = {Source("t.a", "x-_", 3): Held("c", _made(added)[0]), Source("t", "y", 0): Held("d", OffsetRanges())}
    assert from_property(to_property(held)) == held


@pytest.mark.parametrize("text", ["", "7", "[[1]]", '{"a": 1}', '[["t","i",0,"c",[[1]]]]', "[[]"])
def test_something_else_in_the_property_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="does not say"):
        from_property(text)


def test_a_snapshot_property_does_not_grow_with_every_failed_record() -> None:
    """The smallest gaps go, the oldest first; a part that was never read stays one."""
    held = OffsetRanges().plus(1_000_000, 1_000_010)
    for begin in range(0, 10 * 2 * MOST_RANGES, 10):
        held = held.plus(begin, begin + 10, without=[begin + 5])
    assert len(held.ranges) == MOST_RANGES
    assert 5 in held
    assert 10 * 2 * MOST_RANGES - 5 not in held
    assert 500_000 not in held

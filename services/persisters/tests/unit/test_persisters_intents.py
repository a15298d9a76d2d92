"""Intents: after a crash the contents of the structure show which appends were executed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.hazelcast.intents import (
    Append,
    Intent,
    StructureState,
    landed,
)

ONE = Append("t|0", 41, [1, 2, 3])
TWO = Append("t|1", 7, [4, 5])
INTENT = Intent(9, [ONE])
BOTH = Intent(9, [ONE, TWO])


def test_states_round_trip() -> None:
    state = StructureState({"t|1": 5, "t|2": 6}).intending(BOTH)
    assert StructureState.from_json(state.to_json()) == state
    assert StructureState.from_json(StructureState({"t|1": 5}).to_json()) == StructureState({"t|1": 5})
    assert StructureState.from_json(None) == StructureState()
    assert state.settled([ONE, TWO]) == StructureState({"t|0": 41, "t|1": 7, "t|2": 6})
    assert state.settled([ONE]) == StructureState({"t|0": 41, "t|1": 5, "t|2": 6})
    assert state.settled([]) == StructureState({"t|1": 5, "t|2": 6})


@pytest.mark.parametrize(
    ("first", "seen", "expected"),
    [
        (10, [1, 2, 3], True),
        (10, [], False),
        (10, [1, 2, 3, 8], True),
        (10, [8, 1, 2, 3], True),
        (10, [8, 9], False),
        (10, [1, 2], False),
        # The ring has gone round: only the end of what was appended is left.
        (12, [3, 8], True),
        (12, [8, 3], False),
        (13, [8], False),
        # The ring was begun anew.
        (0, [1, 2, 3], True),
        (0, [8], False),
    ],
)
def test_after_a_crash_the_structure_tells_whether_the_items_arrived(
    first: int, seen: list[int], expected: bool
) -> None:
    assert landed(INTENT, first, seen) == ([ONE] if expected else [])


@pytest.mark.parametrize(
    ("first", "seen", "expected"),
    [
        (10, [1, 2, 3, 4, 5], [ONE, TWO]),
        (10, [4, 5, 1, 2, 3], [ONE, TWO]),
        (10, [8, 4, 5, 9, 1, 2, 3], [ONE, TWO]),
        (10, [1, 2, 3], [ONE]),
        (10, [1, 2, 3, 8], [ONE]),
        (10, [4, 5], [TWO]),
        (10, [8], []),
        # The ring has gone round: what stands behind the first append in its place says that it came before.
        (12, [3, 4, 5], [ONE, TWO]),
        (13, [4, 5], [ONE, TWO]),
        (14, [5], [ONE, TWO]),
        (13, [8, 9], []),
        (15, [8], []),
    ],
)
def test_each_of_several_appends_is_looked_for(first: int, seen: list[int], expected: list[Append]) -> None:
    assert landed(BOTH, first, seen) == expected


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    arrived=st.randoms(use_true_random=False),
    others=st.booleans(),
    room=st.integers(1, 30),
)
def test_nothing_that_can_be_seen_whole_is_added_twice(
    sizes: list[int], arrived: random.Random, others: bool, room: int
) -> None:
    """For any arrived appends, in any order, with foreign items between them: each complete append is found."""
    numbers = iter(range(100))
    appends = [Append(f"t|{buffer}", 1, [next(numbers) for _ in range(size)]) for buffer, size in enumerate(sizes)]
    done = [one for one in appends if arrived.random() < 0.5]
    arrived.shuffle(done)
    ring: list[int] = []
    for one in done:
        ring += [1_000] * (others and arrived.randrange(2))
        ring += one.checksums
    first = 10 + max(0, len(ring) - room)
    seen = ring[-room:]
    found = landed(Intent(9, appends), first, seen)
    whole = [one for one in done if set(one.checksums) <= set(seen)]
    assert set(map(id, whole)) <= set(map(id, found))
    assert all(one in done for one in found if set(one.checksums) & set(seen))


def test_of_two_appends_with_equal_items_one_is_found_once() -> None:
    """Two partitions with the same readings; one append was in flight when the writer was killed."""
    same = [Append("t|0", 1, [5, 6]), Append("t|1", 1, [5, 6])]
    assert len(landed(Intent(9, same), 10, [5, 6])) == 1
    assert len(landed(Intent(9, same), 10, [5, 6, 5, 6])) == 2
    assert landed(Intent(9, same), 10, [6, 5]) == []
    parts = [Append("t|0", 1, [5]), Append("t|1", 1, [5, 6])]
    assert landed(Intent(9, parts), 10, [5, 6]) == parts[1:]
    assert landed(Intent(9, parts), 10, [5, 6, 5]) == parts
    assert landed(Intent(9, parts), 10, [5]) == parts[:1]


@given(
    contents=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=5),
    arrived=st.randoms(use_true_random=False),
)
def test_after_the_repair_the_structure_holds_every_item_as_often_as_it_was_written(
    contents: list[list[int]], arrived: random.Random
) -> None:
    """For any items, also equal ones of several partitions."""
    appends = [Append(f"t|{buffer}", 1, items) for buffer, items in enumerate(contents)]
    done = [one for one in appends if arrived.random() < 0.5]
    arrived.shuffle(done)
    ring = [item for one in done for item in one.checksums]
    found = landed(Intent(9, appends), 10, ring)
    repeated = [item for one in appends if one not in found for item in one.checksums]
    assert Counter(ring + repeated) == Counter(item for one in appends for item in one.checksums)


def test_thousands_of_items_of_somebody_else_are_passed_over() -> None:
    ours = [Append(f"t|{buffer}", 1, [buffer % 3, *range(1_000)]) for buffer in range(12)]
    ring = [*range(5_000, 9_000), *ours[3].checksums, *range(5_000, 9_000), *ours[7].checksums]
    assert len(landed(Intent(9, ours), 10, ring)) == 2
    assert landed(Intent(9, ours), 10, [0] * 10_000) == []

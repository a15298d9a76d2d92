"""Replay: the new position of each partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.offsets.replay import (
    Move,
    PartitionState,
    Position,
    ReplayError,
    To,
    parse_position,
    plan,
    plan_offsets,
)


def state(partition: int = 0, **more: int | None) -> PartitionState:
    known: dict[str, int | None] = {"committed": 7, "low": 3, "high": 10, "at_time": None} | more
    committed, low, high = known["committed"], known["low"] or 0, known["high"] or 0
    return PartitionState("t", partition, committed, '{"v":1}', low, high, known["at_time"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position(To.EARLIEST)),
        (" LATEST ", Position(To.LATEST)),
        ("42", Position(To.OFFSET, 42)),
        ("@1767225600000", Position(To.TIME, 1_767_225_600_000)),
        ("2026-01-01T00:00:00Z", Position(To.TIME, 1_767_225_600_000)),
        ("2026-01-01T01:00:00+01:00", Position(To.TIME, 1_767_225_600_000)),
        ("2026-01-01", Position(To.TIME, 1_767_225_600_000)),
    ],
)
def test_positions_as_people_write_them(text: str, expected: Position) -> None:
    assert parse_position(text) == expected


@pytest.mark.parametrize("text", ["", "begin", "-1", "2026-13-01", "@", "1e3"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(ReplayError, match="expected earliest, latest, an offset, a time"):
        parse_position(text)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position(To.EARLIEST), 3),
        (Position(To.LATEST), 10),
        (Position(To.OFFSET, 5), 5),
        (Position(To.OFFSET, 1), 3),
        (Position(To.OFFSET, 99), 10),
    ],
)
def test_where_a_partition_goes(position: Position, expected: int) -> None:
    assert plan([state()], position) == [Move("t", 0, 7, expected, 10, '{"v":1}')]


def test_a_time_is_the_first_record_of_it_or_what_comes_next() -> None:
    now = Position(To.TIME, 1)
    moves = plan([state(1, at_time=None), state(0, at_time=6)], now)
    assert [(one.partition, one.after) for one in moves] == [(0, 6), (1, 10)]


def test_one_offset_for_several_partitions_is_refused() -> None:
    with pytest.raises(ReplayError, match="an offset belongs to one partition, but 2 are selected"):
        plan([state(0), state(1)], Position(To.OFFSET, 5))


def test_offsets_of_single_partitions_are_planned_all_or_none() -> None:
    states = [state(0), state(1)]
    assert [(one.partition, one.after) for one in plan_offsets(states, {("t", 1): 99, ("t", 0): None})] == [
        (1, 10),
        (0, 3),
    ]
    with pytest.raises(ReplayError, match="there is no partition 7 of t, partition 0 of u"):
        plan_offsets(states, {("t", 0): 5, ("t", 7): 5, ("u", 0): 5})


offsets = st.integers(0, 1_000)


@given(offsets, offsets, st.none() | offsets, st.none() | offsets, st.sampled_from(To), offsets)
def test_a_plan_stays_within_the_partition_and_is_idempotent(
    low: int, more: int, committed: int | None, at_time: int | None, to: To, value: int
) -> None:
    before = PartitionState("t", 0, committed, "m", low, low + more, at_time)
    (move,) = plan([before], Position(to, value))
    assert low <= move.after <= low + more
    assert move.metadata == "m"
    after = PartitionState("t", 0, move.after, "m", low, low + more, at_time)
    (again,) = plan([after], Position(to, value))
    assert (again.after, again.is_change) == (move.after, False)

"""Until when all queries have read the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.supervision.read_until import ReadUntil

FIRST, SECOND = ("in", 0), ("in", 1)
Step = tuple[int, Mapping[Partition, int], Sequence[Mapping[Partition, int]], int | None]


def test_an_end_counts_when_all_queries_have_read_up_to_it_however_many_records_follow() -> None:
    until = ReadUntil()
    steps: list[Step] = [
        (1_000, {FIRST: 5, SECOND: 0}, [{FIRST: 5}, {}], None),
        # The second query has not read what was there at 1,000.
        (2_000, {FIRST: 9, SECOND: 3}, [{FIRST: 5}, {FIRST: 4}], None),
        (3_000, {FIRST: 12, SECOND: 3}, [{FIRST: 9}, {FIRST: 5}], 1_000),
        (4_000, {FIRST: 20, SECOND: 3}, [{FIRST: 12, SECOND: 3}, {FIRST: 12, SECOND: 2}], 1_000),
        (5_000, {FIRST: 20, SECOND: 3}, [{FIRST: 12, SECOND: 3}, {FIRST: 12, SECOND: 3}], 3_000),
        (6_000, {FIRST: 20, SECOND: 3}, [{FIRST: 20, SECOND: 3}] * 2, 5_000),
    ]
    for asked_ms, ends, read_to, expected in steps:
        until.note(asked_ms, ends, read_to)
        assert until.at_ms == expected

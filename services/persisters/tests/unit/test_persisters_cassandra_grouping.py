"""Which rows Cassandra gets in one request: each row once, in order, within what a server takes."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.cassandra.binding import Binder, Write
from isotherm.persisters.sinks.cassandra.grouping import MOST_BYTES_ACROSS, MOST_PARTITIONS, grouped

BINDERS = [cast(Binder, object()) for _ in range(2)]
"""A table of which every server holds all rows, and one whose rows are spread over the servers."""
EVERYWHERE = BINDERS[0]
BYTES_REFUSED = 50 * 1024
SIZES = st.one_of(st.integers(1, 2_000), st.integers(1, 40_000))
ROWS = st.lists(st.tuples(st.sampled_from(BINDERS), st.integers(0, 30), SIZES), max_size=120)


def writes_of(rows: list[tuple[Binder, int, int]]) -> list[Write]:
    nothing = cast(Any, None)  # nobody looks at the statement
    return [
        Write(index, nothing, (BINDERS.index(binder), partition), size_bytes, binder)
        for index, (binder, partition, size_bytes) in enumerate(rows)
    ]


@given(ROWS, st.integers(1, 40))
def test_every_row_is_in_one_group_that_a_server_takes(rows: list[tuple[Binder, int, int]], most_rows: int) -> None:
    groups = grouped(writes_of(rows), most_rows, {EVERYWHERE})
    assert sorted(write.row_index for group in groups for write in group) == list(range(len(rows)))
    for group in groups:
        indices = [write.row_index for write in group]
        assert indices == sorted(indices)
        assert len(group) <= most_rows
        assert len(group) == 1 or sum(write.size_bytes for write in group) < BYTES_REFUSED
        (binder,) = {write.binder for write in group}
        partitions = {write.partition for write in group}
        assert len(partitions) <= (MOST_PARTITIONS if binder is EVERYWHERE else 1)
        # Cassandra writes a warning for each larger one.
        assert len(partitions) == 1 or sum(write.size_bytes for write in group) <= MOST_BYTES_ACROSS


@given(ROWS)
def test_rows_of_a_partition_come_in_the_order_of_their_groups(rows: list[tuple[Binder, int, int]]) -> None:
    groups = grouped(writes_of(rows), 5, {EVERYWHERE})
    order = [(write.partition, write.row_index) for group in groups for write in group]
    for partition in {place for place, _ in order}:
        indices = [index for place, index in order if place == partition]
        assert indices == sorted(indices)


def test_single_rows_of_many_partitions_share_requests_only_where_every_server_has_them() -> None:
    for binder, requests in ((EVERYWHERE, 4), (BINDERS[1], 31)):
        rows = [(binder, partition, 100) for partition in range(31)]
        assert len(grouped(writes_of(rows), 30, {EVERYWHERE})) == requests

"""Which rows go into one request. Pure; see docs/adr/0101."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from isotherm.persisters.sinks.cassandra.binding import Binder, Write

MOST_PARTITIONS = 10
"""Cassandra warns of batches over more partitions (`unlogged_batch_across_partitions_warn_threshold`)."""
_MOST_BYTES = 32 * 1024
"""A request of usual size for the servers; Cassandra checks the size only of batches over several partitions."""
MOST_BYTES_ACROSS = 5 * 1024
"""Cassandra warns of larger batches over several partitions by default (`batch_size_warn_threshold`).

It logs a line for each, and so does the driver. Above 50 KiB it refuses them (`batch_size_fail_threshold`).
"""


@dataclass
class _Group:
    writes: list[Write] = field(default_factory=list)
    partitions: set[tuple[Any, ...]] = field(default_factory=set)
    size_bytes: int = 0

    def has_room_for(self, write: Write, most_rows: int) -> bool:
        partitions = len(self.partitions) + (write.partition not in self.partitions)
        most_bytes = _MOST_BYTES if partitions == 1 else MOST_BYTES_ACROSS
        has_bytes = self.size_bytes + write.size_bytes <= most_bytes
        return has_bytes and len(self.writes) < most_rows and partitions <= MOST_PARTITIONS

    def add(self, write: Write) -> None:
        self.writes.append(write)
        self.partitions.add(write.partition)
        self.size_bytes += write.size_bytes


def grouped(writes: Sequence[Write], most_rows: int, everywhere: Collection[Binder]) -> list[list[Write]]:
    """Group rows of one partition, or of a few partitions of a table of which every server holds all rows.

    Args:
        writes: the rows.
        most_rows: limit of the rows in one group.
        everywhere: what binds the rows of such tables. Whichever server gets a group of theirs, it holds all its rows;
            of other tables it would have to send most rows on.
    """
    open_groups: dict[Hashable, _Group] = {}
    groups: list[list[Write]] = []
    for write in writes:
        place: Hashable = write.binder if write.binder in everywhere else write.partition
        group = open_groups.get(place)
        if group is None or not group.has_room_for(write, most_rows):
            group = open_groups[place] = _Group()
            groups.append(group.writes)
        group.add(write)
    return groups

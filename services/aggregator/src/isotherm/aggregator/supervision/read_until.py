"""Until when all queries have read the input, by the ends that Kafka told earlier. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.aggregator.offsets import Partition

Offsets = Mapping[Partition, int]


class ReadUntil:
    """Keeps the ends of one moment until they are read: under a steady load the newest ones never are."""

    def __init__(self) -> None:
        self.at_ms: int | None = None
        """What was appended until then (epoch ms) was read, and what follows from it is written; None while unknown."""
        self._asked: tuple[int, Offsets] | None = None

    def note(self, asked_ms: int, ends: Offsets, read_to: Sequence[Offsets]) -> None:
        """Note the ends of the partitions at a time, and how far each query has read since the last call."""
        if self._asked is not None:
            before_ms, wanted = self._asked
            if not all(of.get(partition, 0) >= end for of in read_to for partition, end in wanted.items()):
                return
            self.at_ms = before_ms
        self._asked = asked_ms, ends

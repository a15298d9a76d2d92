"""Tells the query of rejects which records it need not read: those of which the windowed query rejected none (ADR 264).

Both queries read every record, and both find the same reason for each. The windowed query counts what it rejects, so
that the other one reads only where there is something to find. It waits for the windowed query while that one runs, and
reads by itself whatever the windowed query cannot tell it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.progress import Progress

Offsets = Mapping[Partition, int]

_MAX_REMEMBERED = 500


@dataclass(frozen=True)
class OffsetRange:
    """Offsets from `begins` to before `ends`, by partition. A partition that is not in `begins` begins somewhere."""

    begins: Offsets
    ends: Offsets

    def overlaps(self, other: OffsetRange) -> bool:
        """Return whether a record may be in both."""
        return any(
            max(self.begins.get(partition, 0), other.begins.get(partition, 0)) < min(end, other.ends.get(partition, 0))
            for partition, end in self.ends.items()
        )

    @property
    def grown(self) -> Offsets:
        """The ends of the partitions in which something may be."""
        return {partition: end for partition, end in self.ends.items() if self.begins.get(partition) != end}

    @property
    def records(self) -> int:
        """Most records that are in it: not every offset has one. Where a partition begins somewhere, none count."""
        return sum(end - self.begins.get(partition, end) for partition, end in self.ends.items())


@dataclass(frozen=True)
class Passed:
    """What the query of rejects did with a batch."""

    records: int
    """How many records it passed over; 0 when it read them."""
    waited_ms: int


class RejectedRanges:
    """Remembers where the windowed query has met rejected records.

    The thread of the query of rejects calls `may_hold_rejects`; every other method is for the driver's main thread.
    """

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._changed = threading.Condition()
        self._is_open = True
        self._begins: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._rejected: list[OffsetRange] = []
        self._passed: dict[int, Passed] = {}

    def begin(self) -> None:
        """Take note that the windowed query is started: from now on it is worth waiting for.

        It may have committed batches that it never told of, and will not tell of them again.
        """
        with self._changed:
            self._is_open = False
            self._begins.clear()
            self._ends.clear()

    def release(self) -> None:
        """Let nobody wait any more, until the windowed query is started again."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def add(self, progress: Progress) -> None:
        """Take note of a batch of the windowed query that has ended."""
        read_from, read_to = progress.read_from, progress.read_to
        if read_to is None or read_from == read_to:
            return
        with self._changed:
            self._extend(OffsetRange(read_from or {}, read_to), progress.has_only_readings_on_time)
            self._changed.notify_all()

    def _extend(self, batch: OffsetRange, is_clean: bool) -> None:
        """Add the range of a batch to what is known. It begins anew where a batch before it is missing."""
        for partition, end in batch.ends.items():
            # Where the windowed query began in a partition that it never read before, Spark does not tell.
            begin = batch.begins.get(partition, end)
            if partition not in self._begins or begin > self._ends[partition]:
                self._begins[partition] = begin
            self._ends[partition] = end
        if not is_clean:
            self._rejected.append(batch)

    def may_hold_rejects(self, batch_id: int, batch: OffsetRange) -> bool:
        """Return whether a batch of the query of rejects must read its records.

        Waits until the windowed query has read them, too, if it runs and will tell of all of them.
        """
        begun_s = self._elapsed_s()
        with self._changed:
            while not self._is_open and self._is_followed(batch) and not self._is_known(batch):
                self._changed.wait()
            must_read = (
                not batch.ends
                or not self._is_known(batch)
                or any(batch.overlaps(rejected) for rejected in self._rejected)
            )
            waited_ms = round((self._elapsed_s() - begun_s) * 1000)
            self._passed[batch_id] = Passed(0 if must_read else batch.records, waited_ms)
            while len(self._passed) > _MAX_REMEMBERED:
                del self._passed[next(iter(self._passed))]
            self._forget_before(batch)
        return must_read

    def _is_followed(self, batch: OffsetRange) -> bool:
        """Return whether nothing of a batch lies before what is known."""
        return all(
            partition in self._begins and self._begins[partition] <= batch.begins.get(partition, -1)
            for partition in batch.grown
        )

    def _is_known(self, batch: OffsetRange) -> bool:
        return self._is_followed(batch) and all(end <= self._ends[partition] for partition, end in batch.grown.items())

    def _forget_before(self, batch: OffsetRange) -> None:
        """Forget the rejected ranges that no later batch can need; this one may be run again."""
        self._rejected = [
            rejected
            for rejected in self._rejected
            if any(end > batch.begins.get(partition, 0) for partition, end in rejected.ends.items())
        ]

    def passed(self, batch_id: int) -> Passed:
        """Return what the query of rejects did with a batch."""
        with self._changed:
            return self._passed.get(batch_id, Passed(0, 0))

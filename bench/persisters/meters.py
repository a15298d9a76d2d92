"""What one run did, and on which cores processes run."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    """What one run did: rows, time, and the processor time that two processes spent in it."""

    rows: int
    seconds: float
    own_cpu_s: float
    """Of the process that writes."""
    server_cpu_s: float
    """Of the server that it writes to."""

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def own_per_million(self) -> float:
        """CPU seconds of the writing process for a million rows."""
        return 1e6 * self.own_cpu_s / self.rows

    @property
    def server_per_million(self) -> float:
        """CPU seconds of the server for a million rows."""
        return 1e6 * self.server_cpu_s / self.rows


@dataclass(frozen=True)
class Placement:
    """The cores that the measured server may use, and those of everything else."""

    name: str
    of_server: Collection[int]
    of_others: Collection[int]


def placements() -> list[Placement]:
    """Return the placements to measure: everything on all cores and, from two cores on, the server on one
    half of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    shared = Placement("server and writer share all cores", cores, cores)
    return [shared, Placement("server on cores of its own", cores[half:], cores[:half])] if half else [shared]


def place(pid: int, cores: Collection[int]) -> None:
    """Bind a process and its children, and everything that they start later, to these cores."""
    leader = psutil.Process(pid)
    for thread in [one for each in (leader, *leader.children(recursive=True)) for one in each.threads()]:
        try:
            os.sched_setaffinity(thread.id, cores)
        except ProcessLookupError:
            # The thread has ended.
            continue

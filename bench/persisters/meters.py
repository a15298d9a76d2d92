"""What one run did, and the placement of processes on cores."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    """What one run did: rows in a stretch of time, and the processor time that two processes spent in it."""

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
        """Processor seconds of the writing process for a million rows."""
        return 1e6 * self.own_cpu_s / self.rows

    @property
    def server_per_million(self) -> float:
        """Processor seconds of the server for a million rows."""
        return 1e6 * self.server_cpu_s / self.rows


@dataclass(frozen=True)
class Placement:
    """Which cores the measured server may use, and which ones everything else."""

    name: str
    of_server: Collection[int]
    of_others: Collection[int]


def placements() -> list[Placement]:
    """All on all cores and, with two cores or more, the server on one half of them and all else on the other."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    shared = Placement("server and writer share all cores", cores, cores)
    return [shared, Placement("server on cores of its own", cores[half:], cores[:half])] if half else [shared]


def place(pid: int, cores: Collection[int]) -> None:
    """Let a process and its children, and whatever they start from now on, run on these cores only."""
    leader = psutil.Process(pid)
    for thread in [one for each in (leader, *leader.children(recursive=True)) for one in each.threads()]:
        try:
            os.sched_setaffinity(thread.id, cores)
        except ProcessLookupError:
            # It has ended since.
            continue

"""Processor time and placement of processes, and the environment of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

_PACKAGES = (
    "confluent-kafka",
    "fastavro",
    "orjson",
    "elasticsearch",
    "cassandra-driver",
    "hazelcast-python-client",
)


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


def cpu_s(pid: int) -> float:
    """Processor time that a process and its children have spent."""
    leader = psutil.Process(pid)
    spent = 0.0
    for process in (leader, *leader.children(recursive=True)):
        times = process.cpu_times()
        spent += times.user + times.system
    return spent


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


def load_average() -> str:
    """The load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def environment() -> list[str]:
    """Lines that say where a run took place."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    memory_gib = psutil.virtual_memory().total / 2**30
    return [
        f"commit    {_commit()}",
        f"machine   {os.cpu_count()} cores ({_processor()}), {memory_gib:.0f} GiB, {platform.platform()}",
        f"python    {platform.python_version()}; {', '.join(versions)}",
        f"load      {load_average()}",
    ]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with uncommitted changes"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()

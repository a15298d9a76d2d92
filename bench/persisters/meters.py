"""Processor time and memory of processes, and the environment of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass

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


def resident_mb(pid: int) -> float:
    """Resident memory of one process, MB (10^6 bytes)."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def load_average() -> str:
    """The load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def environment() -> list[str]:
    """Lines that say where a run took place."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return [
        f"machine   {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.platform()}",
        f"python    {platform.python_version()}; {', '.join(versions)}",
        f"load      {load_average()}",
    ]

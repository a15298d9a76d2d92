"""What is printed with every figure: the machine, the versions, the load."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import psutil

_PACKAGES = ("pyspark", "confluent-kafka")


def environment() -> list[str]:
    """Lines that say where a run took place."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    return [
        f"machine   {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.platform()}",
        f"python    {platform.python_version()}; {versions}",
        f"load      {loads}",
    ]


def cpu_s(pid: int) -> float:
    """Processor time that one process has spent."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

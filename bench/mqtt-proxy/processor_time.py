"""Processor time and memory of server processes."""

from __future__ import annotations

import psutil


def cpu_s(pid: int) -> float:
    """Processor time that a process and its threads have spent, user and system."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss)

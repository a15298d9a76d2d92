"""Measurements that benches and soak tests print: processor time, memory, metrics, and the machine of a run."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import psutil

from isotherm.stack.ports import LOOPBACK

_TIMEOUT_S = 5.0
_Number = TypeVar("_Number", int, float)


def cpu_s(pid: int) -> float:
    """Processor time in seconds, user and system, of a process and its running children.

    The kernel counts each process in steps of 10 ms. Raises psutil.NoSuchProcess.
    """
    return sum(_of_tree(pid, lambda process: sum(process.cpu_times()[:2])))


def fine_cpu_s(pids: Iterable[int]) -> float:
    """Processor time in seconds of short-lived or idle processes, for which steps of 10 ms are too coarse.

    In nanoseconds, of all threads, those that have ended among them (clock_getcpuclockid(3)); without children.
    Raises OSError where a process is gone.
    """
    return sum(time.clock_gettime(_processor_clock(pid)) for pid in pids)


def _processor_clock(pid: int) -> int:
    # Linux numbers the clocks of processes so (MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED, linux/posix-timers.h).
    return (~pid << 3) | 2


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its children. Raises psutil.NoSuchProcess."""
    return sum(_of_tree(pid, lambda process: int(process.memory_info().rss)))


def metrics(port: int) -> dict[str, float]:
    """Samples of `/metrics` on 127.0.0.1, by name with labels; empty while no process answers."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def load_average() -> str:
    """The load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def reference_ms() -> float:
    """Processor time in milliseconds that this machine takes now for a fixed piece of work, the median of five times.

    The work goes through some megabytes of memory, as services do. A machine that shares its processor with others
    takes a fifth more or less from one hour to the next: figures of two runs are compared with this one beside them.
    """
    document = [{"device_id": f"device-{number}", "value": number / 7, "sequence": number} for number in range(20_000)]
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        json.loads(json.dumps(document))
        times_s.append(time.process_time() - began_s)
    return statistics.median(times_s) * 1000


def environment(*packages: str) -> list[str]:
    """Lines that describe the commit, the machine and the versions of these Python packages.

    Raises importlib.metadata.PackageNotFoundError.
    """
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    memory_gib = psutil.virtual_memory().total / 2**30
    return [
        f"commit    {revision(Path(__file__).parent)}",
        f"machine   {os.cpu_count()} cores ({_processor()}), {memory_gib:.0f} GiB, {platform.platform()}",
        f"python    {platform.python_version()}; {', '.join(versions)}",
        f"load      {load_average()}",
        f"speed     {reference_ms():.0f} ms for the reference work",
    ]


def _of_tree(pid: int, measure: Callable[[psutil.Process], _Number]) -> list[_Number]:
    """The measured values of a process and of each of its children, without children that end meanwhile."""
    leader = psutil.Process(pid)
    found = [measure(leader)]
    for child in leader.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(measure(child))
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def revision(folder: Path) -> str:
    """Return a checkout's commit, and whether its code was changed; results of measurements are no code."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], text=True, cwd=folder).strip()

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs/results")
    return git("rev-parse", "HEAD") + (" with uncommitted changes" if changes else "")

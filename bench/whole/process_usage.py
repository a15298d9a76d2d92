"""Processor time, context switches and memory of process trees, from /proc, as differences between two times.

A part is one server, service or simulator: the process that started it, with all its descendants and everything else of
its session. Processor time of processes that end in between is in their parent's figures, because the kernel adds it
there when the parent waits for them (`cutime` and `cstime` of proc(5)); that of ended threads is in their process'.
Context switches are counted for each thread, and those of threads that end in between are lost.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.stack.measurement import fine_cpu_s

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024
_Pid = tuple[int, int]
"""Pid and start time in ticks: the kernel uses a pid again, but not with the same start."""


@dataclass(frozen=True)
class Stat:
    """What proc(5) calls `stat`, as far as it is needed."""

    pid: int
    parent: int
    session: int
    reaped_s: float
    """Processor time of ended children that were waited for, and of theirs."""
    start_ticks: int


def parse_stat(line: str) -> Stat:
    """Read one line of /proc/PID/stat. The command name may hold blanks and brackets."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    reaped_ticks = int(fields[13]) + int(fields[14])
    return Stat(int(pid), int(fields[1]), int(fields[3]), reaped_ticks / _TICKS_PER_S, int(fields[19]))


@dataclass(frozen=True)
class ProcessSample:
    """One process at one time."""

    pid: int
    start_ticks: int
    parent: int
    part: str
    program: str
    """File name of its executable."""
    is_leader: bool
    """Whether it is the process that the part was started as."""
    own_s: float
    """Its processor time, user and system, with that of ended threads."""
    reaped_s: float
    switches: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Voluntary and involuntary context switches by thread."""

    @property
    def key(self) -> _Pid:
        """What tells it from a later process with the same pid."""
        return self.pid, self.start_ticks


@dataclass(frozen=True)
class Usage:
    """What one process used between two samples."""

    pid: int

    part: str
    program: str
    label: str
    cpu_s: float
    voluntary: int
    involuntary: int


def sample(parts: Mapping[str, int]) -> list[ProcessSample]:
    """The processes of every part, given by its leader's pid. Processes that end meanwhile are left out."""
    stats = {stat.pid: stat for stat in _stats()}
    part_of = members(stats.values(), parts)
    found = []
    for pid, part in part_of.items():
        with contextlib.suppress(OSError):
            found.append(
                ProcessSample(
                    pid,
                    stats[pid].start_ticks,
                    stats[pid].parent,
                    part,
                    _program(pid),
                    pid == parts[part],
                    fine_cpu_s([pid]),
                    stats[pid].reaped_s,
                    _switches(pid),
                )
            )
    return found


def members(stats: Iterable[Stat], parts: Mapping[str, int]) -> dict[int, str]:
    """The part of each process that belongs to one: the leader, its descendants, and the rest of its session."""
    children, sessions = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for stat in stats:
        children[stat.parent].append(stat.pid)
        sessions[stat.session].append(stat.pid)
    found: dict[int, str] = {}
    for part, leader in parts.items():
        waiting = [leader, *sessions[leader]]
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found[pid] = part
                waiting.extend(children[pid])
    return found


def usage(begin: Iterable[ProcessSample], end: Iterable[ProcessSample]) -> list[Usage]:
    """What each process that runs at the end used since the beginning, ended descendants included.

    The processes of a part are labelled by its name and, from the second on, by their order.
    """
    before = {one.key: one for one in begin}
    after = sorted(end, key=lambda one: (one.part, not one.is_leader, one.start_ticks, one.pid))
    ended_s = _ended_before(before, {one.key for one in after})
    orders: Counter[str] = Counter()
    found = []
    for one in after:
        orders[one.part] += 1
        earlier = before.get(one.key)
        cpu_s = one.own_s + one.reaped_s - (earlier.own_s + earlier.reaped_s if earlier else 0.0)
        voluntary, involuntary = _switched(earlier.switches if earlier else {}, one.switches)
        label = one.part if orders[one.part] == 1 else f"{one.part} {orders[one.part]} ({one.program})"
        cpu_s -= ended_s.get(one.key, 0.0)
        found.append(Usage(one.pid, one.part, one.program, label, cpu_s, voluntary, involuntary))
    return found


def _ended_before(before: Mapping[_Pid, ProcessSample], alive: set[_Pid]) -> Mapping[_Pid, float]:
    """Processor time that ended processes had used before the first sample, by the ancestor that has waited for them.

    It is in the ancestor's second sample, but not used in between.
    """
    by_pid = {one.pid: one for one in before.values()}
    found = defaultdict[_Pid, float](float)
    for one in before.values():
        ancestor: ProcessSample | None = one
        while ancestor is not None and ancestor.key not in alive:
            ancestor = by_pid.get(ancestor.parent)
        if ancestor is not None and ancestor is not one:
            found[ancestor.key] += one.own_s + one.reaped_s
    return found


def _switched(begin: Mapping[int, tuple[int, int]], end: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    voluntary = involuntary = 0
    for thread, (own_will, forced) in end.items():
        before = begin.get(thread, (0, 0))
        if own_will < before[0] or forced < before[1]:
            before = (0, 0)
        voluntary += own_will - before[0]
        involuntary += forced - before[1]
    return voluntary, involuntary


def proportional_bytes(pid: int) -> int:
    """Memory of a process, of which pages that several processes share count in proportion (PSS).

    Raises OSError when the process is gone or another user's.
    """
    for line in (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * _KIB
    return 0


@dataclass(frozen=True)
class Machine:
    """Counters of the whole machine since its start."""

    busy_s: float
    """Processor time of everything that ran, all processors together."""
    switches: int
    starts: int
    """Started processes and threads; the kernel does not tell them apart."""


def machine() -> Machine:
    """The counters of now."""
    return parse_machine((_PROC / "stat").read_text(encoding="ascii"))


def parse_machine(text: str) -> Machine:
    """Read /proc/stat."""
    fields = {name: rest.split() for name, _, rest in (line.partition(" ") for line in text.splitlines())}
    # user, nice, system, idle, iowait, irq, softirq: without the two that are not work.
    ticks = [int(value) for value in fields["cpu"][:7]]
    busy = sum(ticks) - ticks[3] - ticks[4]
    return Machine(busy / _TICKS_PER_S, int(fields["ctxt"][0]), int(fields["processes"][0]))


def _stats() -> Iterator[Stat]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield parse_stat((entry / "stat").read_text(encoding="ascii", errors="replace"))


def _program(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "exe").readlink().name
    except PermissionError:
        return (_PROC / str(pid) / "comm").read_text(encoding="ascii", errors="replace").strip()


def _switches(pid: int) -> dict[int, tuple[int, int]]:
    found = {}
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):
            text = (task / "status").read_text(encoding="ascii", errors="replace")
            fields = dict(line.split(":", 1) for line in text.splitlines() if "ctxt_switches" in line)
            found[int(task.name)] = (int(fields["voluntary_ctxt_switches"]), int(fields["nonvoluntary_ctxt_switches"]))
    return found

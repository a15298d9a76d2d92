"""Operating-system processes: pid files that cannot name a stranger, and whole process groups.

A server is started as the leader of its own session, so that one signal reaches its children too. The
process writes its own pid file before it becomes the server: there is no moment at which a server runs
that no pid file names. Linux only (``/proc``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_INTERVAL_S = 0.05

# The shell keeps its pid and start time through exec, so the line it reads about itself stays true.
_WRITE_PID_FILE_THEN_EXEC = 'read -r stat </proc/$$/stat && echo "$stat" >"$0" && exec "$@"'


@dataclass(frozen=True)
class Process:
    """One process: its pid together with its start time in clock ticks since boot.

    A pid alone is recycled by the kernel; with the start time it names one process for good.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class _Stat:
    process: Process
    state: str
    group: int


def _parse_stat(line: str) -> _Stat:
    """Read one line of ``/proc/<pid>/stat`` (proc(5)); the command name may hold blanks and brackets."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return _Stat(Process(int(pid), int(fields[19])), fields[0], int(fields[2]))


def _stat(pid: int) -> _Stat | None:
    return _read_stat(Path(f"/proc/{pid}/stat"))


def _read_stat(file: Path) -> _Stat | None:
    try:
        return _parse_stat(file.read_text(encoding="ascii", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_pid_file(path: Path) -> Process | None:
    """Return the process that a pid file names, or None when there is no (complete) pid file."""
    try:
        return _parse_stat(path.read_text(encoding="ascii", errors="replace")).process
    except (FileNotFoundError, ValueError, IndexError):
        return None


def spawn(
    command: Sequence[str], *, pid_file: Path, log_file: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, its output appended to ``log_file``.

    Returns once the process was created; ``pid_file`` appears a moment later, written by the process itself.
    """
    pid_file.unlink(missing_ok=True)
    with log_file.open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WRITE_PID_FILE_THEN_EXEC, str(pid_file), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=log_file.parent,
            start_new_session=True,
        )


def is_running(process: Process) -> bool:
    """Tell whether exactly this process runs (a zombie does not)."""
    stat = _stat(process.pid)
    return stat is not None and stat.process == process and stat.state not in "ZX"


def group_members(leader: Process) -> list[Process]:
    """Return the running processes of the group that ``leader`` founded, also after the leader's own end."""
    found = _stat(leader.pid)
    if found is not None and found.process != leader:
        return []  # the pid was recycled, which the kernel does only after the whole group is gone
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        stat = _stat(int(entry.name))
        if stat is not None and stat.group == leader.pid and stat.state not in "ZX":
            members.append(stat.process)
    return members


def listening_ports(leader: Process) -> set[int]:
    """Return the TCP ports that the processes of ``leader``'s group listen on."""
    found: set[int] = set()
    for member in group_members(leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = psutil.Process(member.pid).net_connections("tcp")
            found.update(each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN)
    return found


def signal_group(leader: Process, signal_number: signal.Signals) -> None:
    """Send a signal to every running member of the group; one that has just ended is no error."""
    for member in group_members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal_number)


def pause_group(leader: Process, timeout_s: float) -> bool:
    """SIGSTOP the group and wait until every thread stands still; False when some do not after ``timeout_s`` seconds.

    A thread that runs on another processor takes the signal only when it next enters the kernel.
    """
    signal_group(leader, signal.SIGSTOP)
    return _wait_until(lambda: all(_stands_still(member.pid) for member in group_members(leader)), timeout_s)


def _stands_still(pid: int) -> bool:
    threads = [_read_stat(file) for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(thread is None or thread.state in "TZX" for thread in threads)


def wait_for_group_end(leader: Process, timeout_s: float) -> bool:
    """Wait until no member of the group runs; False when some still do after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    _wait_for_end(leader, timeout_s)
    return _wait_until(lambda: not group_members(leader), deadline - time.monotonic())


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _wait_for_end(process: Process, timeout_s: float) -> None:
    """Let the kernel report the end of a process, at most ``timeout_s`` seconds.

    Returns at once when it does not run, or on a kernel before 5.3. To look at every process of the machine instead,
    twenty times a second, takes a tenth of a processor.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_running(process):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)


def ask_to_end(leader: Process) -> None:
    """SIGTERM the leader, or what it left behind when it is gone itself.

    A paused group is resumed first, since a stopped process acts on nothing but SIGKILL.
    """
    signal_group(leader, signal.SIGCONT)
    if is_running(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader.pid, signal.SIGTERM)
    else:
        signal_group(leader, signal.SIGTERM)


def end_group(leader: Process, timeout_s: float, *, is_asked: bool = False) -> bool:
    """Ask the group to end, then kill whatever of it still runs after ``timeout_s`` seconds.

    With ``is_asked`` the asking was done before: some programs take a second SIGTERM for "at once, without draining".
    Returns True when it ended by itself in time.
    """
    if not is_asked:
        ask_to_end(leader)
    if wait_for_group_end(leader, timeout_s):
        return True
    kill_group(leader)
    return False


def kill_group(leader: Process) -> None:
    """SIGKILL every member of the group and wait until the kernel has ended them."""
    while group_members(leader):
        signal_group(leader, signal.SIGKILL)
        wait_for_group_end(leader, timeout_s=1.0)

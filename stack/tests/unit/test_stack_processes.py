"""Processes: a pid file names one process only, signals reach the whole group, orphans are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.stack import processes
from isotherm.stack.processes import Process

END_TIMEOUT_S = 30.0

# A leader with a child, like Elasticsearch's launcher and server; the child tells its pid through the pipe `ready`.
LAUNCHER = "sh -c 'echo $$ >ready; exec sleep 600' & wait"
DEAF_LAUNCHER = f"trap '' TERM; {LAUNCHER}"


class Group:
    """A spawned group of processes in its own folder."""

    def __init__(self, folder: Path, script: str) -> None:
        self.pid_file = folder / "pid"
        os.mkfifo(folder / "ready")
        self.popen = processes.spawn(
            ["sh", "-c", script], pid_file=self.pid_file, log_file=folder / "log", environment=os.environ
        )
        self.child_pid = int((folder / "ready").read_text())
        leader = processes.read_pid_file(self.pid_file)
        assert leader is not None
        self.leader = leader

    def states(self) -> set[str]:
        pids = (self.leader.pid, self.child_pid)
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    started = Group(tmp_path, LAUNCHER)
    yield started
    processes.kill_group(started.leader)
    started.popen.wait()


def test_the_pid_file_names_the_process_that_was_spawned(group: Group) -> None:
    assert group.leader.pid == group.popen.pid
    assert processes.is_running(group.leader)
    assert {member.pid for member in processes.group_members(group.leader)} == {group.leader.pid, group.child_pid}


def test_a_recycled_pid_is_a_stranger(group: Group) -> None:
    earlier = Process(group.leader.pid, group.leader.start_ticks - 1)
    assert not processes.is_running(earlier)
    assert processes.group_members(earlier) == []
    processes.kill_group(earlier)
    assert processes.is_running(group.leader)


def test_kill_reaches_a_child_that_outlived_its_leader(group: Group) -> None:
    os.kill(group.leader.pid, signal.SIGKILL)
    group.popen.wait()
    assert [member.pid for member in processes.group_members(group.leader)] == [group.child_pid]
    processes.kill_group(group.leader)
    assert processes.group_members(group.leader) == []


def test_pause_and_resume_reach_the_whole_group(group: Group) -> None:
    assert processes.pause_group(group.leader, END_TIMEOUT_S)
    assert group.states() == {"T"}
    processes.signal_group(group.leader, signal.SIGCONT)
    while "T" in group.states():
        time.sleep(processes.POLL_INTERVAL_S)
    assert processes.is_running(group.leader)


def test_a_paused_group_ends_when_asked(tmp_path: Path) -> None:
    group = Group(tmp_path, LAUNCHER)
    processes.signal_group(group.leader, signal.SIGSTOP)
    # The leader ends by the signal; its child, which nobody told, is what remains to be killed.
    processes.end_group(group.leader, timeout_s=0.2)
    assert processes.group_members(group.leader) == []
    assert group.popen.wait() == -signal.SIGTERM


def test_a_group_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    group = Group(tmp_path, DEAF_LAUNCHER)
    assert not processes.end_group(group.leader, timeout_s=0.2)
    assert processes.group_members(group.leader) == []
    assert group.popen.wait() == -signal.SIGKILL


@pytest.mark.parametrize("content", ["", "12", "not a pid file\n", "12 (sh) S 1"])
def test_a_broken_pid_file_names_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pid"
    path.write_text(content)
    assert processes.read_pid_file(path) is None
    assert processes.read_pid_file(tmp_path / "missing") is None


def test_a_command_name_with_blanks_and_brackets_is_read_right(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text(f"77 (a) (b c) S 1 77 77 {'0 ' * 15}4242 0 0\n")
    assert processes.read_pid_file(path) == Process(77, 4242)


OWNER = """
import os, signal, subprocess, sys
from pathlib import Path
from isotherm.stack import processes, watchdog
folder = Path(sys.argv[1])
watchdog.watch(folder / "pid")
processes.spawn(["sh", "-c", sys.argv[2]], pid_file=folder / "pid", log_file=folder / "log", environment=os.environ)
(folder / "ready").read_text()
# Another process keeps the watchdog's stream open, as a worker forked by the owner would.
if os.fork() == 0:
    os.execvp("sleep", ["sleep", "600"])
print("started", flush=True)
sys.stdin.read(1)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["kill", "return"])
def test_servers_end_with_the_process_that_started_them(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), LAUNCHER, end]
    os.mkfifo(tmp_path / "ready")
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert owner.stdin is not None
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"started\n"
    leader = processes.read_pid_file(tmp_path / "pid")
    assert leader is not None
    owner.stdin.close()
    owner.wait()
    owner.stdout.close()
    try:
        assert processes.wait_for_group_end(leader, END_TIMEOUT_S)
    finally:
        os.killpg(owner.pid, signal.SIGKILL)  # the sleeper that the owner left behind
